# SPDX-License-Identifier: MIT
"""zc stat: what it shows of real connections, whom it tells what when it can't, and what hostile segments do to it."""
import contextlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys

import pytest
from conftest import SENDING_PATHS, clean_environment
from pairs import FULL, UNDER_WAY, Pair

ROOT = pathlib.Path(__file__).parents[2]
CC = os.environ.get("ZC_CC", "cc")
IS_ROOT = os.geteuid() == 0
STRANGER = 54321  # a user who has no processes: nobody may be running servers under zc


@pytest.fixture
def pair(build):
    """Starts pairs under zc (path=None: without)."""
    with contextlib.ExitStack() as stack:

        def start(path, **environment):
            command = [build / "apps/zc/zc", "run", "-p", path] if path else []
            made = Pair(command, **environment)
            stack.callback(lambda: (made.process.stdin.close(), made.process.kill(), made.process.wait(),
                                    made.process.stdout.close()))
            return made

        yield start


def process_of(got):
    assert got.returncode == 0, got.stderr
    (process,) = json.loads(got.stdout)["processes"]
    return process


def connection(process, role):
    (found,) = [conn for conn in process["connections"] if conn["role"] == role]
    return found


def test_counts_are_those_of_the_program(zc, pair):
    running = pair("copy")
    running.send(1000, 5000)
    process = process_of(zc("stat", running.pid, "--json"))
    assert process["pid"] == running.pid and process["running"] is True
    assert process["process"]["connections"] == 2
    client, server = connection(process, "client"), connection(process, "server")
    copy = client["paths"]["copy"]
    assert (copy["calls"], copy["bytes"], copy["system_calls"]) == (1000, 5000 * 1000, 1000)
    assert server["counters"]["receive_bytes"] == 5000 * 1000
    assert client["local"] == server["peer"] and client["peer"] == server["local"]
    assert client["policy"] == server["policy"] == "copy"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", client["local"])
    assert client["explanation"].startswith("all 1000 sends took copy")
    timed = copy["latency_ns"]
    assert timed["timed_sends"] == sum(bucket["sends"] for bucket in timed["buckets"])
    assert 1000 // 16 <= timed["timed_sends"] <= 1000 // 16 + 1
    assert 0 < timed["p50"] <= timed["p90"] <= timed["p99"] <= timed["p999"]
    assert timed["buckets"][0]["from_ns"] <= timed["p50"] and timed["p999"] <= timed["buckets"][-1]["below_ns"]


def test_sends_are_timed_by_the_path_that_they_took(zc, pair):
    running = pair("zsdp")
    for _ in range(50):  # one send of sixteen is timed, and how many have room in the ring is open
        running.send(100, 256 << 10)
        paths = connection(process_of(zc("stat", running.pid, "--json")), "client")["paths"]
        if paths["zsdp"]["latency_ns"]["timed_sends"]:
            break
    assert paths["zsdp"]["latency_ns"]["timed_sends"] > 0
    assert all(path["latency_ns"]["timed_sends"] <= path["calls"] for path in paths.values())


