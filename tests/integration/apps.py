# SPDX-License-Identifier: MIT
"""What the tests of real applications share: programs run with and without the library, and what it says it moved.

A Bench starts servers and runs clients, each natively (path None) or under `zc run -p PATH`. Each start has a directory of
statistics of its own, so that a test can prove that the bytes which it verified really took the path that it asked for.
"""
import contextlib
import ctypes
import itertools
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import sys

import pytest

PROGRAMS = pathlib.Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))
from address import ADDRESS  # noqa: E402,F401: the tests share it with the programs
from bodies import write_bodies  # noqa: E402: as well

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("ZC_BUILD", ROOT / "build" / "dev"))
PATHS = re.findall(r'^ZC_PATH\(\w+, "(\w+)"', (ROOT / "common/paths.def").read_text(), re.MULTILINE)
# Paths that a program can take alone; all others are lanes, which need the library at both ends.
ALONE = {"copy", "sg", "zerocopy"}
MODES = ["server", "client", "both"]
IS_ROOT = os.geteuid() == 0
# Where all of it runs between two hosts, in the lab (tests/vm/programs/apps): settings of the library, and how many times slower the
# place is.
SETTINGS = dict(setting.split("=", 1) for setting in os.environ.get("APPS_SETTINGS", "").split())
SLOWNESS = int(os.environ.get("APPS_SLOWNESS", "1"))
BETWEEN_HOSTS = ADDRESS != "127.0.0.1"
SUBREAPER = 36
# The path that is asked for shall be taken although the kernel copies on loopback, and although a busy machine makes
# neighbouring sends come late.
INSISTENCE = {
    "zerocopy": {"ZC_ZEROCOPY_KEEP": "yes"},
    "sg": {"ZC_SG_HOLD_US": "4000"},
    "zsdp": {"ZC_SOURCE_MIN": "4096"},
    "azsdp": {"ZC_SOURCE_MIN": "4096", "ZC_ZEROCOPY_KEEP": "yes"},
}


def need(*programs):
    """Returns the programs' full names; without one of them the test is skipped, or fails where all must be there."""
    found = []
    for program in programs:
        name = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if not name:
            missing(f"no {program} on this machine (see scripts/deps)")
        found.append(name)
    return found[0] if len(found) == 1 else found


def missing(why):
    if os.environ.get("TESTS_REQUIRE_ALL") == "1":
        pytest.fail(why)
    pytest.skip(why)


def compiled(directory, name):
    """Makes programs/NAME.c in a directory, so that each user can execute it."""
    made = directory / name
    subprocess.run([os.environ.get("ZC_CC", "cc"), "-O2", "-pthread", "-o", made, PROGRAMS / f"{name}.c"], check=True)
    made.chmod(0o755)
    return made


def environment(**more):
    """The environment without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ZC_")}
    kept.pop("LD_PRELOAD", None)
    return kept | SETTINGS | more


def free_port():
    """A port that nobody listens on, at whatever address, outside the range from which the kernel takes the ports of clients."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            if not is_listening(port):  # by IPv6 alone
                return port


def is_listening(port):
    listening = re.compile(rf"^ *\d+: \w+:{port:04X} \w+:0000 0A ", re.MULTILINE)
    return any(listening.search(pathlib.Path(f"/proc/net/{family}").read_text()) for family in ["tcp", "tcp6"])


