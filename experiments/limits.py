# SPDX-License-Identifier: MIT
"""
L: what RDMA gives between the same two hosts without zc: perftest's programs, which know of no socket, and rdma-core's rstream, whose
messages go by rsockets' own calls. They are run in rounds between the other runs. CPU time is that of both ends, and the machine's; what
their start takes of it is measured by itself, with few messages.
"""
import os
import pathlib
import re
import subprocess
import time

from experiments import network
from experiments.processes import Program, ProgramFailed

KEY = ["tool", "what", "bytes", "repeat"]
COLUMNS = [*KEY, "status", "error", "unit", "value", "moved_bytes", "cpu_s", "machine_cpu_s", "rdma_packets"]
LIMIT_S = 30
POLL_S = 0.02
PORT = 18515  # perftest's and, where it is told so, rstream's

# tool: (its options, what it measures). Waiting for completions by events, where the tool can: who polls on every processor of a small
# guest keeps soft-RoCE itself from running.
PERFTEST = {
    "ib_write_bw": ((), "speed"),
    "ib_read_bw": (("-e",), "speed"),
    "ib_write_lat": ((), "latency"),
    "ib_send_lat": (("-e",), "latency"),
}
UNITS = {"speed": "Gbit/s", "latency": "us", "start": ""}
START_BYTES, START_MESSAGES = 64, 5


def keys(size, repeats):
    """What there is to be measured, round by round."""
    wanted = [(tool, what) for tool, (_, what) in PERFTEST.items()] + [("rstream", "speed"), ("rstream", "latency")]
    sizes = {"speed": size["speeds"], "latency": size["latencies"], "start": [START_BYTES]}
    wanted += [(tool, "start") for tool in [*PERFTEST, "rstream"]]
    return [{"tool": tool, "what": what, "bytes": count, "repeat": repeat} for repeat in range(repeats)
            for tool, what in wanted for count in sizes[what]]


def gid_index(device, address):
    """The index of the device's address: the first one is link-local, and not the peer's to reach."""
    wanted = "".join(f"{int(part):02x}" for part in address.split("."))
    folder = pathlib.Path("/sys/class/infiniband", device, "ports/1/gids")
    for file in sorted(folder.iterdir(), key=lambda its: int(its.name)):
        if file.read_text(encoding="ascii").strip().replace(":", "") == f"{'0' * 20}ffff{wanted}":
            return int(file.name)
    raise ProgramFailed(f"{device} has no address {address}")


def listens(port):
    """Whether somebody does: by TCP, by which perftest's ends find each other, or by RDMA."""
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(file).read_text(encoding="ascii").splitlines():
            if re.match(rf"\s*\d+: \w+:{port:04X} \w+:0000 0A", line):
                return True
    shown = subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, text=True, check=False).stdout
    return re.search(rf"state LISTEN .*:{port}\b", shown) is not None


def await_listener(server):
    end = time.monotonic() + LIMIT_S
    while not listens(PORT):
        if server.process.poll() is not None or time.monotonic() > end:
            raise ProgramFailed(f"server: does not listen: {server.last_words()}")
        time.sleep(POLL_S)  # a listener has no event of its own


def messages(size, what, count):
    if what == "start":
        return START_MESSAGES
    return size["exchanges"] if what == "latency" else max(16, min(size["messages"], size["bytes"] // count))


def commands(key, size):
    """The command lines of server and client."""
    tool, what, count = key["tool"], key["what"], key["bytes"]
    number, address = str(messages(size, what, count)), network.Rdma.server_address
    if tool == "rstream":
        # In a round each end sends so many messages and receives as many: one for a latency, all of them for a speed.
        rounds, each = ("1", number) if what == "speed" else (number, "1")
        given = ["-p", str(PORT), "-S", str(count), "-I", rounds, "-C", each]
        return ["rstream", "-b", address, *given], ["rstream", "-s", address, *given]
    client, server = network.Rdma.devices
    addresses = {client: network.Rdma.client_address, server: address}
    given = [*PERFTEST[tool][0], "-F", "-p", str(PORT), "-s", str(count), "-n", number]
    given += ["--report_gbits"] if PERFTEST[tool][1] == "speed" else []
    first, second = ([tool, "-d", device, "-x", str(gid_index(device, addresses[device])), *given] for device in (server, client))
    return first, [*second, address]


def read_perftest(text, what):
    """The column that is wanted of the table's one row."""
    head = re.search(r"^\s*#bytes.*$", text, re.MULTILINE)
    row = text[head.end():].split("\n")[1].split() if head else []
    if len(row) < 5:
        raise ProgramFailed(f"client: printed no table: {' '.join(text.split())[-200:]}")
    return float(row[3] if what == "speed" else row[4])  # average Gbit/s; typical µs


def read_rstream(text, what):
    """Behind the names of the columns: test, bytes, transfers, iterations, total, time, Gb/sec, usec/xfer."""
    row = text.strip().splitlines()[-1].split() if text.strip() else []
    if len(row) < 8:
        raise ProgramFailed(f"client: printed no table: {' '.join(text.split())[-200:]}")
    return float(row[6] if what == "speed" else row[7])


def read(tool, what, text):
    return read_rstream(text, what) if tool == "rstream" else read_perftest(text, what)


def moved(key, size):
    count = messages(size, key["what"], key["bytes"]) * key["bytes"]
    both_ways = key["tool"] == "rstream" or key["what"] == "latency"
    return 2 * count if both_ways else count


def reap(program, limit):
    """Waits for a program's end. Returns the processor time that it took."""
    before = os.times()
    program.wait(limit)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


class Limits:
    """Runs the tools."""

    def __init__(self, size, scratch):
        self.size, self.scratch = size, pathlib.Path(scratch)

    def run(self, key):
        try:
            return {**key, "status": "ok", "unit": UNITS[key["what"]], **self._measure(key)}
        except (ProgramFailed, OSError, ValueError) as error:
            return {**key, "status": "failed", "error": str(error)}

    def _measure(self, key):
        first, second = commands(key, self.size)
        ends = []
        try:
            before = network.Spent()
            server = Program(first, self.scratch / "errors-server")
            ends.append(server)
            await_listener(server)
            printed = self.scratch / "printed"
            with open(printed, "wb") as out:
                client = Program(second, self.scratch / "errors-client", out)
            ends.append(client)
            cpu = reap(client, LIMIT_S) + reap(server, LIMIT_S)
            spent = before.since()
        finally:
            for program in reversed(ends):
                program.end()
        value = read(key["tool"], key["what"], printed.read_text(encoding="utf-8", errors="replace"))
        return {"value": value if key["what"] != "start" else None, "moved_bytes": moved(key, self.size), "cpu_s": round(cpu, 3), **spent}
