# SPDX-License-Identifier: MIT
"""Surroundings that take something away from the engine: it does without, the bytes are right, and `zc stat` says why.

Both ends run programs/guest.c, which sends bodies both ways over one connection and checks each byte. Who may not read the
other's memory gets everything by the ring; who has nothing in common with it but a network gets everything by TCP.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from apps import ALONE, INSISTENCE, IS_ROOT, PATHS, Run, compiled, environment, missing, need

RINGS = ["bsdp", "zsdp", "azsdp"]
SOURCES = ["zsdp", "azsdp"]
NOBODY, DAEMON = 65534, 1

needs_root = pytest.mark.skipif(not IS_ROOT, reason="takes root to become another user")


@pytest.fixture(scope="module", params=RINGS)
def path(request):
    return request.param


@pytest.fixture(scope="module")
def guest(shared_directory):
    return compiled(shared_directory, "guest")


def as_user(number):
    """What Popen needs to start a program as this user, without groups and capabilities."""
    return {"user": number, "group": number, "extra_groups": [], "cwd": "/"}


class End:
    """One end of the exchange, as it was left: what it printed, and its statistics."""

    def __init__(self, bench, run, output):
        assert run.process.returncode == 0, f"{run.process.args}: status {run.process.returncode}"
        told = json.loads(output)
        assert told["verified"] > 0 and told["sent"] == told["received"] > 10_000_000
        self.bytes = told["sent"]
        moved = run.moved()
        self.has_library = moved.processes > 0
        self.reasons = moved.reasons
        self.paths = {name: count for name, count in moved.paths.items() if count}
        self.counters, self.process = {}, {}
        for file in run.directory.glob("zc-*.stats"):
            got = subprocess.run([bench.zc, "stat", "--json", file], capture_output=True, check=True, env=environment())
            counted = json.loads(got.stdout)["processes"][0]
            self.counters |= counted["all"]["counters"]
            self.process |= counted["process"]

    def __repr__(self):
        reasons = {reason: times for reason, times in self.reasons.items() if times}
        return f"{self.paths}, {self.counters}, {self.process}, because of {reasons}"

    def went(self, path):
        """Nearly all went by this path, whatever had to go by TCP when the ring was full."""
        assert self.paths.get(path, 0) >= self.bytes / 3, f"{path} was expected, but {self}"
        return self

    def only_ring(self, reason):
        """Nothing was fetched from this end, and that is why."""
        assert not self.paths.get("zsdp") and not self.paths.get("azsdp") and self.reasons[reason] > 0, self
        return self.went("bsdp")

    def only_tcp(self):
        """By TCP, on whatever path a program can take alone."""
        assert self.paths.keys() <= ALONE and sum(self.paths.values()) == self.bytes and not self.counters["meetings"], self
        return self


class Ends:
    """Starts both ends, each in surroundings of its own."""

    def __init__(self, bench, guest, path):
        self.bench, self.guest, self.path = bench, guest, path

    def start(self, arguments, surroundings):
        """surroundings: within (words before all), options of zc run, program, habits, env, what Popen takes;
        preload: the libraries, in place of zc run."""
        surroundings = dict(surroundings)
        within, program = surroundings.pop("within", []), surroundings.pop("program", self.guest)
        habits = surroundings.pop("habits", [])
        options = surroundings.pop("options", [])
        env = INSISTENCE.get(self.path, {}) | {"ZC_SOURCE_MIN": "4096"} | surroundings.pop("env", {})
        directory = self.bench.new_directory("stats")
        command = [*within, self.bench.zc, "run", "-p", self.path, *options, "--", program, *arguments, *habits]
        if "preload" in surroundings:
            env |= {"LD_PRELOAD": surroundings.pop("preload"), "ZC_PATH": self.path}
            command = [*within, program, *arguments, *habits]
        run = Run(self.bench, command, None, directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                  env=env | {"ZC_STATS_DIR": str(directory)}, **surroundings)
        self.bench.stack.callback(run.end)
        return run

    def exchange(self, server, client, host="127.0.0.1"):
        """Returns the server and the client after a whole exchange."""
        serving = self.start(["server"], server)
        port = serving.process.stdout.readline().decode().strip()
        assert port, "the server did not start"
        asking = self.start(["client", host, port], client)
        ends = []
        for run in [serving, asking]:
            try:
                output = run.process.communicate(timeout=60)[0]
            finally:
                run.end()
            ends.append(End(self.bench, run, output))
        return ends


@pytest.fixture
def ends(bench, guest, path):
    return Ends(bench, guest, path)


# Users -----------------------------------------------------------------------------------------------------------------


@needs_root
def test_ordinary_user(ends, bench, path):
    """Without capabilities and full userfaultfd the guard is mprotect's, and says so."""
    log = bench.new_directory("log") / "log"
    user = as_user(NOBODY) | {"env": {"ZC_LOG": "info", "ZC_LOG_FILE": str(log)}}
    for end in ends.exchange(user, user):
        end.went(path)
        if path != "azsdp":
            continue
        assert end.process["guards"] > 0 and end.process["faults"] > 0, end
    if path == "azsdp" and pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "0":
        assert "mprotect" in log.read_text()


