# SPDX-License-Identifier: MIT
"""iperf3 under the library, both ways, by sendfile and in many small sends. It never looks at its payload, and its receiver stops at
the sender's word with bytes still on their way; so both its own counts are compared with the library's."""
import json

import pytest
from apps import ADDRESS, need


def start_server(bench, path):
    program = need("iperf3")
    return bench.start(lambda port: [program, "-s", "-B", ADDRESS, "-p", port], path)


def run_client(pairing, options):
    """A server that has not finished with the last client yet says that it is busy: the next one comes again."""
    while True:
        client = pairing.run([need("iperf3"), "-c", ADDRESS, "-p", pairing.server.port, "-J", *options], status=None)
        error = json.loads(client.output).get("error")
        if not error or "busy" not in error:
            assert not error and not client.process.returncode, error
            return client


@pytest.mark.parametrize("options", [["-N"], ["-R"], ["-Z"], ["-P", "3", "-l", "100"]], ids=lambda options: options[0])
def test_counts_agree(pairing, options):
    bytes_to_send = 2_000_000 if "-l" in options else 50_000_000
    client = run_client(pairing, ["-n", bytes_to_send, *options])
    end = json.loads(client.output)["end"]
    sent, received = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
    assert sent >= bytes_to_send
    assert 0 < received <= sent
    backwards = "-R" in options
    pairing.check(client, 0 if backwards else sent, sent if backwards else 0,
                  client_takes=["sg"] if "-l" in options else [])
    receiver = client if backwards else pairing.server
    if receiver.path not in (None, "tcp"):
        assert receiver.moved().received >= received
