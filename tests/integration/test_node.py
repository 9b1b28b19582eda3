# SPDX-License-Identifier: MIT
"""Node under the library: its HTTP server (memory, streams, echo, a fetch from itself) and its HTTP client (libuv, epoll)."""
import json

import pytest
from apps import BETWEEN_HOSTS, PROGRAMS, need
from bodies import SIZES


def start_server(bench, path):
    program = need("node")
    return bench.start(lambda port: [program, PROGRAMS / "node_server.js", port, bench.bodies()], path)


def test_server_hands_out_bodies(pairing):
    client = pairing.python("http_client.py", pairing.server.port, "GET", "/buffer", "/stream", "/relay")
    pairing.check(client, client.told["sent"], client.told["received"], server_takes=["zerocopy"])


def exchange(pairing):
    client = pairing.run([need("node"), PROGRAMS / "node_client.js", pairing.server.port, pairing.bench.bodies()])
    told = json.loads(client.output)
    assert told["verified"] == 2 * len(SIZES)
    pairing.check(client, told["sent"], told["received"], client_takes=["zerocopy"])


def test_client_and_server_exchange_bodies(pairing):
    # The client sends a dozen times; whether the server is in no receive at one of them, so that the lane may move, is luck.
    for _ in range(2):
        try:
            return exchange(pairing)
        except AssertionError as error:
            if "no lane was taken" not in str(error):
                raise
    return exchange(pairing)


@pytest.mark.skipif(BETWEEN_HOSTS, reason="as anywhere else: the connection is TCP")
def test_io_uring_registers_connections(bench, path):
    # libuv registers its connections by io_uring then, and goes on by libc: nobody hears what comes by a ring.
    asked = {"UV_USE_IO_URING": "1"}
    bodies = bench.bodies()
    server = bench.start(lambda port: [need("node"), PROGRAMS / "node_server.js", port, bodies], path, env=asked)
    for client_path in (path, None):
        client = bench.run([need("node"), PROGRAMS / "node_client.js", server.port, bodies], client_path, env=asked)
        assert json.loads(client.output)["verified"] == 2 * len(SIZES)
    server.end()