@needs_root
def test_two_accounts(ends, path):
    """Neither may read the other's memory: the ring serves."""
    for end in ends.exchange(as_user(NOBODY), as_user(DAEMON)):
        if path in SOURCES:
            end.only_ring("get_other_user")
        end.went("bsdp")


@needs_root
@pytest.mark.parametrize("privileged", ["server", "client"])
def test_root_and_a_user(ends, path, privileged):
    """root could read the user's memory, but does not: the two are not one user."""
    sides = [{}, as_user(NOBODY)] if privileged == "server" else [as_user(NOBODY), {}]
    for end in ends.exchange(*sides):
        if path in SOURCES:
            assert not end.paths.get(path) and end.reasons["get_other_user"] + end.reasons["get_refused"] > 0, end
        end.went("bsdp")


# Where the kernel refuses process_vm_readv -------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("hidden", ["server", "client"])
def test_not_dumpable(ends, path, hidden):
    """Nothing is fetched from a process that is not dumpable; it fetches from the other one all the same."""
    server, client = as_user(NOBODY), as_user(NOBODY)
    (server if hidden == "server" else client)["habits"] = ["undumpable"]
    told = dict(zip(["server", "client"], ends.exchange(server, client)))
    away = told.pop(hidden)
    if path in SOURCES:
        away.only_ring("get_refused")
    away.went("bsdp")
    told.popitem()[1].went(path)


@needs_root
def test_program_that_takes_no_library(ends, bench, guest):
    """A setgid program is started without what LD_PRELOAD names: TCP, and the other end met nobody."""
    program = bench.new_directory("setgid") / "guest"
    shutil.copy(guest, program)
    os.chown(program, 0, DAEMON)
    program.chmod(0o2755)
    server, client = ends.exchange(as_user(NOBODY) | {"program": program, "options": ["--anyway"]}, as_user(NOBODY))
    if server.has_library:
        missing("this file system does not know setgid")
    assert client.has_library and client.only_tcp()


# Namespaces ------------------------------------------------------------------------------------------------------------


