# SPDX-License-Identifier: MIT
"""The transport over verbs between the lab's two hosts: both ends are processes of programs/verbs_peer.c, which compare every
byte; here it is looked at that they did what they should, over RDMA, and knew at each break by which byte to go on."""
import json

import pytest

BREAKS = ["device", "own_device", "drop", "down"]


@pytest.fixture(scope="session")
def guest(start_guest):
    return start_guest("verbs", seconds=240)


def ends(guest, step):
    """What the two ends have told, by their names."""
    return {told["end"]: told for told in map(json.loads, guest.text(step).splitlines())}


def test_devices_are_found(guest):
    told = json.loads(guest.text("devices"))
    assert told["trouble"] == "no trouble"
    assert {device["name"] for device in told["devices"]} == {"rxe0", "rxe1"}
    assert all(device["active"] == 1 and device["gids"] > 0 and device["reads"] > 1 for device in told["devices"])


def test_refusal_is_told(guest):
    assert "the peer is at a limit" in ends(guest, "refuse")["connecting"]["trouble"]


def test_another_version_is_told_by_both_ends(guest):
    told = ends(guest, "version")
    assert all("the peer speaks another version" in told[end]["trouble"] for end in ("accepting", "connecting"))


@pytest.mark.parametrize("step,size", [("stream_ipv4", 3000000), ("stream_ipv6", 3000000), ("small", 60000), ("again", 1000000)])
def test_bytes_go_both_ways(guest, step, size):
    both = ends(guest, step)
    assert [both[name][way] for name in ("accepting", "connecting") for way in ("sent", "received")] == [size] * 4


def test_bytes_go_over_rdma(guest):
    before, after = guest.counters("before"), guest.counters("after")
    for device in ["rxe0", "rxe1"]:
        assert (after[device] - before[device]) * 4096 > 3000000


def test_sleeping_ends_wake_each_other(guest):
    assert ends(guest, "ping_pong")["connecting"]["rounds"] == 200


def test_several_gets_are_under_way(guest):
    told = ends(guest, "get")["connecting"]
    assert told["got"] == 12000000
    assert 2 <= told["most_under_way"] <= 16


def test_limit_of_locked_memory_is_named(guest):
    assert (guest.directory / "memlock.status").read_text() != "0\n"
    assert "raise RLIMIT_MEMLOCK" in (guest.directory / "memlock.txt").read_text()


def test_end_outlives_a_killed_one(guest):
    told = ends(guest, "kill")["accepting"]
    # What the kernel takes away first is not said.
    assert told["trouble"] in ("the peer has disconnected", "the peer's memory is gone, or not what was granted")
    assert told["alone"] is True
    assert told["confirmed"] <= told["delivered"] <= told["written"] <= told["sent"]


@pytest.mark.parametrize("step", BREAKS)
def test_broken_connection_goes_on_at_the_exact_byte(guest, step):
    both = ends(guest, step)
    for name, other in (("accepting", "connecting"), ("connecting", "accepting")):
        told = both[name]
        assert told["whole"] is True
        assert told["theirs"] == both[other]["received"]
        assert told["confirmed"] <= told["delivered"] <= told["theirs"] <= told["written"] <= told["sent"]


def test_reason_of_a_break_is_told(guest):
    gone = {"the RDMA device is gone", "the peer has disconnected"}
    for step in ("device", "own_device"):
        # The first to notice tells the other one.
        assert {told["trouble"] for told in ends(guest, step).values()} <= gone
    assert "the peer's device has stopped answering" in {told["trouble"] for told in ends(guest, "drop").values()}


def test_devices_come_back(guest):
    for step in ("remake_device", "remake_own_device", "remake_after_down"):
        guest.text(step)
