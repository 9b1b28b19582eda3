# SPDX-License-Identifier: MIT
"""
C: what single calls cost. Each measurement is a small program (bench/) that is run on its stacks in turn, so that what the machine
does meanwhile meets all of them alike; instructions are counted by callgrind, which no other load disturbs.
"""
import json
import re
import shutil

from experiments import matrix, stacks, where
from experiments.processes import ProgramFailed, output, with_environment

KEY = ["measure", "subject", "bytes", "burst", "threads", "stack", "repeat"]
COLUMNS = [*KEY, "status", "error", "what", "unit", "value"]
LIMIT_S = 600

CALLS = ["read-zero", "write-null", "tcp-receive-nothing", "tcp-send-receive"]
COPY = stacks.Stack("copy", "copy")
TCP = stacks.Stack(stacks.PLAIN)
WHERE_REPEATS = 3
WHERE_LONGER = 10  # than other runs: enough samples


class Costs:
    """The list of cost measurements, and how each is made."""

    def __init__(self, runner, profile, names):
        self.runner = runner
        self.files = runner.files
        self.size = profile.costs
        self.streams = [point["bytes"] for point in profile.paper["loopback"] if point["mode"] == "stream"]
        if profile.apps:
            self.streams.append(128 << 10)  # what iperf3 sends
        self.paths = names
        self.scratch = runner.scratch
        self.shapes = [(shape, profile.repetitions) for shape in profile.shapes.get("loopback", [])]

    def list(self):
        """What is to be measured, in order: (key, function that measures it)."""
        for repeat in range(self.size["repeats"]):
            pair = [TCP, COPY] if repeat % 2 == 0 else [COPY, TCP]
            for kind in CALLS:
                for stack in pair:
                    yield self._key("call", kind, stack, repeat), self.call
            for stack in self._turned([stacks.Stack(name, name) for name in self.paths], repeat):
                yield self._key("ping-pong", "half round trip", stack, repeat, size=64), self.ping_pong
            yield self._key("bare copies", "ping-pong", stacks.Stack("none"), repeat, 64), self.bare_copies
            for size in self.streams:
                yield self._key("bare copies", "stream", stacks.Stack("none"), repeat, size), self.bare_copies
        for repeat in range(self.size["steps"]):
            for size in self.size["step_bytes"]:
                yield self._key("step", "one message", stacks.Stack("none"), repeat, size), self.step
        if not why_no_callgrind():
            for kind in CALLS:
                for stack in (TCP, COPY):
                    yield self._key("instructions", kind, stack, 0), self.instructions
        if not where.why_no_samples(self.scratch):
            yield from self._sampled()
        for repeat in range(3):
            yield self._key("start", "process", stacks.Stack("both", "copy"), repeat), self.start
            for size, burst in self.size["sends"]:
                for stack in self._turned(self._senders(), repeat):
                    yield self._key("send", "call", stack, repeat, size, burst), self.send
            for guard in ("uffd", "mprotect"):
                for size in self.size["guard_bytes"]:
                    for threads in (1, 2):
                        yield self._key("guard", guard, stacks.Stack("none"), repeat, size, threads=threads), self.guard

    def _sampled(self):
        """Where time goes, at the points of the goals that ask for it: streams by the ring, and many writes on the paths that gather."""
        for repeat in range(WHERE_REPEATS):
            for size in self.streams if "bsdp" in self.paths else []:
                yield self._key("where", "stream", stacks.Stack("bsdp", "bsdp"), repeat, size), self.where_stream
            for (nbufs, bufsize), repetitions in self.shapes:
                for path in [path for path in ("sg", "auto") if path in self.paths]:
                    key = self._key("where", f"W type 1 {nbufs}×{bufsize}", stacks.Stack(path, path), repeat)
                    yield key | {"shape": (nbufs, bufsize, repetitions)}, self.where_writes

    def _senders(self):
        senders = [stacks.Stack(name, name) for name in self.paths if name != "zerocopy"]
        return senders + (stacks.ZEROCOPY_KEPT if "zerocopy" in self.paths else [])

    @staticmethod
    def _turned(items, repeat):
        turn = repeat % len(items)
        return items[turn:] + items[:turn]

    @staticmethod
    def _key(measure, subject, stack, repeat, size="", burst="", threads=""):
        return {"measure": measure, "subject": subject, "bytes": size, "burst": burst, "threads": threads, "stack": stack.name,
                "stack_of": stack, "repeat": repeat}

    def _run(self, stack, command):
        library = self.files["library"]
        return output(with_environment(stack.environment(library), [str(word) for word in command]), self.scratch / "errors", LIMIT_S)

    def call(self, key):
        """The best of several rounds: whatever else runs can only add to it."""
        calls, rounds = self.size["calls"], self.size["rounds"]
        if key["subject"] == "tcp-send-receive":  # long calls: as many rounds as fit into the time of the short ones
            calls, rounds = max(1, calls // 100), 4 * rounds
        text = self._run(key["stack_of"], [self.files["calls"], key["subject"], calls, rounds])
        return {"call": ("ns", min(json.loads(text)["ns"]))}

    def ping_pong(self, key):
        row = self.runner.run(ping_pong_point(self.size["seconds"]), key["stack_of"], False)
        if row["status"] != "ok":
            raise ProgramFailed(row["error"])
        return {"mean": ("us", row["mean_us"]), "p50": ("us", row["p50_us"])}

    def bare_copies(self, key):
        """What the engine's copies take by themselves, through a ring as large as its own."""
        report = json.loads(self._run(key["stack_of"], [
            self.files["ring"], key["subject"], key["bytes"], stacks.ring_bytes(), max(1, round(1000 * self.size["seconds"]))]))
        if key["subject"] == "stream":
            return {"speed": ("Gbit/s", report["gbit_s"])}
        return {name: ("us", report["half_round_trip_ns"][name] / 1000) for name in ("mean", "p50")}

    def instructions(self, key):
        """What twice the calls take more than the calls once, for one: start and end fall out."""
        counts = []
        for calls in (self.size["instructions"], 2 * self.size["instructions"]):
            out = self.scratch / "callgrind"
            valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--quiet"]
            self._run(key["stack_of"], [*valgrind, self.files["calls"], key["subject"], calls, 1])
            found = re.search(r"^(?:summary|totals): (\d+)", out.read_text(encoding="utf-8"), re.MULTILINE)
            counts.append(int(found.group(1)))
        return {"call": ("instructions", (counts[1] - counts[0]) / self.size["instructions"])}

    def where_stream(self, key):
        point = matrix.Point("S", "loopback", (("mode", "stream"), ("bytes", key["bytes"])), (), WHERE_LONGER * self.size["seconds"])
        return self._where(point, key)

    def where_writes(self, key):
        nbufs, bufsize, repetitions = key["shape"]
        parameters = {"mode": "1", "nbufs": nbufs, "bufsize": bufsize, "repetitions": WHERE_LONGER * repetitions}
        return self._where(matrix.Point("W", "loopback", tuple(parameters.items()), (), self.size["seconds"]), key,
                           WHERE_LONGER * repetitions * nbufs)

    def _where(self, point, key, messages=None):
        row = where.SampledRunner(self.runner).run(point, key["stack_of"], False)
        if row["status"] != "ok":
            raise ProgramFailed(row["error"])
        return where.time_of(row, messages or row["messages"])

    def start(self, _key):
        report = json.loads(output([str(word) for word in (
            self.files["starts"], self.files["library"], self.size["starts"], self.files["nothing"])], self.scratch / "errors", LIMIT_S))
        return {"plain": ("ms", report["plain_ms"]), "preloaded": ("ms", report["preloaded_ms"])}

    def send(self, key):
        text = self._run(key["stack_of"], [self.files["sends"], key["bytes"], key["burst"], self.size["send_rounds"]])
        report = json.loads(text)["ns"]
        return {"mean": ("ns", report["mean"]), "p50": ("ns", report["p50"])}

    def step(self, key):
        """What moving one message takes by each way, in the best round, for both ends spin; and what its announcement takes of that."""
        messages = max(16, (8 << 20) // key["bytes"])
        report = json.loads(self._run(key["stack_of"], [self.files["gets"], key["bytes"], messages, self.size["step_rounds"],
                                                        stacks.ring_bytes()]))
        ways = {way: ("ns", report[way]["best_ns"]) for way in ("ring", "get", "gets", "kept")}
        return {**ways, "announce": ("ns", report["announce_ns"] - report["clock_ns"])}

    def guard(self, key):
        text = self._run(key["stack_of"], [self.files["guards"], key["subject"], key["bytes"], key["threads"], self.size["guard_rounds"]])
        report = json.loads(text)
        if not report["available"]:
            raise ProgramFailed(f"the {key['subject']} guard is not to be had on this machine")
        return {step: ("ns", value) for step, value in report["ns"].items()}


def ping_pong_point(seconds):
    return matrix.Point("S", "loopback", (("mode", "ping-pong"), ("bytes", 64)), (), seconds)


def measure(key, function):
    """The rows of one measurement; one row that tells why where it fails."""
    shown = {name: key[name] for name in KEY}
    try:
        values = function(key)
    except (ProgramFailed, ValueError, KeyError, AttributeError, OSError) as error:
        return [{**shown, "status": "failed", "error": f"{type(error).__name__}: {error}"}]
    return [
        {**shown, "status": "ok", "what": what, "unit": unit, "value": round(value, 4)} for what, (unit, value) in values.items()
    ]


def why_no_callgrind():
    return None if shutil.which("valgrind") else "valgrind is not installed: instructions are not counted"
