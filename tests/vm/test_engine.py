# SPDX-License-Identifier: MIT
"""Unmodified programs on the lab's two hosts: their bytes go over RDMA, and when that breaks the connection outlives it."""
import json
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, environment

WHOLE = ["blocking", "poll", "epoll", "ipv6", "mapped", "threads", "clients"]
FETCHED = [f"{path}-{name}" for path in ("zsdp", "azsdp") for name in ("stream", "poll", "overlap", "touch")] + ["azsdp-mprotect"]
LATE = ["ahead-stream", "ahead-large", "ahead-poll", "ahead-device"]  # whose receivers are
FETCHING_CASES = ["fork", "exit", "exec", "exec_full", "dontwait", "cancelled"]
CASES = FETCHING_CASES + ["exit_unread", "setuid", "vfork", "handler", "idles", "twice", "twice-2", "twice-3"]
CASES += [f"{path}-{name}" for path in ("zsdp", "azsdp") for name in FETCHING_CASES + ["allocating"]]
CASES += [f"ahead-{name}" for name in FETCHING_CASES]
CASES += [f"sink-{name}" for name in ("fork", "exit", "exec", "dontwait", "cancelled", "handler", "interrupted")]
BREAKS = ["device", "own_device", "drop", "down"]
FETCHED_BREAKS = [f"{path}-{name}" for path in ("zsdp", "azsdp") for name in ("device", "own_device")]


@pytest.fixture(scope="session")
def guest(start_guest):
    return start_guest("engine", seconds=450)


def whole_processes(guest, step):
    """What `zc stat` tells of the processes of a step."""
    shown = []
    for file in (guest.directory / f"{step}.stats").iterdir():
        told = subprocess.run([BUILD / "apps/zc/zc", "stat", "--json", file], capture_output=True, check=True, env=environment())
        shown += json.loads(told.stdout)["processes"]
    return shown


def processes(guest, step):
    """The same of all their connections together."""
    return [process["all"] for process in whole_processes(guest, step)]


def counted(guest, step, name):
    return sum(process["counters"].get(name, 0) for process in processes(guest, step))


@pytest.mark.parametrize("step", WHOLE)
def test_bytes_are_right_and_go_over_rdma(guest, step):
    measured = guest.measured(step)
    assert measured["verified"] is True
    assert counted(guest, step, "rdma_meetings") > 0
    assert counted(guest, step, "ring_receive_bytes") > measured["bytes"] / 2


def test_device_has_sent_them(guest):
    before, after = guest.counters("before"), guest.counters("after")
    bytes_sent = sum(guest.measured(step)["bytes"] for step in WHOLE)
    assert (after["rxe0"] - before["rxe0"]) * 4096 > bytes_sent / 2


def test_no_provider_is_loaded_that_no_device_needs(guest):
    assert len(list(Path("/usr/lib").glob("*/libibverbs/*.so"))) > 1
    loaded = guest.text("providers").split()
    assert [provider.split("-")[0] for provider in loaded] == ["librxe"]


def test_guarded_memory_is_not_registered_in_vain(guest):
    # But where the peer has just passed a source whose guard is about to go.
    assert int(guest.text("refusals")) < 10


@pytest.mark.parametrize("step", LATE + ["ahead-touch"])
def test_bytes_are_right_if_they_are_fetched_ahead(guest, step):
    assert guest.measured(step)["verified"] is True


@pytest.mark.parametrize("step", LATE)
def test_late_receiver_finds_here_what_was_fetched_ahead(guest, step):
    assert counted(guest, step, "later_bytes") > guest.measured(step)["bytes"] / 10


@pytest.mark.parametrize("step", ["sink-overlap", "sink-large", "sink-stream", "sink-device"])
def test_bytes_are_right_if_receives_offer_their_memory(guest, step):
    assert guest.measured(step)["verified"] is True
    assert counted(guest, step, "get_bytes") > 0


