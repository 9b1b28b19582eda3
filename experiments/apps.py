# SPDX-License-Identifier: MIT
"""
A: unmodified programs, measured by `zc compare`: pairs of runs that take turns, each with a server and a client of their own. Before
them comes one run on each path whose payloads are verified and whose system calls and context switches are counted by perf; it is not
among the measured ones, for counting costs time. What each row says comes from the programs' own figures and from zc compare.
"""
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import subprocess

from experiments import network, stacks
from experiments.environment import ROOT
from experiments.processes import ProgramFailed, output

KEY = ["name", "path", "kind", "repeat"]
COLUMNS = [*KEY, "order", "status", "error", "value", "unit", "higher", "operation", "operations", "wall_s", "server_cpu_s",
           "client_cpu_s", "bytes", *(f"{end}_{what}" for end in ("server", "client") for what in ("system_calls", "switches")),
           "explanation"]
LIMIT_S = 600
TIMEOUT_S = 60

EVENTS = {"system_calls": "raw_syscalls:sys_enter", "switches": "context-switches"}
CHECKS = ROOT / "tests" / "integration" / "programs"
STREAM, PAIR = ["tcp", "bsdp", "auto"], ["tcp", "auto"]


@dataclasses.dataclass(frozen=True)
class App:
    name: str
    server: str
    client: str
    figure: tuple  # options of zc compare: how the figure is found
    operation: str  # what the figure counts
    operations: object  # the number of operations of a run, from its figure
    needs: tuple
    paths: tuple = tuple(PAIR)
    verify: str = ""
    network: str = network.Loopback.name

    def title(self):
        return f"A {self.network} {self.name}"

    def between_hosts(self):
        """The same between the lab's hosts: server and client name the address."""
        here, there = network.Loopback.server_address, network.Rdma.server_address
        moved = {part: getattr(self, part).replace(here, there) for part in ("server", "client", "verify")}
        return dataclasses.replace(self, network=network.Rdma.name, paths=tuple(path for path in PAIR if path in self.paths), **moved)


def rate(seconds):
    return lambda value: value * seconds


def fixed(count):
    return lambda _value: count


def exchanges(files, size, paths):
    """The ping-pongs. With busy processes beside it the mean is what counts: half of the turns may be short while the others wait."""
    program = shlex.quote(str(files["exchange"]))
    milliseconds = max(1, round(1000 * size["seconds"]))
    for how, busy, metric in (("blocking", 0, "p50"), ("epoll", 0, "p50"), ("blocking", 2, "mean"), ("epoll", 2, "mean")):
        beside = f", {busy} busy processes beside it" if busy else ""
        yield App(f"ping-pong 64 B, {how}{beside}", f"exec {program} serve {{port}} {how}",
                  f"{program} ask {{port}} {how} 64 {busy} {milliseconds}",
                  ("--metric-json", f"/half_round_trip_us/{metric}", "--bytes-json", "/bytes", "--unit", "us", "--lower"),
                  "half round trip", lambda value: milliseconds * 1000 / value, (), paths)


def iperf3(paths):
    yield App("iperf3, one stream", "iperf3 -s -1 -p {port}", "iperf3 -c 127.0.0.1 -p {port} -t 1 -J", ("--preset", "iperf3"),
              "MB", rate(125), ("iperf3",), paths)


def redis(size, paths):
    server = "redis-server --port {port} --bind 127.0.0.1 --protected-mode no --save '' --appendonly no --dir {dir}"
    bench = "redis-benchmark -h 127.0.0.1 -p {port} --csv"
    for name, options, count in (("1 client", "-c 1", 1), ("50 clients", "-c 50", 2), ("50 clients, pipelined 16", "-c 50 -P 16", 16)):
        count *= size["requests"]
        # The value that is got has to be there first.
        yield App(f"redis GET 100 B, {name}", server, f"{bench} -t set -n 1 -d 100 >&2 && {bench} -t get {options} -n {count}",
                  ("--preset", "redis-benchmark"), "request", fixed(count), ("redis-server", "redis-benchmark"), paths,
                  f"python3 {CHECKS}/redis_client.py {{port}} 127.0.0.1 >&2")


def memcached(paths):
    user = " -u root" if os.geteuid() == 0 else ""
    for name, options in (("1 client", "-c 1"), ("50 clients", "-c 50"), ("1 client, 16 keys a get", "-c 1 -d 16")):
        # One set to nine gets, as the program does it. It says what it has done in one line at its end.
        yield App(f"memcached 100 B, {name}", f"memcached{user} -p {{port}} -U 0 -l 127.0.0.1 -t 2",
                  f"memcaslap -s 127.0.0.1:{{port}} -T 1 {options} -w 1k -X 100 -t 1s",
                  ("--metric", "TPS: ([0-9]+)", "--unit", "requests/s"), "request", rate(1), ("memcached", "memcaslap"), paths,
                  f"python3 {CHECKS}/memcached_client.py {{port}} >&2")


