# SPDX-License-Identifier: MIT
"""Node under the library: its HTTP server (memory, streams, echo, a fetch from itself) and its HTTP client (libuv, epoll)."""
import json

from apps import PROGRAMS, need
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