class Namespaces:
    """A process that keeps namespaces alive; `enter` is what others are started with in order to be in them."""

    FLAGS = {"--user": "-U", "--net": "-n", "--pid": "-p", "--mount": "-m", "--ipc": "-i"}

    def __init__(self, bench, *kinds, inside=None, setup="true"):
        within = inside.enter if inside else []
        self.process = subprocess.Popen([*within, need("unshare"), *kinds, "sh", "-c", f"{setup} && echo there && exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env=environment(), start_new_session=True)
        bench.stack.callback(self.end)
        said = self.process.stdout.readline()
        if said != b"there\n":
            missing(f"no namespaces {kinds} here: {said.decode()}")
        self.pid = self.process.pid
        if "--fork" in kinds:
            self.pid = int(pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])
        self.kinds = {*kinds, *(inside.kinds if inside else [])}
        self.enter = [need("nsenter"), f"-t{self.pid}", *(flag for kind, flag in self.FLAGS.items() if kind in self.kinds)]
        if "--user" in self.kinds:
            self.enter.append("--preserve-credentials")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def test_both_ends_in_a_container(ends, path, bench):
    """The namespaces of a container, and no privilege outside."""
    container = Namespaces(bench, "--user", "--map-root-user", "--pid", "--net", "--mount", "--ipc", "--fork", "--mount-proc",
                           setup="ip link set lo up")
    inside = {"within": container.enter}
    for end in ends.exchange(inside, inside):
        end.went(path)


@needs_root
@pytest.mark.parametrize("inner", ["server", "client"])
def test_pid_namespace(ends, path, bench, inner):
    """Who is outside sees the process inside, but not the other way round."""
    within = {"within": Namespaces(bench, "--pid", "--mount", "--fork", "--mount-proc").enter}
    server, client = ends.exchange(*[within, {}] if inner == "server" else [{}, within])
    inside, outside = (server, client) if inner == "server" else (client, server)
    inside.went(path)
    if path in SOURCES:
        outside.only_ring("get_unseen")
    outside.went("bsdp" if path in SOURCES else path)


@pytest.mark.parametrize("inner", ["server", "client"])
def test_user_namespace(ends, path, bench, inner):
    """Whoever made a user namespace may read what runs in it; it has no such right outside."""
    within = {"within": Namespaces(bench, "--user", "--map-root-user").enter}
    server, client = ends.exchange(*[within, {}] if inner == "server" else [{}, within])
    inside, outside = (server, client) if inner == "server" else (client, server)
    inside.went(path)
    if path in SOURCES:
        outside.only_ring("get_refused")
    outside.went("bsdp" if path in SOURCES else path)


def test_two_networks(ends, bench):
    """Two hosts, as far as the programs can tell: TCP over the wire between them."""
    need("ip")
    one = Namespaces(bench, "--user", "--map-root-user", "--net")
    other = Namespaces(bench, "--net", inside=one)
    for command in [f"link add left type veth peer name right netns {other.pid}", "addr add 10.0.0.1/24 dev left",
                    "link set left up"]:
        subprocess.run([*one.enter, "ip", *command.split()], check=True)
    for command in ["addr add 10.0.0.2/24 dev right", "link set right up"]:
        subprocess.run([*other.enter, "ip", *command.split()], check=True)
    for end in ends.exchange({"within": one.enter}, {"within": other.enter}, "10.0.0.1"):
        assert end.only_tcp().reasons["remote"] > 0, end


# Sandboxes -------------------------------------------------------------------------------------------------------------


SANDBOXES = ["filter", "filter-rw", "filter-whole", "strict"]


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("inner", ["server", "client"])
def test_sandbox_in_the_middle(ends, path, inner, sandbox):
    """A call that the filter does not allow kills. What was unread in the ring then comes all the same; the rest is TCP's."""
    habits = {"habits": [sandbox]}
    for end in ends.exchange(*[habits, {}] if inner == "server" else [{}, habits]):
        assert end.counters["ring_receive_bytes"] > 1_000_000 and end.paths["copy"] > 4_000_000, end
        assert end.paths.get(path, 0) > 1_000_000, end


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("other", sorted(set(PATHS) - set(RINGS)))
def test_sandbox_on_other_paths(bench, guest, other, sandbox):
    habits = {"habits": [sandbox]}
    for end in Ends(bench, guest, other).exchange(habits, habits):
        assert end.has_library == (other != "tcp"), end


# Neighbours in the process -----------------------------------------------------------------------------------------------


def jemalloc():
    libraries = subprocess.run([need("ldconfig"), "-p"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"libjemalloc\.so\.2 .*=> (\S+)", libraries)
    return found[1] if found else missing("no libjemalloc.so.2 on this machine (Debian: libjemalloc2)")


@pytest.mark.parametrize("order", ["before", "behind"])
def test_jemalloc(ends, path, order):
    """Its memory comes and goes by calls of its own; `zc run` puts the library before what is preloaded already."""
    both = [str(ends.bench.zc.parents[2] / "preload/libzc.so"), jemalloc()]
    preload = ":".join(both if order == "behind" else reversed(both))
    surroundings = {"preload": preload}
    for end in ends.exchange(surroundings, surroundings):
        end.went(path)
