# SPDX-License-Identifier: MIT
"""
F: a verified transfer by eight threads whose RDMA breaks in its middle and is mended a moment later: how fast it was before, meanwhile and
afterwards, and how long nothing came. What comes is counted where the receiver's host has it, at its interface: headers included, by
whatever way it came.
"""
import json
import pathlib
import re
import subprocess
import time

from experiments import network, stacks
from experiments.processes import Program, ProgramFailed, with_environment

KEY = ["break", "stack", "repeat"]
COLUMNS = [*KEY, "status", "error", "before_gbit_s", "meanwhile_gbit_s", "after_gbit_s", "pause_s", "rdma_before", "rdma_after",
           "rdma_meetings", "moved_bytes", "verified", "break_s", "mend_s", "sample_s", "samples"]
STACKS = [stacks.PLAIN, "bsdp", "azsdp"]
THREADS, MESSAGE_BYTES = 8, 64 * 1024
SAMPLE_S = 0.1
BEFORE_S, AFTER_S, COUNTED_S = 3.0, 15.0, 2.0
START_S, LIMIT_S = 30, 60
SPARE_S = 12.0  # that the transfer goes on behind the last sample, for a machine that is slow to break and to mend
ROUNDS_MAX = 2
PACKET_BYTES = 4096  # of RDMA, at the lab's MTU
QUIET_BYTES = 128 * 1024  # within a sample: what keeps connections alive, or is sent again in vain, is no progress
CLIENT, SERVER = network.Rdma.devices
INTERFACES = {CLIENT: "zc0", SERVER: "zc1"}
DROP = "protocol ip prio 1 flower ip_proto udp dst_port 4791 action drop"
# name: (words, what breaks it, seconds until it is mended, what mends it)
# A link is not taken down here: with as many queue pairs as the guest has processors, soft-RoCE's kernel then sends one packet again and again
# on all of them, and nothing else runs any more (docs/lab.md).
BREAKS = {
    "cable": ("nothing at all arrives at either host for three seconds",
              " && ".join(f"tc filter add dev {its} ingress matchall action drop" for its in INTERFACES.values()),
              3.0, "; ".join(f"tc filter del dev {its} ingress" for its in INTERFACES.values())),
    "drop": ("RDMA's packets to the server are dropped for five seconds",
             f"tc filter add dev {INTERFACES[SERVER]} ingress {DROP}", 5.0,
             f"tc filter del dev {INTERFACES[SERVER]} ingress"),
}


def keys(repeats):
    """Half a minute each, nearly all of it waiting: not more than two rounds."""
    return [{"break": name, "stack": stack, "repeat": repeat} for repeat in range(min(repeats, ROUNDS_MAX)) for name in BREAKS
            for stack in STACKS]


