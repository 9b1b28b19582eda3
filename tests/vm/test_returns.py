# SPDX-License-Identifier: MIT
"""Connections whose queue pairs break again and again: each time they are on RDMA again afterwards, and no byte is wrong.

With VM_RETURNS=yes in the environment: it takes minutes, and the guest's kernel may be lost in its soft-RoCE meanwhile (docs/lab.md). The
test command has unit/preload/far_again_test for the same.
"""
import json
import os
import subprocess

import pytest
from conftest import BUILD, environment

PATHS = ["bsdp", "zsdp", "azsdp"]
ROUNDS = 2
KINDS = ["drop", "delete", "own_delete"] * ROUNDS + ["down"]


pytestmark = pytest.mark.skipif(os.environ.get("VM_RETURNS") != "yes", reason="VM_RETURNS=yes is not in the environment")


@pytest.fixture(scope="session")
def guest(start_guest):
    return start_guest("returns", ROUNDS, seconds=800)


def ends(guest, path):
    """What both ends of the path's connection counted, with the reasons."""
    told = []
    for file in (guest.directory / f"{path}.stats").iterdir():
        shown = subprocess.run([BUILD / "apps/zc/zc", "stat", "--json", file], capture_output=True, check=True, env=environment())
        told += [process["all"] for process in json.loads(shown.stdout)["processes"]]
    return [one for one in told if one["counters"].get("rdma_meetings", 0)]


def test_each_break_is_followed_by_a_return(guest):
    lines = guest.text("breaks").splitlines()
    assert [line.split(":")[0] for line in lines] == KINDS, lines


@pytest.mark.parametrize("path", PATHS)
def test_all_bytes_are_right(guest, path):
    guest.text(path)


@pytest.mark.parametrize("path", PATHS)
def test_statistics_tell_of_returns(guest, path):
    both = ends(guest, path)
    assert len(both) == 2
    for end in both:
        assert end["counters"]["rdma_returns"] >= len(KINDS)
        # Its lane moved at first, and behind each break. Not behind each return: a queue pair may break by itself before that.
        assert end["counters"]["takeovers"] > len(KINDS)