def adopt_orphans():
    """Makes daemons that lose their parent our children, so that end_orphans finds them."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_orphans():
    """Kills every process that is still below us."""
    while True:
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            return
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


class Moved:
    """Bytes by path of all processes that left statistics in a directory."""

    def __init__(self, bench, directory):
        files = sorted(directory.glob("zc-*.stats")) if directory else []
        self.processes = len(files)
        self.paths = {}
        self.reasons = {}
        self.received = self.rdma_meetings = 0
        for file in files:
            got = subprocess.run([bench.zc, "stat", "--json", file], capture_output=True, text=True, check=False,
                                 env=environment())
            assert got.returncode == 0, got.stderr
            self.add(json.loads(got.stdout)["processes"][0]["all"])

    def add(self, counted):
        self.received += counted["counters"]["receive_bytes"]
        self.rdma_meetings += counted["counters"]["rdma_meetings"]
        for path, numbers in counted["paths"].items():
            self.paths[path] = self.paths.get(path, 0) + numbers["bytes"]
        for reason, times in counted["reasons"].items():
            self.reasons[reason] = self.reasons.get(reason, 0) + times

    def total(self):
        return sum(self.paths.values())

    def since(self, before):
        """What moved after `before` was taken of the same processes."""
        self.received -= before.received
        self.rdma_meetings -= before.rdma_meetings
        self.paths = {path: count - before.paths.get(path, 0) for path, count in self.paths.items()}
        self.reasons = {reason: count - before.reasons.get(reason, 0) for reason, count in self.reasons.items()}
        return self

    def __repr__(self):
        reasons = {reason: times for reason, times in self.reasons.items() if times}
        return (f"{self.processes} processes sent {self.paths}, received {self.received}, met {self.rdma_meetings} peers by RDMA, "
                f"because of {reasons}")

    def check(self, path, sent, takes=(), lane=False):
        """Fails unless `sent` bytes were sent on `path`.

        takes: the paths among ALONE that this side must have taken at least once when asked, since its sends suit them.
        lane: whether the other end is under the library too, so that a lane must have been taken when asked.
        """
        if path is None:
            return
        if path == "tcp":
            assert self.processes == 0, f"tcp leaves connections alone, but: {self}"
            return
        assert self.processes, f"no process left statistics: the library was not there (path {path})"
        assert self.total() >= sent, f"{sent} bytes were sent, but {self}"
        if path == "copy":
            assert self.paths["copy"] == self.total(), f"copy was asked for, but {self}"
        elif path in ALONE:
            assert path not in takes or self.paths[path] > 0, f"{path} was asked for, but {self}"
        elif path != "auto" and lane:
            assert any(count for name, count in self.paths.items() if name not in ALONE), f"no lane was taken: {self}"
            assert self.rdma_meetings or not BETWEEN_HOSTS, f"nothing went over RDMA: {self}"


def process_counters(bench, run):
    """What the one process that left statistics counted for itself."""
    file, = run.directory.glob("zc-*.stats")
    got = subprocess.run([bench.zc, "stat", "--json", file], capture_output=True, check=True, env=environment())
    return json.loads(got.stdout)["processes"][0]["process"]


class Run:
    """A program started by a Bench: its process, its path and its statistics."""

    def __init__(self, bench, command, path, directory, **keywords):
        self.bench, self.path, self.directory = bench, path, directory
        self.before = None
        more = dict(keywords.pop("env", {}))
        if path is not None:
            command = [bench.zc, "run", "-p", path, "--", *command]
            more = {"ZC_STATS_DIR": str(directory)} | INSISTENCE.get(path, {}) | more
        self.process = subprocess.Popen([str(word) for word in command], env=environment(**more),
                                        start_new_session=True, **keywords)
        self.pidfd = os.pidfd_open(self.process.pid)

    def ended(self, milliseconds):
        """Waits for the end of the program, but no longer than this."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def await_port(self, port, seconds=60):
        """Returns whether the program listens; False when it ended instead. A server sees nothing of this: some serve
        whoever comes first, and a connection would count."""
        for _ in range(seconds * SLOWNESS * 50):
            if is_listening(port):
                return not self.ended(0)
            if self.ended(20):
                return False
        raise TimeoutError(f"{self.process.args} does not listen")

    def moved(self):
        """What this program sent since the last mark()."""
        now = Moved(self.bench, self.directory)
        return now.since(self.before) if self.before else now

    def mark(self):
        self.before = Moved(self.bench, self.directory)

    def check(self, sent, **expected):
        """What a call has sent is counted when it returns, and that may be after the peer has everything."""
        until = time.monotonic() + 10 * SLOWNESS
        moved = self.moved()
        while self.path not in (None, "tcp") and moved.total() < sent and time.monotonic() < until:
            time.sleep(0.02)
            moved = self.moved()
        moved.check(self.path, sent, **expected)

    def has_library(self):
        return "libzc.so" in pathlib.Path(f"/proc/{self.process.pid}/maps").read_text()

    def end(self, kind=signal.SIGTERM):
        """Asks the program to end, insists after a while, and takes along what it started in its session."""
        if self.pidfd is None:
            return self.process.returncode
        self.process.send_signal(kind)
        clean = self.ended(10000 * SLOWNESS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.pidfd)
        self.pidfd = None
        return self.process.returncode if clean else None


