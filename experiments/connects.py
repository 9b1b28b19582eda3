# SPDX-License-Identifier: MIT
"""
N: what a connection costs where zc has no peer, on a host with an RDMA device: connecting, a byte there and back, closing, many times one
after the other, to a host without RDMA and to one with it whose server runs without zc. Plain TCP and zc in turn, in many short runs: the
machine drifts by more than what is looked for, and plain TCP is run twice to tell by how much.
"""
import json
import pathlib
import re
import subprocess

from experiments import network, stacks
from experiments.processes import Program, ProgramFailed, with_environment

KEY = ["peer", "stack", "repeat"]
COLUMNS = [*KEY, "status", "error", "connect_p50_us", "connect_p90_us", "whole_p50_us", "whole_p90_us", "rdma_packets"]
PLAIN_ADDRESS = "10.9.1.2"  # the lab's host without RDMA (docs/lab.md)
# name: (words, where its server runs, its address)
PEERS = {
    "plain": ("a host without RDMA", ["ip", "netns", "exec", "plain"], PLAIN_ADDRESS),
    "alone": ("a host with RDMA, its server without zc", [], network.Rdma.server_address),
}
# What is asked of auto by default, and of a path that would use RDMA if anybody answered.
AGAIN = "tcp, again"
STACKS = {stacks.PLAIN: None, AGAIN: None, "auto": {"ZC_PATH": "auto"}, "bsdp": {"ZC_PATH": "bsdp"}, "bsdp, forced": {"ZC_PATH": "bsdp", "ZC_TRANSPORT": "verbs"}}
TURNS = 4  # in each round of the others
START_S, LIMIT_S = 20, 120


def keys(repeats):
    names = list(STACKS)
    return [{"peer": peer, "stack": stack, "repeat": repeat} for repeat in range(repeats * TURNS) for peer in PEERS
            for stack in names[repeat % len(names):] + names[:repeat % len(names)]]


class Connects:
    """Runs the connections."""

    def __init__(self, files, scratch, count):
        self.files, self.scratch, self.count = files, pathlib.Path(scratch), count

    def run(self, key):
        try:
            return {**key, "status": "ok", **self._measure(key)}
        except (ProgramFailed, OSError, ValueError) as error:
            return {**key, "status": "failed", "error": str(error)}

    def _measure(self, key):
        _, where, address = PEERS[key["peer"]]
        settings = STACKS[key["stack"]]
        environment = {"LD_PRELOAD": str(self.files["library"]), **settings} if settings is not None else {}
        tool, ends, printed = str(self.files["connects"]), [], self.scratch / "printed"
        try:
            server = Program([*where, tool, "serve", address], self.scratch / "errors-server", subprocess.PIPE)
            ends.append(server)
            port = re.search(r":(\d+)$", server.first_line(START_S)).group(1)
            before = network.Spent()
            with open(printed, "wb") as out:
                client = Program(with_environment(environment, [tool, "ask", address, port, str(self.count)]),
                                 self.scratch / "errors-client", out)
            ends.append(client)
            client.wait(LIMIT_S)
            packets = before.since()["rdma_packets"]
        finally:
            for program in reversed(ends):
                program.end()
        return {**json.loads(printed.read_text(encoding="utf-8")), "rdma_packets": packets}
