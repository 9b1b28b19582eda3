# SPDX-License-Identifier: MIT
"""zc stat and compare in words: what they say of real connections has to be true of them."""
import contextlib
import json

import pytest
from pairs import Pair

# A server under zc whose client has none: what the client sends comes back.
ALONE = """
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
source = "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); " \
    "[c.sendall(d) for d in iter(lambda: c.recv(65536), b'')]"
child = subprocess.Popen([sys.executable, "-c", source, str(listener.getsockname()[1])], env={})
server, _ = listener.accept()
print("ready", flush=True)
for line in sys.stdin:
    count, size = map(int, line.split())
    for _ in range(count):
        server.sendall(bytes(size))
        server.recv(size, socket.MSG_WAITALL)
    print("done", flush=True)
server.close()
child.wait()
print("closed", flush=True)
"""


@pytest.fixture
def started(build):
    """Starts pairs under zc."""
    with contextlib.ExitStack() as stack:

        def start(path, program, **environment):
            made = Pair([build / "apps/zc/zc", "run", "-p", path], program=program, **environment)
            stack.callback(lambda: (made.process.stdin.close(), made.process.kill(), made.process.wait(),
                                    made.process.stdout.close()))
            return made

        yield start


def connections_of(zc, running):
    (process,) = json.loads(zc("stat", running.pid, "--json").stdout)["processes"]
    return process["connections"]


@pytest.mark.parametrize("path, said", [
    ("bsdp", "the peer has not answered with zc so far"), ("zsdp", "the peer has not answered with zc so far"),
    ("azsdp", "the peer has not answered with zc so far"), ("copy", "no faster path was asked for"),
])
def test_a_peer_without_zc_is_told(zc, started, path, said):
    running = started(path, ALONE)
    running.send(20, 1000)
    (server,) = connections_of(zc, running)
    if not server["reasons"]["no_peer"]:
        assert server["explanation"] == f"all 20 sends took copy: {said}"
    running.end()


def test_of_closed_connections_nothing_is_said_that_is_not_known(zc, started, tmp_path):
    running = started("bsdp", ALONE, ZC_STATS_DIR=str(tmp_path))
    running.send(20, 1000)
    running.end()
    text = zc("stat", tmp_path / f"zc-{running.pid}.stats").stdout
    assert "no faster path was asked for, or the peer has not answered with zc so far" in text or "no_peer" in text


def test_connections_on_path_tcp_are_no_missing_ones(zc, started):
    got = zc("stat", started("tcp", ALONE).pid)
    assert got.returncode == 1 and "no TCP connection so far, but such as path tcp leaves alone" in got.stderr