class Ordered:
    """A program that does what it is told on its standard input, one thing after the other, says so in lines, and ends when it
    can be told nothing more."""

    patience_s = 60 * SLOWNESS

    def __init__(self, bench, command, path, **keywords):
        self.run = Run(bench, command, path, bench.new_directory("stats"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                       bufsize=0, **keywords)
        bench.stack.callback(self.run.end, signal.SIGKILL)
        self.heard = b""

    def order(self, *words):
        self.run.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    def hear(self):
        """Returns the next line that it says."""
        out = self.run.process.stdout
        while b"\n" not in self.heard:
            ready = select.select([out], [], [], self.patience_s)[0]
            assert ready, f"{self.run.process.args} waits: {where(self.run.process.pid)}"
            got = os.read(out.fileno(), 4096)
            assert got, f"{self.run.process.args} has ended: {self.run.process.wait()}"
            self.heard += got
        line, self.heard = self.heard.split(b"\n", 1)
        return line.decode()

    def end(self):
        """Returns what it has moved."""
        self.run.process.stdin.close()
        assert self.run.ended(self.patience_s * 1000), f"does not end: {where(self.run.process.pid)}"
        self.run.end()
        assert self.run.process.returncode == 0
        return self.run.moved()


class Bench:
    """Starts programs; everything that it started has ended when it is closed."""

    def __init__(self, directory, zc):
        self.directory, self.zc = directory, zc
        self.stack = contextlib.ExitStack()
        self.numbers = itertools.count(1)

    def new_directory(self, name):
        """A new directory that each user may write to."""
        made = self.directory / f"{name}-{next(self.numbers)}"
        made.mkdir()
        made.chmod(0o777)
        return made

    def bodies(self):
        """The directory of the files that web servers hand out."""
        directory = self.directory / "bodies"
        if not directory.exists():
            directory.mkdir(0o755)
            write_bodies(directory)
        return directory

    def start(self, command, path=None, port=None, quit_signal=signal.SIGTERM, **keywords):
        """Starts a server and returns it once it listens. command(port) makes its command line; port None: a free one."""
        for _ in range(5):
            chosen = port or free_port()
            log = self.new_directory("log") / "output"
            with log.open("wb") as output:
                run = Run(self, command(chosen), path, self.new_directory("stats"), stdin=subprocess.DEVNULL,
                          stdout=output, stderr=subprocess.STDOUT, **keywords)
            self.stack.callback(run.end, quit_signal)
            run.port, run.log = chosen, log
            if run.await_port(chosen):
                assert run.has_library() == (path is not None), f"ended: {run.ended(0)}; {where(run.process.pid)}"
                return run
            text = log.read_text(errors="replace")
            if "in use" not in text:
                break
        raise AssertionError(f"{command(chosen)} did not start: {text}")

    def run(self, command, path=None, timeout=120, status=0, **keywords):
        """Runs a client to its end and returns it, with what it wrote in .output and .errors (bytes)."""
        given = keywords.pop("input", None)
        run = Run(self, command, path, self.new_directory("stats"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE, **keywords)
        try:
            run.output, run.errors = run.process.communicate(given, timeout * SLOWNESS)
        except subprocess.TimeoutExpired:
            stuck = " ".join(map(str, command))
            raise AssertionError(f"not done after {timeout * SLOWNESS} s: {stuck}: {where(run.process.pid)}") from None
        finally:
            run.end()
        assert status is None or run.process.returncode == status, (
            f"{command}: status {run.process.returncode}\n{run.output[-2000:]}\n{run.errors[-4000:].decode(errors='replace')}\n"
            f"{self.told()}")
        return run

    def told(self):
        """What the servers have said last."""
        logs = sorted(self.directory.glob("log-*/output"))
        return "\n".join(f"{log}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def await_success(self, command, seconds=60):
        """Runs a command natively again and again until it succeeds."""
        last = None
        for _ in range(seconds * SLOWNESS * 20):
            last = self.run(command, status=None)
            if last.process.returncode == 0:
                return
            select.select([], [], [], 0.02)
        raise AssertionError(f"{command} does not succeed: {last.errors.decode()}")

    def python(self, program, *arguments, **keywords):
        """Runs one of programs/*.py and returns it, with the object that it printed as JSON in .told."""
        done = self.run([sys.executable, PROGRAMS / program, *arguments], **keywords)
        done.told = json.loads(done.output)
        return done


def where(pid):
    """The system calls in which the threads of a process are."""
    with contextlib.suppress(OSError):
        return [(task / "syscall").read_text().strip() for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return []


class Pairing:
    """A server and a mode: which ends are under the library, for one test."""

    def __init__(self, bench, path, mode, servers):
        self.bench, self.path, self.mode = bench, path, mode
        self.server = servers(path if mode != "client" else None)
        self.client_path = path if mode != "server" else None
        self.lane = mode == "both"
        self.server.mark()

    def python(self, program, *arguments, **keywords):
        return self.bench.python(program, *arguments, path=self.client_path, **self._patient(keywords))

    def run(self, command, **keywords):
        return self.bench.run(command, path=self.client_path, **self._patient(keywords))

    def _patient(self, keywords):
        """Between hosts a client that has one connection waits until it is RDMA's, if it may become that: the loader is slow there."""
        wait = {"ZC_RDMA_WAIT_MS": "10000" if self.lane else "20"} if BETWEEN_HOSTS else {}
        return keywords | {"env": wait | keywords.get("env", {})}

    def check(self, client, sent, received, client_takes=(), server_takes=(), lane=True):
        """Proves the paths: the client sent `sent` bytes to the server and received `received`.

        lane: False for connections that no lane is to be had for, since a program inherits them over exec, or ends at once.
        """
        lane &= self.lane
        client.check(sent, takes=client_takes, lane=lane)
        self.server.check(received, takes=server_takes, lane=lane)
