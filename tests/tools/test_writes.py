# SPDX-License-Identifier: MIT
"""zc-writes: every type, what the server counts, what --verify sees, and how failures are told."""
import json
import socket

import pytest

import ends
from ends import LIBRARY, PATHS, Proxy, Server, check_report, result, writes

TYPES = [1, 2, 3]
SMALL = ["--warmup", 2, "--json", "-"]


@pytest.fixture(scope="module")
def server():
    with Server("zc-writes") as one:
        yield one
        assert one.terminate()[0] == 0


@pytest.mark.parametrize("wait", ["blocking", "poll", "epoll"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("verify", [[], ["--verify"]], ids=["plain", "verify"])
def test_every_type(server, kind, wait, verify):
    got = result(writes(server.port, 40, 15, 100, kind, *SMALL, "--runs", 3, "--wait", wait, "--nodelay", *verify))
    check_report(got, "type", tool="zc-writes", role="client", type=kind, threads=1, messages=120, bytes_per_message=1500,
                 latency_of="run", verified=True if verify else None)
    assert [got["parameters"][name] for name in ["repetitions", "nbufs", "bufsize", "runs"]] == [40, 15, 100, 3]
    assert len(got["runs"]) == 3
    for run in got["runs"]:
        assert 0 < run["sending_us"] <= run["us"] and run["gbit_s"] > 0
        # The server reads a repetition at a time, in one read or in more.
        assert 40 <= run["reads"] <= 40 * 1500
    assert got["peer_reads"] == sum(run["reads"] for run in got["runs"])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("nbufs, bufsize", [(1, 1), (1, 7), (3, 4097), (1024, 9), (2, "3M")])
def test_sizes(server, kind, nbufs, bufsize):
    got = result(writes(server.port, 3, nbufs, bufsize, kind, *SMALL, "--verify", "--nodelay"))
    number = 3 << 20 if bufsize == "3M" else bufsize
    check_report(got, "type", messages=3, bytes_per_message=nbufs * number, verified=True)


def test_printed_without_json(server):
    done = writes(server.port, 20, 15, 100, 2, "--verify", "--runs", 2)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.count("reads") == 2
    assert "type 2, 15 x 100 bytes" in done.stdout and "every byte verified" in done.stdout


def test_server_ends_after_its_sessions_and_writes_json(tmp_path):
    file = tmp_path / "server.json"
    with Server("zc-writes", "--sessions", 2, "--json", file) as server:
        for kind in [1, 3]:
            assert writes(server.port, 5, 4, 10, kind, "--verify").returncode == 0
        assert server.end()[::2] == (0, "")
    report = json.loads(file.read_text())
    assert [session["type"] for session in report["sessions"]] == [1, 3]
    for session in report["sessions"]:
        check_report(session, "type", tool="zc-writes", role="server", messages=5, bytes_per_message=40, verified=True)


# Wrong bytes and broken connections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("repetition, offset", [(0, 0), (3, 777), (9, 1499)])
def test_flipped_byte_is_found(kind, repetition, offset):
    with Server("zc-writes", "--sessions", 1) as server:
        with Proxy(server.port, ends.flip_at(repetition * 1500 + offset, to_server=True)) as proxy:
            done = writes(proxy.port, 8, 15, 100, kind, *SMALL, "--verify")
        status, _, err = server.end()
    where = f"message {repetition}, first wrong byte at offset {offset}:"
    assert done.returncode == 1 and where in done.stderr and json.loads(done.stdout)["verified"] is False
    assert status == 1 and where in err


def test_flipped_byte_passes_unasked(server):
    with Proxy(server.port, ends.flip_at(777, to_server=True)) as proxy:
        assert result(writes(proxy.port, 8, 15, 100, 1, *SMALL))["verified"] is None


def test_missing_bytes_are_a_failure():
    with Server("zc-writes", "--sessions", 1) as server:
        with Proxy(server.port, ends.cut_at(5 * 1500 + 44, to_server=True)) as proxy:
            done = writes(proxy.port, 8, 15, 100, 3, *SMALL)
        status, _, err = server.end()
    assert done.returncode == 1 and not done.stdout and done.stderr.startswith("zc-writes: ")
    assert status == 1 and ("44 of 1500 bytes of message 5 received" in err or "gave its session up" in err)


def test_missing_repetitions_are_a_failure(server):
    with Proxy(server.port, ends.cut_at(5 * 1500, to_server=True)) as proxy:
        done = writes(proxy.port, 8, 15, 100, 3, *SMALL)
    assert done.returncode == 1 and not done.stdout


def start_endless(port):
    return ends.start_client("zc-writes", ["client", "127.0.0.1", port, "1000000000", 15, 100, 2, "--warmup", 0])


def test_killed_server_is_told():
    ends.check_killed_server("zc-writes", start_endless)


def test_killed_client_fails_its_session_and_the_server_goes_on():
    with Server("zc-writes", "--sessions", 2) as server:
        ends.check_killed_client(server, start_endless, lambda: writes(server.port, 5, 15, 100, 1, "--verify"))


# Arguments ---------------------------------------------------------------------------------------------------------------

GOOD = ["client", "127.0.0.1", "1", "10", "15", "100", "1"]


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], ["server or client"]),
        (["127.0.0.1", "1", "10", "15", "100", "1"], ["server or client"]),
        (["server"], ["--port", "missing"]),
        (["server", "--port", "65536"], ["--port 65536", "65535"]),
        (["server", "--port", "0", "--runs", "2"], ["--runs", "client only"]),
        (GOOD[:-1], ["TYPE", "missing"]),
        (["client"], ["SERVER", "missing"]),
        ([*GOOD, "extra"], ["extra"]),
        ([*GOOD[:-1], "4"], ["TYPE 4", "from 1 to 3"]),
        ([*GOOD[:-1], "writev"], ["TYPE writev", "from 1 to 3"]),
        ([*GOOD[:2], "0", *GOOD[3:]], ["PORT 0", "from 1 to 65535"]),
        ([*GOOD[:3], "0", *GOOD[4:]], ["REPETITIONS 0", "from 1"]),
        ([*GOOD[:4], "0", *GOOD[5:]], ["NBUFS 0", "from 1"]),
        ([*GOOD[:5], "0", "1"], ["BUFSIZE 0", "from 1"]),
        ([*GOOD[:4], "1025", "8", "2"], ["NBUFS 1025", "writev", "1024"]),
        ([*GOOD[:4], "1048576", "1G", "1"], ["BUFSIZE", "memory", "allowed is up to"]),
        ([*GOOD, "--runs", "0"], ["--runs 0", "from 1 to 10000"]),
        ([*GOOD, "--wait", "forever"], ["--wait forever", "blocking|poll|epoll"]),
        ([*GOOD, "--sessions", "1"], ["--sessions", "server only"]),
        ([*GOOD, "--nonsense"], ["--nonsense"]),
    ],
)
def test_usage_errors(arguments, named):
    ends.check_usage_error("zc-writes", arguments, named)


def test_help_names_every_option():
    ends.check_help("zc-writes", ["port", "runs", "verify", "json", "bind", "sessions", "wait", "nodelay", "warmup", "timeout",
                                  "socket-buffer"])


def test_nobody_listens():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        done = writes(reserved.getsockname()[1], 1, 1, 1, 1)
    assert done.returncode == 1 and "refused" in done.stderr and "127.0.0.1" in done.stderr


# Under libzc ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not LIBRARY.exists(), reason="libzc.so is not built")
@pytest.mark.parametrize("path", PATHS)
def test_bytes_are_right_under_libzc(path):
    with Server("zc-writes", "--sessions", 6, path=path) as server:
        for kind in TYPES:
            for wait, nbufs, bufsize in [("blocking", 15, 100), ("epoll", 15, "40K")]:
                got = result(writes(server.port, 50, nbufs, bufsize, kind, *SMALL, "--runs", 2, "--wait", wait, "--verify",
                                    path=path))
                check_report(got, "type", messages=100, verified=True)
        assert server.end()[::2] == (0, "")