@pytest.mark.parametrize("step", ["sink-overlap", "sink-large"])
def test_sender_writes_to_a_receive_that_waits(guest, step):
    assert counted(guest, step, "sink_bytes") > guest.measured(step)["bytes"] / 4


def test_receives_that_signals_end_were_written_to_before(guest):
    assert counted(guest, "sink-interrupted", "sink_bytes") > 0


def test_no_receive_offers_its_memory_without_being_asked_for(guest):
    assert counted(guest, "zsdp-overlap", "sink_bytes") == 0


def test_nothing_is_fetched_ahead_without_being_asked_for(guest):
    assert counted(guest, "azsdp-stream", "later_bytes") == 0


@pytest.mark.parametrize("step", FETCHED + FETCHED_BREAKS)
def test_large_sends_are_fetched(guest, step):
    assert guest.measured(step)["verified"] is True
    assert counted(guest, step, "rdma_meetings") > 0
    assert counted(guest, step, "get_bytes") > 0


@pytest.mark.parametrize("step", [step for step in FETCHED if step.startswith("azsdp")])
def test_what_is_written_to_after_the_send_is_kept(guest, step):
    assert counted(guest, step, "rewrites") > 0


@pytest.mark.parametrize("step", ["server_alone", "client_alone"])
def test_peer_without_zc_gets_plain_tcp(guest, step):
    assert guest.measured(step)["verified"] is True
    assert counted(guest, step, "rdma_meetings") == 0


def test_brief_connections_to_a_peer_without_zc_wake_no_agent(guest):
    told = guest.measured("brief")
    # One that a busy machine makes last may ask.
    assert told["wakes"] < told["brief"] / 2
    assert told["wakes_of_one_that_lasts"] > 0


def test_ends_whose_ports_were_changed_never_have_another_s(guest):
    guest.text("strangers")
    (told,) = processes(guest, "strangers")
    assert told["reasons"]["redirected"] == 1
    assert told["counters"]["rdma_meetings"] == 2  # both ends of the one that was left alone


@pytest.mark.parametrize("step", CASES)
def test_no_byte_is_lost_when_this_end_goes_on_without_rdma(guest, step):
    guest.text(step)
    assert counted(guest, step, "rdma_meetings") > 0
    assert counted(guest, step, "ring_receive_bytes") > 0


@pytest.mark.parametrize("step,process", [("forks", "the parent's"), ("heir", "the child's")])
def test_connection_is_on_rdma_again_behind_a_fork(guest, step, process):
    guest.text(step)
    assert counted(guest, step, "rdma_returns") == 2, process
    # By the ring of the first queue pair, and by that of the second one.
    assert counted(guest, step, "takeovers") >= 3


@pytest.mark.parametrize("step", BREAKS)
def test_connection_outlives_its_queue_pair(guest, step):
    assert guest.measured(step)["verified"] is True
    assert counted(guest, step, "rdma_meetings") > 0
    assert counted(guest, step, "ring_receive_bytes") > 0


@pytest.mark.parametrize("path", ["bsdp", "zsdp", "azsdp"])
def test_bytes_are_right_where_packets_are_lost(guest, path):
    assert guest.measured(f"lossy-{path}")["verified"] is True
    assert counted(guest, f"lossy-{path}", "rdma_meetings") > 0
    assert counted(guest, f"lossy-{path}", "ring_receive_bytes" if path == "bsdp" else "get_bytes") > 0


@pytest.mark.parametrize("how", ["close", "shutdown", "exit"])
def test_connection_that_ends_in_an_outage_loses_nothing(guest, how):
    told = guest.measured(f"ended_by_{how}")
    assert told["sent"] > 100_000
    assert told["received"] == told["sent"], told
    assert told["end"] == "end of file", told
    assert counted(guest, f"ended_by_{how}", "rdma_meetings") > 0