def test_rules_hold_for_a_connect_that_is_under_way(zc, pair, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("use copy client * 127.0.0.1:*\n")
    running = pair("sg", program=UNDER_WAY, ZC_RULES=str(rules))
    clients = [conn for conn in process_of(zc("stat", running.pid, "--json"))["connections"] if conn["role"] == "client"]
    assert len(clients) == 2 and clients[0]["peer"] == clients[1]["peer"]
    assert [conn["policy"] for conn in clients] == ["copy", "copy"]
    running.send(1, 1)
    running.end()


def test_reasons_explain_why_zerocopy_was_not_taken(zc, pair):
    running = pair("zerocopy")
    running.send(50, 1000)
    client = connection(process_of(zc("stat", running.pid, "--json")), "client")
    assert client["policy"] == "zerocopy" and client["reasons"]["small"] == 50
    assert client["explanation"] == "all 50 sends took copy, mostly because: send below ZC_ZEROCOPY_MIN"
    text = zc("stat", running.pid).stdout
    assert "all 50 sends took copy, mostly because: send below ZC_ZEROCOPY_MIN" in text
    assert re.search(r"50 x small +send below", text)


def test_what_auto_tried_is_shown(zc, pair):
    running = pair("auto")
    running.send(50, 1000)
    assert process_of(zc("stat", running.pid, "--json"))["trials"] == []
    for _ in range(50):
        running.send(100, 256 << 10)
        trials = process_of(zc("stat", running.pid, "--json"))["trials"]
        if trials:
            break
    (trial,) = trials
    assert trial["from_bytes"] == 256 << 10 and trial["tries"] > 0
    assert set(trial["us_per_mb"]) == {"bsdp", "zsdp", "azsdp"} and trial["taken"] in trial["us_per_mb"]
    known = [cost for cost in trial["us_per_mb"].values() if cost]
    assert known and all(cost > 0 for cost in known)
    assert f"auto: {trial['explanation']}" in zc("stat", running.pid).stdout
    assert trial["explanation"].startswith("sends of 256 to 512 KB were tried")


def test_zerocopy_sends_and_completions_are_shown(zc, pair):
    running = pair("zerocopy", ZC_ZEROCOPY_KEEP="yes", ZC_ZEROCOPY_MIN="8192")
    running.send(20, 1 << 20)
    process = process_of(zc("stat", running.pid, "--json"))
    client = connection(process, "client")
    assert client["paths"]["zerocopy"]["bytes"] + client["paths"]["copy"]["bytes"] == 20 << 20
    assert client["paths"]["zerocopy"]["calls"] > 0 and client["counters"]["completions"] > 0
    assert process["process"]["guards"] > 0
    assert "zerocopy" in zc("stat", running.pid).stdout


def test_closed_connections_stay_in_the_sum(zc, pair, tmp_path):
    running = pair("copy", ZC_STATS_DIR=str(tmp_path))
    running.send(10, 100)
    assert process_of(zc("stat", running.pid, "--json"))["running"] is True
    running.end()
    process = process_of(zc("stat", tmp_path / f"zc-{running.pid}.stats", "--json"))
    assert process["running"] is False and process["connections"] == []
    assert process["closed"]["paths"]["copy"]["bytes"] == process["all"]["paths"]["copy"]["bytes"] == 1000
    text = zc("stat", tmp_path / f"zc-{running.pid}.stats").stdout
    assert "ended" in text and "0 of 2 connections open" in text


FORKING = """
import os, signal, socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
idle = os.fork()
if not idle:
    os._exit(0)
os.waitpid(idle, 0)
closed, close = os.pipe()
child = os.fork()
if not child:
    os.close(close)
    os.read(closed, 1)
    server.sendall(bytes(1000))
    server.sendall(bytes(500))
    os._exit(0)
server.close()
os.close(close)
client.recv(1500, socket.MSG_WAITALL)
os.waitpid(child, 0)
print(os.getpid(), child)
"""


def test_child_shows_what_it_sent_on_an_inherited_connection(zc, tmp_path):
    got = zc("run", "-p", "copy", sys.executable, "-c", FORKING, ZC_STATS_DIR=str(tmp_path))
    parent, child = map(int, got.stdout.split())
    # None of the child that did nothing: one that goes on to exec another program leaves no file.
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([f"zc-{parent}.stats", f"zc-{child}.stats"])
    sent = {pid: process_of(zc("stat", "--json", tmp_path / f"zc-{pid}.stats"))["all"] for pid in (parent, child)}
    assert sent[child]["paths"]["copy"]["bytes"] == 1500 and sent[child]["paths"]["copy"]["calls"] == 2
    assert sent[parent]["paths"]["copy"]["bytes"] == 0 and sent[parent]["counters"]["receive_bytes"] == 1500


def test_file_of_a_running_process_is_known_as_such(zc, pair, tmp_path):
    running = pair("copy", ZC_STATS_DIR=str(tmp_path))
    assert process_of(zc("stat", tmp_path / f"zc-{running.pid}.stats", "--json"))["running"] is True


def test_json_holds_every_counter_of_the_list(zc, pair):
    names = {kind: set(re.findall(rf'^{kind}\(\w+, "(\w+)"', (ROOT / "common/stats.def").read_text(), re.M))
             for kind in ["ZC_STAT_PATH", "ZC_STAT_CONN", "ZC_STAT_PROCESS", "ZC_REASON"]}
    process = process_of(zc("stat", pair("auto").pid, "--json"))
    assert set(process["process"]) == names["ZC_STAT_PROCESS"]
    for sums in [process["all"], process["closed"], *process["connections"]]:
        assert set(sums["counters"]) == names["ZC_STAT_CONN"] and set(sums["reasons"]) == names["ZC_REASON"]
        assert set(sums["paths"]) == set(SENDING_PATHS)
        for path in sums["paths"].values():
            assert set(path) - {"latency_ns"} == names["ZC_STAT_PATH"]


def test_without_argument_all_processes_are_shown(zc, pair):
    first, second, stranger = pair("copy"), pair("sg"), pair(None)
    shown = [process["pid"] for process in json.loads(zc("stat", "--json").stdout)["processes"]]
    assert first.pid in shown and second.pid in shown and stranger.pid not in shown
    assert len(shown) == len(set(shown))
    text = zc("stat").stdout
    assert f"(pid {first.pid})" in text and f"(pid {second.pid})" in text


# Who can't be shown ---------------------------------------------------------------------------------------------------


def test_process_that_needed_the_descriptor_of_its_statistics_is_told(zc, pair):
    got = zc("stat", pair("copy", program=FULL).pid)
    assert got.returncode == 1 and "used up its descriptors" in got.stderr and not got.stdout


def test_file_of_a_process_that_needed_its_descriptor_is_shown(zc, pair, tmp_path):
    running = pair("copy", program=FULL, ZC_STATS_DIR=str(tmp_path))
    running.send(10, 5000)
    process = process_of(zc("stat", tmp_path / f"zc-{running.pid}.stats", "--json"))
    assert process["running"] is True and connection(process, "client")["paths"]["copy"]["calls"] == 10


def test_process_without_zc_is_told(zc, pair):
    got = zc("stat", pair(None).pid)
    assert got.returncode == 1 and "does not run under zc" in got.stderr and not got.stdout


def test_process_without_connections_is_told(zc, build):
    with subprocess.Popen([build / "apps/zc/zc", "run", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=clean_environment()) as process:
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)
        got = zc("stat", process.pid)
        process.stdin.close()
    assert got.returncode == 1 and "no TCP connection so far" in got.stderr


def test_missing_process_is_told(zc):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    got = zc("stat", process.pid)
    assert got.returncode == 1 and f"no process {process.pid}" in got.stderr


@pytest.mark.skipif(not IS_ROOT, reason="takes root to have a process of another user")
def test_foreign_process_is_told_with_the_right_that_it_takes(public_zc, pair):
    running = pair("copy")

    def as_stranger(*arguments):
        return subprocess.run([public_zc, "stat", *arguments], capture_output=True, text=True, check=False, timeout=60,
                              env={"PATH": os.environ["PATH"]}, cwd="/", user=STRANGER, group=STRANGER, extra_groups=[])

    got = as_stranger(str(running.pid))
    assert got.returncode == 1 and "CAP_SYS_PTRACE" in got.stderr
    got = as_stranger()
    assert got.returncode == 1 and "not be looked into" in got.stderr and "sudo" in got.stderr


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["0"], "1 to"), (["99999999999999999999"], "1 to"), ([""], "neither"), (["1", "2"], "'2'"),
        (["--watch=0"], "--watch=0"), (["--watch=x"], "--watch=x"), (["--watch=nan"], "--watch"), (["--watch="], "--watch"),
        (["--watch=1e9"], "3600"), (["--json=1"], "--json"), (["-q"], "-q"),
    ],
)
def test_usage_errors(zc, arguments, what):
    got = zc("stat", *arguments)
    assert got.returncode == 2 and what in got.stderr and not got.stdout


