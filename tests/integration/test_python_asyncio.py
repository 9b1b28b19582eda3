# SPDX-License-Identifier: MIT
"""CPython's asyncio under the library, as server (streams, sendfile) and as client."""
import sys

from apps import PROGRAMS


def start_server(bench, path):
    return bench.start(lambda port: [sys.executable, PROGRAMS / "asyncio_server.py", port], path)


def test_server_hands_out_bodies(pairing):
    client = pairing.python("http_client.py", pairing.server.port, "GET", "/body", "/sendfile")
    pairing.check(client, client.told["sent"], client.told["received"], server_takes=["zerocopy"])


def test_client_and_server_exchange_bodies(pairing):
    client = pairing.python("asyncio_client.py", pairing.server.port)
    assert client.told["verified"] == 28
    pairing.check(client, client.told["sent"], client.told["received"], ["zerocopy"], ["zerocopy"])
