# SPDX-License-Identifier: MIT
"""One end of a connection over RDMA is killed at a random moment: the other one gets a right prefix, and then an error or all bytes.

A few runs of each path; VM_KILL=RUNS in the environment for more of them, half a second each under emulation.
"""
import os
import re

import pytest


@pytest.fixture(scope="session")
def guest(start_guest):
    runs = int(os.environ.get("VM_KILL", "20"))
    return start_guest("kill", runs, seconds=200 + 8 * runs)


@pytest.mark.parametrize("path", ["bsdp", "zsdp", "azsdp", "auto"])
def test_who_is_left_gets_a_right_prefix_and_no_false_end(guest, path):
    text = guest.text(path)
    killed = sum(map(int, re.search(r"(\d+) senders and (\d+) receivers killed", text).groups()))
    ring, announced = map(int, re.search(r"bytes: (\d+) by the ring, (\d+) announced", text).groups())
    assert killed > 0 and ring > 0, text
    assert (announced > 0) is (path in ("zsdp", "azsdp")), text
