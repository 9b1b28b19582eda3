# SPDX-License-Identifier: MIT
"""
Runs a point on a stack: a fresh server and a fresh client, so that no run inherits what another has learnt. Both ends are preloaded
alike. What is measured comes from the tool itself (JSON), from getrusage of both ends (in the JSON too), from perf where there are
counters, and from the library's statistics, which say what really took which path.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from experiments import matrix, network, perf, stacks
from experiments.processes import Program, ProgramFailed, with_environment

START_S = 20  # within which a server has to listen

ENDS = ["client", "server"]
COLUMNS = [
    "experiment", "network", *matrix.PARAMETERS, "stack", "path", "settings", "kind", "repeat", "order", "status", "error",
    "messages", "moved_bytes", "seconds", "gbit_s", "latency_of", "mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us",
    "us", "sending_us", "reads", "peer_reads", "send_call_p50_us", "cpu_s_per_gb",
    *(f"{end}_{what}" for end in ENDS for what in ("user_s", "system_s", "voluntary_switches", "involuntary_switches")),
    *(f"{end}_{event}" for end in ENDS for event in perf.EVENTS),
    "rdma_packets", "machine_cpu_s", "own_zerocopy_sends", "own_zerocopy_copied", "path_bytes", "reasons", "faults", "completions", "completions_copied", "verified",
]
KEY = ["experiment", "network", *matrix.PARAMETERS, "stack", "settings", "kind", "repeat"]


def number(value, digits=6):
    return None if value is None else round(value, digits)


class Runner:
    """Runs points; owns the networks and a directory for what programs leave behind."""

    def __init__(self, files, networks, events, scratch):
        self.files = files
        self.networks = networks
        self.events = events
        self.scratch = pathlib.Path(scratch)

    def run(self, point, stack, verify):
        """One run. Returns its row without key and provenance; what fails is told in the row."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            row = self._measure(point, stack, verify, folder)
            return {"status": "ok", **row}
        except (ProgramFailed, ValueError, KeyError, OSError) as error:
            return {"status": "failed", "error": f"{type(error).__name__ if isinstance(error, KeyError) else ''}{error}"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _program(self, point, stack, end, arguments, folder, stdout):
        preload = stack.environment(self.files["library"])
        if preload:
            preload["ZC_STATS_DIR"] = str(folder)
        command = with_environment(preload, [str(self.files[matrix.TOOLS[point.experiment]]), *arguments])
        command = self._around(end, command, folder)
        # namespaces: end 0 is the server's
        command = self.networks[point.network].inside(1 - end, command)
        return Program(command, folder / f"errors-{ENDS[end]}", stdout)

    def _around(self, end, program, folder):
        """The program with what counts or samples it in front."""
        return perf.command(self.events, folder / f"perf-{ENDS[end]}", program) if self.events else program

    def _measure(self, point, stack, verify, folder):
        its_network = self.networks[point.network]
        report = folder / "client.json"
        lasts = max(point.seconds, stack.seconds)
        limit = START_S + 20 * lasts
        programs = []
        if stack.path == stacks.RSOCKETS and not stacks.rsockets_library():
            raise ProgramFailed(f"{stacks.RSOCKETS_LIBRARY} is not installed: scripts/deps lab installs it")
        try:
            server = self._program(point, stack, 1, matrix.server_arguments(point, its_network.server_address), folder, subprocess.PIPE)
            programs.append(server)
            port = self._port(server)
            before = network.Spent()
            arguments = matrix.client_arguments(point, its_network.server_address, port, lasts) + ["--json", str(report)]
            client = self._program(point, stack, 0, arguments + (["--verify"] if verify else []), folder, subprocess.DEVNULL)
            programs.append(client)
            self._finish("client", client, limit)
            self._finish("server", server, limit)
            spent = before.since() if point.network == network.Rdma.name else {}
        finally:
            for program in reversed(programs):
                program.end()
        return {**read_report(report, point), **spent, **self._counters(folder), **self._statistics(stack, folder)}

    def _port(self, server):
        try:
            line = server.first_line(START_S)
        except ProgramFailed as failed:
            raise ProgramFailed(f"server: {failed}") from failed
        if not line.startswith("listening on "):
            raise ProgramFailed(f"server: printed '{line}' instead of where it listens")
        return int(line.rsplit(":", 1)[1])

    def _finish(self, end, program, limit):
        try:
            program.wait(limit)
        except ProgramFailed as failed:
            raise ProgramFailed(f"{end}: {failed}") from failed

    def _counters(self, folder):
        if not self.events:
            return {}
        return {
            f"{end}_{name}": count
            for end in ENDS
            for name, count in perf.read(folder / f"perf-{end}", self.events).items()
        }

    def _statistics(self, stack, folder):
        """What took which path at both ends, and the reasons, from the library's own count."""
        if not stack.is_preloaded:
            return {}
        paths, reasons, counters = {}, {}, {"faults": 0, "completions": 0, "completions_copied": 0}
        for file in sorted(folder.glob("zc-*.stats")):
            done = subprocess.run([self.files["zc"], "stat", file, "--json"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ProgramFailed(f"zc stat: {done.stderr.strip()}")
            for process in json.loads(done.stdout)["processes"]:
                add(counters, "faults", process["process"]["faults"])
                for name in ("completions", "completions_copied"):
                    add(counters, name, process["all"]["counters"][name])
                for name, path in process["all"]["paths"].items():
                    add(paths, name, path["bytes"])
                for name, count in process["all"]["reasons"].items():
                    add(reasons, name, count)
        return {"path_bytes": listing(paths), "reasons": listing(reasons), **counters}


def add(sums, name, count):
    sums[name] = sums.get(name, 0) + count


def listing(counts):
    return " ".join(f"{name}={count}" for name, count in counts.items() if count)


def read_report(file, point):
    """The columns that come from the client's JSON."""
    report = json.loads(file.read_text(encoding="utf-8"))
    latency = report["latency_us"] or {}
    peer_latency = report["peer_latency_us"] or {}
    row = {
        "messages": report["messages"], "moved_bytes": report["bytes"], "seconds": number(report["seconds"]),
        "gbit_s": number(report["gbit_s"]), "latency_of": report["latency_of"], "reads": report["reads"],
        "peer_reads": report["peer_reads"], "verified": report["verified"],
        "own_zerocopy_sends": report["peer_zerocopy_sends"], "own_zerocopy_copied": report["peer_zerocopy_copied"],
        **{f"{name}_us": number(latency.get(name), 3) for name in ("mean", "p50", "p90", "p99", "p999", "max")},
    }
    if report["peer_latency_of"] == "send_call":
        row["send_call_p50_us"] = number(peer_latency.get("p50"), 3)
    if point.experiment == "W":
        (run,) = report["runs"]
        row.update(us=number(run["us"], 1), sending_us=number(run["sending_us"], 1), peer_reads=run["reads"],
                   gbit_s=number(run["gbit_s"]))
    total = 0.0
    for end, usage in zip(ENDS, (report["cpu"], report["peer_cpu"])):
        for name in ("user_s", "system_s", "voluntary_switches", "involuntary_switches"):
            row[f"{end}_{name}"] = usage[name]
        total += usage["user_s"] + usage["system_s"]
    if report["bytes"]:
        row["cpu_s_per_gb"] = number(total / (report["bytes"] / 1e9))
    return row


def runs_of(point, repeats):
    """The runs of a point in order: all stacks once with every byte verified, then `repeats` rounds, each beginning with another."""
    stacks = list(point.stacks)
    runs = [(stack, "verify", 0) for stack in stacks if stack.name != "tcp-again"]
    for repeat in range(repeats):
        turn = repeat % len(stacks)
        runs += [(stack, "measure", repeat) for stack in stacks[turn:] + stacks[:turn]]
    return [{"stack": stack, "kind": kind, "repeat": repeat, "order": order} for order, (stack, kind, repeat) in enumerate(runs)]


def row_key(point, run):
    return {
        **point.row(), "stack": run["stack"].name, "path": run["stack"].path, "settings": run["stack"].settings_text(),
        "kind": run["kind"], "repeat": run["repeat"], "order": run["order"],
    }


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def scratch_directory():
    """Where programs leave their files for the length of a run: in memory where that is to be had."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="zc-experiments-", dir=place)
