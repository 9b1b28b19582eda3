# SPDX-License-Identifier: MIT
"""A packet filter may send connections within this host elsewhere (REDIRECT), or change their ports (SNAT): their ends never have
somebody else's.

The server's end of the first connection has the names that the second has at its client: the first is sent from port 7000 to the
server's and the second goes there itself, from the same port; or the first goes there itself, and its port is changed to that from which
the second goes there, too.
"""
import os
import re
import subprocess
import sys

import pytest
from apps import BUILD, environment, need
from test_limits import told_by_the_only

LIBRARY = BUILD / "preload/libzc.so"
ADDRESSES = ["127.0.0.1", "::1", "::ffff:127.0.0.1"]
RULES = """add table inet moved
add chain inet moved out { type nat hook output priority -100; }
add rule inet moved out tcp dport 7000 redirect to :8080
add chain inet moved after { type nat hook postrouting priority 100; }
add rule inet moved after tcp dport 8080 tcp sport 5000 snat ip to 127.0.0.1:6000
add rule inet moved after tcp dport 8080 tcp sport 5000 snat ip6 to [::1]:6000
"""
EXCHANGE = """
import socket, sys
address = sys.argv[1]
six = ":" in address
server = socket.create_server((address, 8080), family=socket.AF_INET6 if six else socket.AF_INET, dualstack_ipv6=six)
def connect(own, port):
    client = socket.socket(server.family)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((address, own))
    client.connect((address, port))
    return client, server.accept()[0]
pairs = [connect(int(own), int(port)) for own, port in zip(sys.argv[2::2], sys.argv[3::2])]
if len(pairs) == 2:
    assert pairs[0][1].getpeername() == pairs[1][0].getsockname() != pairs[1][1].getpeername()
for turn in range(200):
    for number, pair in enumerate(pairs):
        for one, other in [pair, pair[::-1]]:
            one.sendall(bytes([number + 1]) * 1000)
            assert other.recv(1000, socket.MSG_WAITALL) == bytes([number + 1]) * 1000
"""




def exchange(path, address, ports, tmp_path):
    """Runs EXCHANGE behind the packet filter. Returns what the library told."""
    settings = [f"LD_PRELOAD={LIBRARY}", f"ZC_PATH={path}", f"ZC_STATS_DIR={tmp_path}"] if path else []
    rules = tmp_path.parent / f"{tmp_path.name}.nft"
    rules.write_text(RULES)
    within = [need("unshare"), *([] if os.geteuid() == 0 else ["-r"]), "-n", "sh", "-c",
              f"{need('ip')} link set lo up && {need('nft')} -f '{rules}' && exec \"$@\"", "sh"]
    if subprocess.run([*within, "true"], env=environment(), timeout=60, capture_output=True, check=False).returncode:
        pytest.skip("no packet filter in a network namespace here")
    subprocess.run([*within, "env", *settings, sys.executable, "-c", EXCHANGE, address, *ports], env=environment(), timeout=60, check=True)
    return told_by_the_only(tmp_path) if path else None


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("path", [None, "copy", "bsdp"])
@pytest.mark.parametrize("ports", [["6000", "7000", "6000", "8080"], ["5000", "8080", "6000", "8080"]], ids=["redirected", "port"])
def test_ends_never_have_another_s(ports, path, address, tmp_path):
    told = exchange(path, address, ports, tmp_path)
    if path == "bsdp":
        assert '"redirected": 1' in told


@pytest.mark.parametrize("address", ADDRESSES)
def test_ends_that_are_left_alone_meet(address, tmp_path):
    assert re.search('"ring_receive_bytes": *[1-9]', exchange("bsdp", address, ["6001", "8080"], tmp_path))