def nginx(scratch, paths):
    bodies, sums = scratch / "bodies", scratch / "sums"
    config = f"sed 's#@dir@#{{dir}}#;s#@host@#127.0.0.1#;s#@port@#{{port}}#;s#@bodies@#{bodies}#' {ROOT}/experiments/nginx.conf >{{dir}}/nginx.conf"
    for name, body, connections in (("1 KB bodies, 16 connections kept alive", 1000, 16), ("1 MB bodies, 4 connections", 1000000, 4)):
        url = f"http://127.0.0.1:{{port}}/{body}"
        yield App(f"nginx, {name}", f"{config} && exec nginx -e stderr -p {{dir}} -c {{dir}}/nginx.conf",
                  f"wrk -t 1 -c {connections} -d 1s {url}", ("--preset", "wrk"), "request", rate(1), ("nginx", "wrk", "curl"), paths,
                  f"cd {{dir}} && curl -sS --fail -O {url} && grep ' {body}$' {sums} | sha256sum --quiet --check -")


def postgres_program(name):
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def as_postgres():
    """The server refuses to be root's."""
    return "setpriv --reuid=postgres --regid=postgres --clear-groups " if os.geteuid() == 0 else ""


def pgbench(scratch, paths):
    programs = [postgres_program(name) or name for name in ("postgres", "pgbench", "pg_isready")]
    server = (f"cd / && exec {as_postgres()}{programs[0]} -D {scratch}/postgresql -p {{port}} -c listen_addresses=127.0.0.1 "
              "-c unix_socket_directories= -c fsync=off -c shared_buffers=64MB")
    address = "-h 127.0.0.1 -p {port} -U postgres"
    # Its socket listens before it is ready to serve.
    client = (f"until {programs[2]} -q {address}; do sleep 0.05; done && "
              f"{programs[1]} -n -S -M prepared -c 1 -T 1 {address} postgres")
    yield App("pgbench, select-only, 1 client", server, client, ("--metric", "^tps = ([0-9.]+)", "--unit", "transactions/s"),
              "transaction", rate(1), tuple(programs), paths)


def apps(files, scratch, profile, wanted_paths, networks):
    """The comparisons of a profile, each on those of its paths that are wanted: on loopback, or between hosts."""
    size = profile.apps
    pair = tuple(path for path in PAIR if path in wanted_paths)
    stream = tuple(path for path in STREAM if path in wanted_paths)
    if not size:
        return []
    found = [*exchanges(files, size, pair), *iperf3(stream), *redis(size, pair), *memcached(pair), *nginx(scratch, pair),
             *pgbench(scratch, pair)]
    found = [app for app in found if size["names"] is None or app.name.startswith(size["names"])]
    return [app.between_hosts() for app in found] if networks == [network.Rdma.name] else found


