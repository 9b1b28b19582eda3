# SPDX-License-Identifier: MIT
"""azsdp learns by call site: the one that rewrites what it has sent is copied, on this connection and the next, and the other
one stays on azsdp.

programs/sites.c has both in one connection, and the statistics tell who went where."""
import json
import os
import subprocess

import pytest
from apps import PROGRAMS, environment

ROUNDS = 60
BYTES = 64 * 1024
FAULTS = 12  # before a site is blamed (preload/history.h); then it goes by the ring for 64 sends
AGAIN = ROUNDS // 4  # sends of the second connection
WARM_UPS = 2 * 4  # of both connections; in some of them the ends have not shown each other yet what they can


@pytest.fixture(scope="module")
def program(shared_directory):
    made = shared_directory / "sites"
    subprocess.run([os.environ.get("ZC_CC", "cc"), "-O2", "-o", made, PROGRAMS / "sites.c"], check=True)
    return made


def counted(bench, program, call, **more):
    done = bench.run([program, call, ROUNDS], "azsdp", env={"ZC_SOURCE_MIN": "4096", "ZC_ZEROCOPY_KEEP": "no"} | more)
    assert done.output == b"right %d\n" % ((2 * ROUNDS + AGAIN + WARM_UPS) * BYTES)
    file, = done.directory.glob("zc-*.stats")
    got = subprocess.run([bench.zc, "stat", "--json", file], capture_output=True, check=True, env=environment())
    told = json.loads(got.stdout)["processes"][0]["all"]
    if told["reasons"]["no_guard"]:
        pytest.skip("no guard in this process")
    assert told["reasons"]["get_unproved"] < WARM_UPS
    return told, told["paths"]["azsdp"]["calls"] - WARM_UPS + told["reasons"]["get_unproved"]


@pytest.mark.parametrize("call", ["send", "sendto", "write", "writev", "sendmsg", "sendmmsg"])
def test_site_that_rewrites_is_copied_and_the_other_is_not(bench, program, call):
    told, guarded = counted(bench, program, call)
    assert guarded == ROUNDS + FAULTS, told["reasons"]
    assert told["reasons"]["faulted_site"] == ROUNDS - FAULTS + AGAIN, told["reasons"]
    assert told["reasons"]["faulted"] == told["reasons"]["faulted_buffer"] == 0, told["reasons"]
    assert "because the buffers of certain calls were rewritten" in told["explanation"]


def test_call_that_has_no_site_is_the_connections_affair(bench, program):
    told, _ = counted(bench, program, "syscall")
    assert told["reasons"]["faulted_site"] == 0 < told["reasons"]["faulted"]


def test_nobody_is_blamed_where_guards_are_kept(bench, program):
    told, guarded = counted(bench, program, "send", ZC_ZEROCOPY_KEEP="yes")
    assert told["reasons"]["faulted_site"] == 0
    assert guarded == 2 * ROUNDS + AGAIN
