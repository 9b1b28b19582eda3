# SPDX-License-Identifier: MIT
"""zc stat and compare in words: what they say of real connections has to be true of them."""
import contextlib
import json

import pytest
from pairs import PAIR, Pair

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


# Sends a header and then a file, as web servers do, from a client to a server of one process.
FILES = """
import os, socket, sys, tempfile, threading
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
print("ready", flush=True)
for line in sys.stdin:
    count, size = map(int, line.split())
    reader = threading.Thread(target=lambda: server.recv(count * (size + 200), socket.MSG_WAITALL))
    reader.start()
    with tempfile.TemporaryFile() as file:
        file.write(bytes(size))
        file.flush()
        for _ in range(count):
            client.sendall(bytes(100))
            client.sendall(bytes(100))
            left, offset = size, 0
            while left:
                sent = os.sendfile(client.fileno(), file.fileno(), offset, left)
                left, offset = left - sent, offset + sent
    reader.join()
    print("done", flush=True)
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


@pytest.mark.parametrize("path", ["zerocopy", "copy"])
def test_files_that_the_kernel_moves_are_told_by_their_bytes(zc, started, path):
    running = started(path, FILES)
    running.send(3, 1000 * 1000)
    (client,) = [conn for conn in connections_of(zc, running) if conn["role"] == "client"]
    assert client["counters"]["file_bytes"] == 3 * 1000 * 1000 and client["reasons"]["flags"] == 0
    assert "99.9 % of these bytes because: sendfile or splice: the program already has the kernel move" in client["explanation"]
    if path == "zerocopy":
        # Two of three sends were small ones; by number they come first.
        assert 3 <= client["reasons"]["file"] and client["reasons"]["small"] == 6
        assert client["explanation"].endswith("others mostly because: send below ZC_ZEROCOPY_MIN")


def test_doorbells_are_system_calls_of_the_ring(zc, build, tmp_path):
    tool = build / "apps/tools/zc-msg"
    done = zc("compare", "--server", f"{tool} server --bind 127.0.0.1 --port {{port}}", "--client",
              f"{tool} client --host 127.0.0.1 --port {{port}} --variant flat --field-bytes 1000 --messages 200 --warmup 0 "
              "--nodelay --json -", "--preset", "zc", "--paths", "bsdp", "--repeat", 1, "--warmup", 0, "--json", "-",
              ZC_SPIN_US="0", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)["comparisons"][0]["paths"][0]["statistics"]
    assert counted["paths"]["bsdp"]["calls"] > 0 and counted["doorbells"] > 0
    assert counted["paths"]["bsdp"]["system_calls"] == counted["doorbells"]


def test_parts_of_sends_are_called_so(zc, started):
    running = started("zerocopy", PAIR, ZC_ZEROCOPY_KEEP="yes", ZC_ZEROCOPY_MIN="8192")
    running.send(20, 1 << 20)
    (client,) = [conn for conn in connections_of(zc, running) if conn["role"] == "client"]
    text = zc("stat", running.pid).stdout
    assert "sends, parts" in text
    assert "sends, or parts of such, took copy" in text or not client["paths"]["copy"]["calls"]
