# SPDX-License-Identifier: MIT
"""What rsockets fails at, zc does: programs and features between the lab's two hosts. Of rsockets itself nothing is asked."""
import json

import pytest

# What has the library at one end alone, or hands the connection to another program: TCP is what is right there.
BY_TCP = ["non-blocking connect to a plain peer", "blocking connect to a plain peer", "its server, a plain TCP client"]
BY_EITHER = ["inherited socket (inetd)", "fork server"]
BY_RDMA = [
    "blocking echo", "SOCK_CLOEXEC and accept4()", "__recv_chk, __read_chk, __poll_chk (fortified programs)", "ppoll",
    "epoll, level-triggered", "epoll, edge-triggered", "dup3", "sendfile", "non-blocking connect",
]
PROGRAMS = ["redis", "nginx", "iperf3", "memcached"]


@pytest.fixture(scope="session")
def rows(start_guest):
    guest = start_guest("peers", "zc", seconds=800)
    return {row["name"]: row["zc"] for row in json.loads((guest.directory / "peers.json").read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", BY_TCP)
def test_a_peer_without_zc_is_served_by_tcp(rows, name):
    assert rows[name] == "works, by TCP"


@pytest.mark.parametrize("name", BY_EITHER)
def test_a_connection_may_become_another_process(rows, name):
    assert rows[name].startswith("works")


@pytest.mark.parametrize("name", BY_RDMA)
def test_every_call_works_over_rdma(rows, name):
    assert rows[name] == "works, by RDMA"


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_work_over_rdma(rows, name):
    if name not in rows:
        pytest.skip(f"{name} is not installed")
    assert rows[name] == "works, by RDMA"