def missing(app):
    """The program that is not there, or None."""
    return next((name for name in app.needs if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")), None)


class Comparisons:
    """Runs apps by zc compare; makes what they need on the first use of it."""

    def __init__(self, files, scratch):
        self.files, self.scratch = files, pathlib.Path(scratch)
        self.isolates = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
        self.counts = self._can_count()
        # Servers give up root's rights, and have to reach what is made for them.
        self.scratch.chmod(0o755)

    def _can_count(self):
        with contextlib.suppress(OSError):
            done = subprocess.run(["perf", "stat", "-e", ",".join(EVENTS.values()), "true"], capture_output=True, check=False)
            return done.returncode == 0 and b"not" not in done.stderr
        return False

    def _make_bodies(self):
        folder = self.scratch / "bodies"
        if folder.exists():
            return
        folder.mkdir()
        for size in (1000, 1000000):
            (folder / str(size)).write_bytes(os.urandom(size))
        (self.scratch / "sums").write_text(subprocess.run(
            ["sha256sum", "1000", "1000000"], cwd=folder, capture_output=True, text=True, check=True).stdout, encoding="utf-8")

    def _make_postgresql(self):
        """A database with pgbench's tables, made once: what is measured only reads it."""
        folder = self.scratch / "postgresql"
        if folder.exists():
            return
        folder.mkdir()
        sockets = self.scratch / "sockets"
        sockets.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(sockets, "postgres", "postgres")
        user = shlex.split(as_postgres())
        control = [*user, postgres_program("pg_ctl"), "-D", str(folder), "-s", "-w", "-l", "/dev/null"]
        steps = [
            [*user, postgres_program("initdb"), "-D", str(folder), "-A", "trust", "-U", "postgres", "--no-sync"],
            [*control, "-o", f"-c listen_addresses= -k {sockets} -c fsync=off", "start"],
            [postgres_program("pgbench"), "-i", "-q", "-h", str(sockets), "-U", "postgres", "postgres"],
            [*control, "-m", "fast", "stop"],
        ]
        for step in steps:
            done = subprocess.run(step, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S)
            if done.returncode:
                raise ProgramFailed(f"{step[-1]}: {done.stderr.strip()}")

    def _prepare(self, app):
        if app.name.startswith("nginx"):
            self._make_bodies()
        if app.name.startswith("pgbench"):
            self._make_postgresql()

    def _compare(self, app, repeats, server, client, more):
        told = self.scratch / "compare.json"
        told.unlink(missing_ok=True)
        command = ["env", *(f"{name}={value}" for name, value in stacks.BY_RDMA[:1] if app.network == network.Rdma.name)]
        command += [f"ZC_LIBRARY={self.files['library']}", f"PATH={os.environ['PATH']}:/usr/sbin:/sbin", str(self.files["zc"]),
                   "compare", "--quiet", "--paths", ",".join(app.paths), "--repeat", str(repeats), "--timeout", str(TIMEOUT_S),
                   "--name", app.name, "--server", server, "--client", client, "--json", str(told), *app.figure, *more]
        command += ["--isolate"] if self.isolates and app.network == network.Loopback.name else []
        try:
            output(command, self.scratch / "errors", LIMIT_S)
        except ProgramFailed:
            if not told.exists():
                raise
        return json.loads(told.read_text(encoding="utf-8"))["comparisons"][0]

    def _counted(self, end, command):
        if not self.counts:
            return command
        file = self.scratch / f"count-{end}-{{path}}"
        # perf tells its counts only if the server's end by SIGTERM is not its own too.
        return (f"exec env --ignore-signal=TERM perf stat -x , -o {file} -e {','.join(EVENTS.values())} -- "
                f"env --default-signal=TERM sh -c {shlex.quote(command)}")

    def _read_counts(self, path):
        counts = {}
        for end in ("server", "client"):
            file = self.scratch / f"count-{end}-{path}"
            for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
                fields = line.split(",")
                for name, event in EVENTS.items():
                    if len(fields) > 2 and fields[2] == event and fields[0].isdigit():
                        counts[f"{end}_{name}"] = int(fields[0])
            file.unlink(missing_ok=True)
        return counts

    def run(self, app, repeats):
        """All rows of an app: the verified and counted runs, then the measured ones."""
        try:
            if name := missing(app):
                raise ProgramFailed(f"{name} is not installed: scripts/deps experiments installs it")
            self._prepare(app)
            verify = ["--warmup", "0"] + (["--verify", app.verify] if app.verify else [])
            first = self._compare(app, 1, self._counted("server", app.server), self._counted("client", app.client), verify)
            warmup = "1" if app.network == network.Loopback.name else "0"  # which is as long as all else, emulated
            then = self._compare(app, repeats, app.server, app.client, ["--warmup", warmup])
        except (ProgramFailed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            return [{"name": app.name, "path": path, "kind": "measure", "repeat": repeat, "status": "failed", "error": str(error)}
                    for path in app.paths for repeat in range(repeats)]
        rows = [{**row, **self._read_counts(row["path"])} for row in rows_of(app, first, "verify")]
        return rows + rows_of(app, then, "measure")


def rows_of(app, comparison, kind):
    rows = []
    for path in comparison["paths"]:
        for run in path["runs"]:
            row = {"name": app.name, "path": path["path"], "kind": kind, "repeat": run["round"] - 1, "order": run["order"],
                   "unit": comparison["unit"], "higher": comparison["higher_is_better"], "operation": app.operation}
            if not run["ok"] or not run["value"]:
                rows.append({**row, "status": "failed", "error": run.get("failure", "its figure is 0: nothing was done")})
                continue
            rows.append({**row, "status": "ok", "value": run["value"], "operations": round(app.operations(run["value"])),
                         "wall_s": run["wall_s"], "server_cpu_s": run["cpu_server_s"], "client_cpu_s": run["cpu_client_s"],
                         "bytes": run["bytes"], "explanation": path["explanation"]})
    return rows


def keys(app, repeats):
    """What is there when an app is done."""
    return [(app.name, path, kind, str(repeat)) for path in app.paths
            for kind, count in (("verify", 1), ("measure", repeats)) for repeat in range(count)]
