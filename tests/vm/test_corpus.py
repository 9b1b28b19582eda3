# SPDX-License-Identifier: MIT
"""The conformance corpus between the lab's two hosts: programs see what they see without libzc.so, and their bytes go over RDMA.

A part of it, another one for each path; all of it with VM_CORPUS=whole, which takes hours under emulation, and VM_STEPS has the names of
those steps that are wanted then.
"""
import os
import re

import pytest

PATHS = ["bsdp", "zsdp", "azsdp", "auto"]
STEPS = [f"{end}-{path}" for path in PATHS for end in ("both", "server", "client")] + ["forks", "edges"]
CHOSEN = os.environ.get("VM_STEPS", "").split() or STEPS
assert set(CHOSEN) <= set(STEPS), f"VM_STEPS: {set(CHOSEN) - set(STEPS)}; allowed are {' '.join(STEPS)}"
SIZES = {"part": ("60", 850, 300), "whole": ("1", 12 * 3600, 3600)}  # parts; seconds in the guest, of a step: against hangs


def size():
    chosen = os.environ.get("VM_CORPUS", "part")
    assert chosen in SIZES, f"VM_CORPUS: '{chosen}'; allowed are {' and '.join(SIZES)}"
    return SIZES[chosen]


@pytest.fixture(scope="session")
def guest(start_guest):
    parts, seconds, step_seconds = size()
    return start_guest("corpus", parts, *CHOSEN, seconds=seconds, settings={"LAB_STEP_SECONDS": str(step_seconds)})


def shown(guest, step):
    """Bytes by path, ends that met, packets: as the corpus tells them once it has compared its cases."""
    if step not in CHOSEN:
        pytest.skip(f"{step} is not in VM_STEPS")
    text = guest.text(step)
    found = re.search(r"(\d+) bytes took path \w+; (\d+) ends met by RDMA; the devices have sent (\d+) packets", text)
    assert found, text
    return map(int, found.groups())


@pytest.mark.parametrize("path", PATHS)
def test_programs_see_no_difference_and_use_rdma(guest, path):
    moved, met, packets = shown(guest, f"both-{path}")
    assert moved > 0 and met > 0
    assert packets * 4096 > moved / 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("end", ["server", "client"])
def test_one_end_alone_sees_no_difference(guest, end, path):
    _, met, _ = shown(guest, f"{end}-{path}")
    assert met == 0


def test_no_edge_is_of_what_only_the_library_has_seen(guest):
    _, met, _ = shown(guest, "edges")
    assert met > 0


def test_fork_past_libc_while_libraries_are_loaded_goes_on(guest):
    _, met, _ = shown(guest, "forks")
    assert met == 0
