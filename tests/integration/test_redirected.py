# SPDX-License-Identifier: MIT
"""A packet filter may send connections within this host elsewhere (REDIRECT): their ends never have somebody else's.

The client of the first connection is sent from port 7000 to the server's; the second goes there itself, from the same port. The
server's end of the first has the names that the second has at its client.
"""
import os
import subprocess
import sys

import pytest
from apps import BUILD, environment, need
from test_limits import told_by_the_only

LIBRARY = BUILD / "preload/libzc.so"
RULES = """add table inet redirected
add chain inet redirected out { type nat hook output priority -100; }
add rule inet redirected out tcp dport 7000 redirect to :8080
"""
EXCHANGE = """
import socket, sys
address = sys.argv[1]
six = ":" in address
server = socket.create_server((address, 8080), family=socket.AF_INET6 if six else socket.AF_INET, dualstack_ipv6=six)
def connect(port):
    client = socket.socket(server.family)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((address, 6000))
    client.connect((address, port))
    return client, server.accept()[0]
pairs = [connect(7000), connect(8080)]
assert pairs[0][1].getpeername() == pairs[1][0].getsockname() != pairs[1][1].getpeername()
for turn in range(200):
    for number, pair in enumerate(pairs):
        for one, other in [pair, pair[::-1]]:
            one.sendall(bytes([number + 1]) * 1000)
            assert other.recv(1000, socket.MSG_WAITALL) == bytes([number + 1]) * 1000
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("path", [None, "copy", "bsdp"])
def test_ends_never_have_another_s(path, address, tmp_path):
    settings = [f"LD_PRELOAD={LIBRARY}", f"ZC_PATH={path}", f"ZC_STATS_DIR={tmp_path}"] if path else []
    rules = tmp_path.parent / f"{tmp_path.name}.nft"
    rules.write_text(RULES)
    within = [need("unshare"), *([] if os.geteuid() == 0 else ["-r"]), "-n", "sh", "-c",
              f"{need('ip')} link set lo up && {need('nft')} -f '{rules}' && exec \"$@\"", "sh"]
    if subprocess.run([*within, "true"], env=environment(), timeout=60, capture_output=True, check=False).returncode:
        pytest.skip("no packet filter in a network namespace here")
    subprocess.run([*within, "env", *settings, sys.executable, "-c", EXCHANGE, address], env=environment(), timeout=60, check=True)
    if path == "bsdp":
        assert '"redirected": 1' in told_by_the_only(tmp_path)