def begin(command):
    """A command of the shell that is not waited for: what comes is counted meanwhile. Before the transfer's threads, as the lab's root may."""
    return subprocess.Popen(["nice", "-n", "-20", "sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def end(command):
    _, errors = command.communicate(timeout=LIMIT_S)
    if command.returncode:
        raise ProgramFailed(f"{command.args[-1]}: {errors.strip()}")


def arrived():
    """Bytes that the receiver's interface has had."""
    return int(pathlib.Path("/sys/class/net", INTERFACES[SERVER], "statistics/rx_bytes").read_text(encoding="ascii"))


def sent_by_rdma():
    """Packets that the sender's device has sent; none while it is gone."""
    try:
        return int(pathlib.Path("/sys/class/infiniband", CLIENT, "ports/1/hw_counters/sent_pkts").read_text(encoding="ascii"))
    except OSError:
        return 0


class Watch:
    """Counts what comes, sample by sample."""

    def __init__(self):
        self.begun = time.monotonic()
        self.samples, self.packets, self.times = [], [], []
        self.last, self.last_packets = arrived(), sent_by_rdma()

    def now(self):
        return time.monotonic() - self.begun

    def until(self, end, program):
        """Samples until so many seconds have passed since the beginning, while the program runs."""
        self.as_long_as(lambda: self.now() < end, program)

    def until_ended(self, command, program):
        """Samples until a command has ended: beside a transfer that has the processors, `tc` takes seconds to do its work."""
        self.as_long_as(lambda: command.poll() is None, program)
        end(command)

    def as_long_as(self, goes_on, program):
        while goes_on():
            if program.process.poll() is not None:
                program.wait(1)
                raise ProgramFailed("ended before it was to be measured")
            time.sleep(max(0.0, self.begun + SAMPLE_S * (len(self.samples) + 1) - time.monotonic()))
            count, packets = arrived(), sent_by_rdma()
            self.samples.append(count - self.last)
            self.packets.append(max(0, packets - self.last_packets))
            self.times.append(self.now())
            self.last, self.last_packets = count, packets

    def between(self, start, end):
        """The samples that ended within these seconds: (seconds, bytes, packets)."""
        before = [0.0, *self.times]
        return [(its - before[index], self.samples[index], self.packets[index])
                for index, its in enumerate(self.times) if start < its <= end]

    def rate(self, start, end):
        """Gbit/s, and the part of it that came by RDMA."""
        found = self.between(start, end)
        count = sum(its[1] for its in found)
        if not count:
            return 0.0, 0.0
        seconds = sum(its[0] for its in found)
        return count * 8 / seconds / 1e9, min(1.0, sum(its[2] for its in found) * PACKET_BYTES / count)

    def longest_pause(self, start):
        longest = lasted = 0.0
        for seconds, count, _ in self.between(start, self.now()):
            lasted = lasted + seconds if count < QUIET_BYTES else 0.0
            longest = max(longest, lasted)
        return longest


class Failover:
    """Runs the transfers."""

    def __init__(self, files, scratch):
        self.files, self.scratch = files, pathlib.Path(scratch)

    def run(self, key):
        try:
            return {**key, "status": "ok", **self._measure(key)}
        except (ProgramFailed, OSError, ValueError, subprocess.TimeoutExpired) as error:
            return {**key, "status": "failed", "error": str(error)}

    def _environment(self, key, statistics):
        stack = stacks.Stack(key["stack"], key["stack"], stacks.BY_RDMA if key["stack"] != stacks.PLAIN else ())
        return {**stack.environment(self.files["library"]), **({"ZC_STATS_DIR": str(statistics)} if stack.is_preloaded else {})}

    def _measure(self, key):
        _, breaks, mend_after, mends = BREAKS[key["break"]]
        statistics = self.scratch / f"failover-{key['break']}-{key['stack']}-{key['repeat']}-{time.monotonic_ns()}"
        statistics.mkdir()
        environment, ends = self._environment(key, statistics), []
        tool = str(self.files["zc-ttcp"])
        length = START_S + SPARE_S
        report = statistics / "report.json"
        mended = False
        try:
            server = Program(with_environment(environment, [tool, "--receive", "--bind", network.Rdma.server_address, "--port", "0",
                                                            "--sessions", "1"]), statistics / "server", subprocess.PIPE)
            ends.append(server)
            port = re.search(r":(\d+)$", server.first_line(START_S)).group(1)
            client = Program(with_environment(environment, [
                tool, "--transmit", network.Rdma.server_address, "--port", port, "--mode", "multi-stream", "--threads", str(THREADS),
                "--bytes", str(MESSAGE_BYTES), "--verify", "--warmup", "2", "--seconds", str(BEFORE_S + mend_after + AFTER_S + SPARE_S),
                "--json", str(report)]), statistics / "client")
            ends.append(client)
            self._await_flow(client)
            watch = Watch()
            watch.until(BEFORE_S, client)
            whole = watch.now()
            watch.until_ended(begin(breaks), client)
            broken = watch.now()
            watch.until(broken + mend_after, client)
            watch.until_ended(begin(mends), client)
            healed = watch.now()
            mended = True
            watch.until(healed + AFTER_S, client)
            client.wait(length)
            server.wait(LIMIT_S)
        finally:
            if not mended:
                subprocess.run(["sh", "-c", mends], capture_output=True, check=False)
            for program in reversed(ends):
                program.end()
        return {**self._told(watch, whole, broken, healed), **self._of_the_ends(report, statistics)}

    @staticmethod
    def _await_flow(client):
        """Waits until the transfer has begun."""
        first, end = arrived(), time.monotonic() + START_S
        while arrived() - first < THREADS * MESSAGE_BYTES * 4:
            if client.process.poll() is not None or time.monotonic() > end:
                raise ProgramFailed(f"client: sends nothing: {client.last_words()}")
            time.sleep(SAMPLE_S / 2)

    @staticmethod
    def _told(watch, whole, broken, healed):
        """`whole`: when the break began to be made; `broken`, when it was there; `healed`, when it was mended."""
        before, rdma_before = watch.rate(whole - COUNTED_S, whole)
        last = watch.times[-1]
        after, rdma_after = watch.rate(last - COUNTED_S, last)
        return {
            "before_gbit_s": round(before, 4), "meanwhile_gbit_s": round(watch.rate(broken, healed)[0], 4), "after_gbit_s": round(after, 4),
            "pause_s": round(watch.longest_pause(whole), 2), "rdma_before": round(rdma_before, 2), "rdma_after": round(rdma_after, 2),
            "break_s": round(broken, 2), "mend_s": round(healed, 2), "sample_s": SAMPLE_S,
            "samples": " ".join(str(count // 1000) for count in watch.samples),
        }

    def _of_the_ends(self, report, statistics):
        told = json.loads(report.read_text(encoding="utf-8"))
        if told["verified"] is not True:
            raise ProgramFailed("the bytes were not verified")
        meetings = 0
        for file in statistics.glob("zc-*.stats"):
            done = subprocess.run([self.files["zc"], "stat", file, "--json"], capture_output=True, text=True, check=True)
            meetings += sum(its["all"]["counters"]["rdma_meetings"] for its in json.loads(done.stdout)["processes"])
        return {"moved_bytes": told["bytes"], "verified": told["verified"], "rdma_meetings": meetings}