def test_killed_process_that_owes_bytes_makes_no_end_of_file(guest):
    told = guest.measured("ended_by_killed")
    assert told["sent"] > 100_000
    assert (told["end"] == "end of file") is (told["received"] == told["sent"]), told
    assert told["end"] in ("end of file", "Connection reset by peer"), told


@pytest.mark.parametrize("step,other", [("kill_receiver", "client"), ("kill_transmitter", "server"), ("azsdp-kill", "server")])
def test_peer_of_a_killed_process_is_told(guest, step, other):
    # Neither a hang, which ends by SIGKILL, nor a success.
    assert (guest.directory / f"{step}.status").read_text() != "0\n"
    told = (guest.directory / f"{step}.{other}").read_text()
    # The connection that controls the session may be on TCP still, where a killed client leaves an end of file, before the data's has
    # told. What each connection tells, tests/vm/test_kill.py looks at.
    assert any(word in told for word in ("reset", "closed", "broken pipe", "Broken pipe", "went away before the end")), told


def clearly_better(cost, than):
    """As preload/far_trial.c has it, in its units."""
    return cost < than - than // 10


@pytest.mark.parametrize("step,unit,scale", [("auto-turns", "us_per_turn", 1000), ("auto-stream", "us_per_mb", 1.024)])
def test_auto_takes_what_it_has_measured_to_be_better(guest, step, unit, scale):
    assert guest.measured(step)["verified"] is True
    assert counted(guest, step, "rdma_meetings") > 0
    assert counted(guest, step, "ring_receive_bytes") > 0  # both ways were tried
    found = [(process["all"], host) for process in whole_processes(guest, step) for host in process["hosts"]]
    assert found
    for process, host in found:
        assert host["address"] in ("10.9.0.1", "10.9.0.2") and host["answered"] is (step == "auto-turns")
        tcp, ring = (round(host[unit][way] * scale) for way in ("tcp", "bsdp"))
        assert host["taken"] == ("bsdp" if clearly_better(ring, tcp) else "tcp"), host
        # It has ended on that: sends that stayed on TCP for what was found are counted. Where it was tried once more, they may be of before.
        slower = process["reasons"].get("rdma_slower", 0) > 0
        assert slower is (host["taken"] == "tcp") or slower and host["tries"] > 1, process


def test_auto_gives_up_a_queue_pair_that_it_has_no_use_for(guest):
    assert guest.measured("auto-settles")["verified"] is True
    assert counted(guest, "auto-settles", "rdma_meetings") > 0
    ends = processes(guest, "auto-settles")
    lost = [end for end in ends if end["reasons"].get("rdma_slower", 0)]
    assert lost  # TCP's packets are larger and need no checksum: a stream over soft-RoCE is slower
    assert sum(end["reasons"].get("rdma_unused", 0) for end in ends) > 0
    assert not any(end["reasons"].get("rdma_broken", 0) for end in ends)


@pytest.mark.parametrize("step", ["auto-many", "auto-children"])
def test_both_ends_find_out_on_the_same_connection(guest, step):
    assert guest.measured(step)["verified"] is True
    assert counted(guest, step, "rdma_meetings") >= 2
    assert not any(end["reasons"].get("no_peer", 0) for end in processes(guest, step))


def test_auto_spends_nothing_on_a_short_connection(guest):
    assert guest.measured("auto-short")["verified"] is True
    assert counted(guest, "auto-short", "meetings") == 0
    assert any(end["reasons"].get("rdma_not_yet", 0) for end in processes(guest, "auto-short"))


def test_auto_obeys_what_it_is_told_of_transports(guest):
    assert guest.measured("auto-cma")["verified"] is True
    assert counted(guest, "auto-cma", "rdma_meetings") == 0
    assert guest.measured("auto-verbs")["verified"] is True
    assert counted(guest, "auto-verbs", "rdma_meetings") > 0
    assert not any(process["hosts"] for process in whole_processes(guest, "auto-verbs"))