# Segments that are not what they should be ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """Offsets in a segment, from the header that the library is built with."""
    directory = tmp_path_factory.mktemp("offsets")
    names = ["magic", "layout", "bytes", "pid", "slots", "started_ns", "program", "version", "process", "slots_used", "slot"]
    fields = ["state", "role", "policy", "fd", "opened_ns", "local", "peer", "path", "latency", "reason", "conn"]
    lines = [f'printf("{name} %zu\\n", offsetof(struct stats_segment, {name}));' for name in names]
    lines += [f'printf("slot.{name} %zu\\n", offsetof(struct stats_slot, {name}));' for name in fields]
    lines += ['printf("slot_bytes %zu\\nall %zu\\n", sizeof(struct stats_slot), sizeof(struct stats_segment));']
    source = '#include <stdio.h>\n#include "common/stats.h"\nint main(void) {' + "\n".join(lines) + "return 0; }"
    subprocess.run([CC, "-x", "c", "-", "-I", ROOT, "-o", directory / "offsets"], input=source, text=True, check=True)
    text = subprocess.run([directory / "offsets"], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


@pytest.fixture(scope="module")
def whole(build, tmp_path_factory, at):
    """The start of a real segment: two connections, one of them with sends."""
    directory = tmp_path_factory.mktemp("whole")
    made = Pair([build / "apps/zc/zc", "run", "-p", "zerocopy"], ZC_STATS_DIR=str(directory))
    made.send(100, 100)
    file = directory / f"zc-{made.pid}.stats"
    with open(file, "rb") as stream:
        head = stream.read(at["slot"] + 4 * at["slot_bytes"])
    made.end()
    return head


@pytest.fixture
def forged(whole, at, tmp_path):
    """Writes a segment that is right up to the given changes: (offset, bytes)..."""

    def forge(*changes, size=None):
        image = bytearray(whole)
        for offset, value in changes:
            image[offset : offset + len(value)] = value
        file = tmp_path / "forged"
        file.write_bytes(image)
        os.truncate(file, at["all"] if size is None else size)
        return file

    return forge


def test_untouched_forgery_is_accepted(zc, forged):
    process = process_of(zc("stat", forged(), "--json"))
    assert connection(process, "client")["paths"]["copy"]["calls"] == 100


def index(kind, name):
    """The place of a counter in its list."""
    text = (ROOT / "common" / ("paths.def" if kind == "ZC_PATH" else "stats.def")).read_text()
    return re.findall(rf'^{kind}\(\w+, "(\w+)"', text, re.M).index(name)


def sums(at, kind, counts):
    """The changes that give the sum of closed connections these counters."""
    field = {"ZC_REASON": "slot.reason", "ZC_STAT_CONN": "slot.conn"}[kind]
    return [(at["slot"] + at[field] + 8 * index(kind, name), struct.pack("<Q", count)) for name, count in counts.items()]


def sent(at, **paths):
    """The changes for calls and bytes by path."""
    per_path = len(re.findall(r"^ZC_STAT_PATH\(", (ROOT / "common/stats.def").read_text(), re.M))
    first = at["slot"] + at["slot.path"]
    return [(first + 8 * per_path * index("ZC_PATH", name), struct.pack("<QQ", calls, count)) for name, (calls, count) in paths.items()]


REWRITTEN = "82.0 % of bytes went by azsdp, 17.0 % by bsdp because buffers were rewritten within 20 us of the send, "


@pytest.mark.parametrize("paths, reasons, counters, wanted", [
    ({"azsdp": (82, 8200), "bsdp": (17, 1700), "copy": (1, 100)}, {"faulted": 17, "get_unproved": 3, "ring_full": 1},
     {"rewrites": 10, "rewrite_ns": 200_000}, REWRITTEN + "1.0 % by copy because: the ring was full: the rest went by TCP; "
     "10 writes met the guards of 82 sends by azsdp"),
    ({"azsdp": (9, 900), "bsdp": (1, 100)}, {"faulted": 1, "faulted_site": 2}, {"rewrites": 10, "rewrite_ns": 200_000},
     "10.0 % by bsdp because the buffers of certain calls were rewritten within 20 us of the send; 10 writes"),
    ({"azsdp": (9, 900), "bsdp": (1, 100)}, {"faulted": 1, "faulted_buffer": 2}, {"rewrites": 10, "rewrite_ns": 200_000},
     "10.0 % by bsdp because certain buffers were rewritten within 20 us of the send; 10 writes"),
    ({"bsdp": (1, 100)}, {"faulted_site": 2}, {}, "by bsdp because: this call of the program sends buffers that are rewritten"),
    ({"zsdp": (9, 900), "bsdp": (1, 100)}, {"get_refused": 1}, {},
     "90.0 % of bytes went by zsdp, 10.0 % by bsdp because: the kernel lets the peer not read this process"),
    ({"azsdp": (5, 500), "bsdp": (50, 500)}, {}, {}, "by bsdp because they were sends below ZC_SOURCE_MIN"),
    ({"bsdp": (5, 500)}, {}, {}, "100.0 % of bytes went by bsdp"),
    ({"bsdp": (5, 900), "copy": (9, 100)}, {"guard_cost": 5, "not_caught_up": 9}, {},
     "90.0 % of bytes went by bsdp because: fetching or guarding costs more than copying in this process, by measurement, "
     "10.0 % by copy because: the peer has not received"),
])
def test_shares_of_rings_are_explained(zc, forged, at, paths, reasons, counters, wanted):
    only_the_sum = (at["slots_used"], struct.pack("<I", 1))
    process = process_of(zc("stat", "--json", forged(
        only_the_sum, *sent(at, **paths), *sums(at, "ZC_REASON", reasons), *sums(at, "ZC_STAT_CONN", counters))))
    assert wanted in process["all"]["explanation"]
    if not reasons and len(paths) == 1:
        assert process["all"]["explanation"] == wanted


@pytest.mark.parametrize("size", [0, 1, 100, 191, 192, 4096, -1, 1])
def test_truncated_segment_is_refused(zc, forged, at, size):
    got = zc("stat", forged(size=size if size >= 0 else at["all"] - 1))
    assert got.returncode == 1 and "cut short" in got.stderr and "forged" in got.stderr and not got.stdout


def test_wrong_magic_is_refused(zc, forged, at):
    for value in [bytes(8), b"\xff" * 8]:
        got = zc("stat", forged((at["magic"], value)))
        assert got.returncode == 1 and "is no zc statistics" in got.stderr


@pytest.mark.parametrize("field", ["layout", "bytes"])
def test_other_version_is_refused_and_named_as_such(zc, forged, at, field):
    got = zc("stat", forged((at[field], struct.pack("<Q", 12345))))
    assert got.returncode == 1 and "another version" in got.stderr


@pytest.mark.parametrize("used", [16385, 0x7FFFFFFF, 0xFFFFFFFF])
def test_absurd_count_of_slots_is_refused(zc, forged, at, used):
    got = zc("stat", forged((at["slots_used"], struct.pack("<I", used))))
    assert got.returncode == 1 and "cut short" in got.stderr


def test_all_slots_used_and_open_is_shown(zc, forged, at):
    file = forged((at["slots_used"], struct.pack("<I", 16384)))
    with open(file, "r+b") as stream:
        for slot in range(1, 16384):
            stream.seek(at["slot"] + slot * at["slot_bytes"])
            stream.write(struct.pack("<I", 1))
    assert len(process_of(zc("stat", file, "--json"))["connections"]) == 16383


def test_garbage_behind_a_right_header_is_shown_as_numbers(zc, forged, at):
    slot = at["slot"] + at["slot_bytes"]
    garbage = b"\xff" * (at["slot_bytes"] - at["slot.role"])
    file = forged((slot, struct.pack("<I", 1)), (slot + at["slot.role"], garbage), (at["slots_used"], struct.pack("<I", 3)),
                  (at["process"], b"\xff" * (at["slots_used"] - at["process"])))
    process = process_of(zc("stat", file, "--json"))
    strange = [conn for conn in process["connections"] if conn["role"] == "?"]
    assert len(strange) == 1 and strange[0]["policy"] == "?" and strange[0]["local"] == "?" and strange[0]["fd"] == -1
    assert strange[0]["paths"]["copy"]["calls"] == pytest.approx(2**64)
    assert zc("stat", file).returncode == 0


def test_names_cannot_command_the_terminal(zc, forged, at):
    file = forged((at["program"], b"\033[2J\x9b\xff\n" + b"A" * 57), (at["version"], b"\033]0;x\007" + b"9" * 9))
    got = zc("stat", file)
    assert got.returncode == 0 and "\033" not in got.stdout and "\x9b" not in got.stdout and "?[2J???A" in got.stdout
    assert process_of(zc("stat", file, "--json"))["program"].startswith("?[2J???A")


def test_segment_that_shrinks_while_it_is_read_kills_nobody(zc, build, forged, at):
    file = forged((at["slots_used"], struct.pack("<I", 16384)))
    for _ in range(20):
        with subprocess.Popen([build / "apps/zc/zc", "stat", file, "--json"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, env=clean_environment()) as process:
            os.truncate(file, 5000)
            error = process.stderr.read()
        assert process.returncode == 0 or (process.returncode == 1 and b"cut short" in error)
        os.truncate(file, at["all"])


def test_strange_files_are_refused_without_waiting(zc, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for file in [tmp_path / "fifo", tmp_path, "/dev/zero", "/dev/tty"]:
        got = zc("stat", file)
        assert got.returncode == 1 and str(file) in got.stderr
    got = zc("stat", tmp_path / "absent")
    assert got.returncode == 1 and "No such file" in got.stderr


def test_forged_memfd_of_a_process_is_refused(zc):
    source = ("import os, sys; fd = os.memfd_create('zc-stats'); os.write(fd, b'x' * 100000); print('ready', flush=True);"
              "sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        got = zc("stat", process.pid)
        everyone = zc("stat", "--json")
        process.stdin.close()
    assert got.returncode == 1 and "is no zc statistics" in got.stderr
    if everyone.returncode == 0:
        assert process.pid not in [row["pid"] for row in json.loads(everyone.stdout)["processes"]]


# Watching -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def watch(build):
    with contextlib.ExitStack() as stack:

        def start(*arguments, stdout=subprocess.PIPE):
            process = stack.enter_context(
                subprocess.Popen([build / "apps/zc/zc", "stat", *map(str, arguments)], stdout=stdout,
                                 stderr=subprocess.PIPE, text=True, env=clean_environment())
            )
            stack.callback(process.kill)
            return process

        yield start


def test_watch_gives_rates_and_ends_with_the_process(pair, watch):
    running = pair("copy")
    watcher = watch(running.pid, "--json", "--watch=0.1")
    first = json.loads(watcher.stdout.readline())["processes"][0]
    assert first["all"]["paths"]["copy"]["calls"] == 0
    running.send(1000, 1000)
    sent = received = 0
    while sent < 1000 * 1000 or received < 1000 * 1000:
        process = json.loads(watcher.stdout.readline())["processes"][0]
        client, server = connection(process, "client"), connection(process, "server")
        for before, now, rate in [
            (sent, client["paths"]["copy"]["bytes"], client["paths"]["copy"]["bytes_per_s"]),
            (received, server["counters"]["receive_bytes"], server["receive_bytes_per_s"]),
        ]:
            assert (rate > 0) == (now > before)
        sent, received = client["paths"]["copy"]["bytes"], server["counters"]["receive_bytes"]
    running.end()
    for line in watcher.stdout:
        json.loads(line)
    assert watcher.wait(60) == 0 and watcher.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_ends_cleanly_by_signal(pair, watch, number):
    watcher = watch(pair("copy").pid, "--json", "-w")
    json.loads(watcher.stdout.readline())
    watcher.send_signal(number)
    for line in watcher.stdout:
        json.loads(line)
    assert watcher.wait(60) == 0 and watcher.stderr.read() == ""


def test_watch_of_a_file_ends_with_its_process(pair, watch, tmp_path):
    running = pair("copy", ZC_STATS_DIR=str(tmp_path))
    watcher = watch(tmp_path / f"zc-{running.pid}.stats", "--watch=3600")
    assert "(pid" in watcher.stdout.readline()
    running.end()
    assert watcher.wait(60) == 0


def test_watch_of_an_ended_file_shows_it_once(zc, forged):
    got = zc("stat", forged(), "--watch")
    assert got.returncode == 0 and got.stdout.count("(pid") == 1


def read_until(master, text, count=1):
    seen = b""
    while seen.count(text) < count:
        assert select.select([master], [], [], 60)[0], seen
        seen += os.read(master, 65536)
    return seen


def test_watch_redraws_a_terminal_and_fits_into_it(pair, watch):
    running = pair("copy")
    running.send(10, 10)
    master, slave = pty.openpty()
    try:
        import fcntl
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 6, 40, 0, 0))
        watcher = watch(running.pid, "--watch=0.1", stdout=slave)
        frames = read_until(master, b"\033[H\033[J", 3).decode().split("\033[H\033[J")
        frame = frames[1].replace("\r", "").split("\n")
        assert len(frame) <= 6 and max(map(len, frame)) <= 40
        assert f"(pid {running.pid})" in frame[0]
        running.end()
        assert b"ended" in read_until(master, b"under zc.")
        assert watcher.wait(60) == 0
    finally:
        os.close(master)
        os.close(slave)


def test_closed_pipe_ends_the_watch(build, pair):
    running = pair("copy")
    got = subprocess.run(f"{build}/apps/zc/zc stat {running.pid} --watch=0.1 | head -n 1", shell=True, timeout=60,
                         capture_output=True, text=True, check=False, env=clean_environment())
    assert "(pid" in got.stdout


def test_full_disk_is_a_failure(build, pair):
    running = pair("copy")
    for arguments in [[], ["--json"], ["--watch=0.1"]]:
        with open("/dev/full", "w", encoding="ascii") as full:
            got = subprocess.run([build / "apps/zc/zc", "stat", str(running.pid), *arguments], stdout=full, timeout=60,
                                 stderr=subprocess.PIPE, check=False, env=clean_environment())
        assert got.returncode == 1 and b"No space left" in got.stderr


