# SPDX-License-Identifier: MIT
"""Many connections that are idle take little memory: less than 200 MB for 10,000 of them, both ends together, in addition to what
the programs take over plain TCP; what does not grow with the connections counts in proportion. The ends run programs/crowd.c; each connection meets its peer, moves some data both ways, so that
its rings are used, and then nothing more. The same once more shows that bytes are right in memory that was given back.

Each run has CROWD connections, 1,000 unless ZC_CROWD says otherwise.
"""
import os
import pathlib
import resource
import select
import time

import pytest
from apps import Ordered, compiled

FULL = 10000
CROWD = int(os.environ.get("ZC_CROWD", "1000"))
FEW = 10
BYTES = 65536
KB_EACH = 200 * 1000 // FULL
PATIENCE_S = 240


@pytest.fixture(scope="module")
def program(shared_directory):
    return compiled(shared_directory, "crowd")


class End(Ordered):
    patience_s = PATIENCE_S

    def __init__(self, bench, program, path, *arguments, before=None, **settings):
        super().__init__(bench, [program, *arguments], path, env=settings, preexec_fn=before)

    def meet(self, count=CROWD):
        self.order("meet", BYTES)
        assert self.hear() == f"met {count}"

    def memory_kb(self):
        """Memory that is shared with the other end counts half here, and half there; that of files is everybody's."""
        text = pathlib.Path(f"/proc/{self.run.process.pid}/smaps_rollup").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def crowd(bench, program, path, count=CROWD, **settings):
    server = End(bench, program, path, "listen", count, **settings)
    client = End(bench, program, path, "connect", count, server.hear(), **settings)
    assert client.hear() == f"connected {count}"
    client.meet(count)
    return server, client


def memory_of_crowd(bench, program, path, count):
    ends = crowd(bench, program, path, count)
    kb = sum(end.memory_kb() for end in ends)
    for end in reversed(ends):
        end.end()
    return kb


@pytest.fixture(scope="module")
def plain_kb(bench, program):
    return memory_of_crowd(bench, program, None, CROWD)


@pytest.fixture(scope="module")
def library_kb(bench, program):
    """What the library takes in any case."""
    few = memory_of_crowd(bench, program, "copy", FEW) - memory_of_crowd(bench, program, None, FEW)
    return max(0, few * (FULL - CROWD) // FULL)


def await_memory(ends, kb):
    until = time.monotonic() + PATIENCE_S
    while (now := sum(end.memory_kb() for end in ends)) > kb:
        assert time.monotonic() < until, f"{CROWD} idle connections take {now} kB, {kb} are allowed"
        select.select([], [], [], 0.1)


@pytest.mark.parametrize("path", ["bsdp", "zsdp", "auto"])
def test_idle_connections_take_little_memory(bench, program, plain_kb, library_kb, path):
    ends = crowd(bench, program, path)
    await_memory(ends, plain_kb + library_kb + KB_EACH * CROWD)
    ends[1].meet()
    await_memory(ends, plain_kb + library_kb + KB_EACH * CROWD)
    for moved in [end.end() for end in reversed(ends)]:
        assert moved.total() >= 2 * CROWD * BYTES
        # How a receiver comes to its bytes decides which of them were announced.
        assert path == "auto" or moved.paths["bsdp"] + moved.paths[path] >= CROWD * BYTES, moved


def test_memory_stays_where_nothing_is_given_back(bench, program, plain_kb):
    """What the other test measures is there to be measured."""
    ends = crowd(bench, program, "bsdp", ZC_IDLE_MS="0")
    assert sum(end.memory_kb() for end in ends) > plain_kb + 2 * (BYTES // 1024) * CROWD
    for end in reversed(ends):
        end.end()


def test_connections_that_meet_a_limit_stay_on_tcp(bench, program):
    """Where a program has no descriptor left for a meeting, or no more mappings, its connections go on over TCP, and say why."""
    limits = [
        ((100, 6), None),  # its standard files, its set, its port, and one more
        ((100,), lambda: resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))),
    ]
    for arguments, before in limits:
        server = End(bench, program, "bsdp", "listen", *arguments, before=before)
        client = End(bench, program, "bsdp", "connect", arguments[0], server.hear())
        assert client.hear() == f"connected {arguments[0]}"
        client.meet(arguments[0])
        client.meet(arguments[0])
        client.end()
        moved = server.end()
        assert moved.paths["copy"] > BYTES, moved
        assert moved.reasons["meeting_failed"] > 0, moved


@pytest.mark.parametrize("path", ["bsdp", "auto"])
@pytest.mark.parametrize("tight", ["listen", "connect"])
def test_meetings_take_no_descriptor_that_a_program_needs(bench, program, path, tight):
    """Half of the connections are in the middle of their meetings, when the program uses its last descriptors."""
    half = 50
    spare = {"listen": 5, "connect": 4}  # the standard files, the set, the port
    full = [str(half + spare[tight])]
    server = End(bench, program, path, "listen", half, *(full if tight == "listen" else []))
    client = End(bench, program, path, "connect", half, server.hear(), *(full if tight == "connect" else []))
    assert client.hear() == f"connected {half}"
    client.order("touch")
    assert client.hear() == f"touched {half}"
    client.order("more", half)
    assert client.hear() == f"connected {2 * half}"
    client.meet(2 * half)
    client.meet(2 * half)
    ends = {"connect": client.end(), "listen": server.end()}
    for moved in ends.values():
        assert moved.total() >= 4 * half * BYTES, moved
    assert path == "auto" or ends[tight].reasons["meeting_failed"] > 0, ends[tight]
