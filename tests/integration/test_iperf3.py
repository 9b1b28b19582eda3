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


# What three streams may have under way (8 MB of sockets' buffers) is less: a sender that waits for no receiver is through before its
# server has read a byte, over plain TCP as well, and then that server counts none.
BYTES_TO_SEND = 50_000_000


@pytest.mark.parametrize("options", [["-N"], ["-R"], ["-Z"], ["-P", "3", "-l", "1000"]], ids=lambda options: options[0])
def test_counts_agree(pairing, options):
    client = run_client(pairing, ["-n", BYTES_TO_SEND, *options])
    end = json.loads(client.output)["end"]
    sent, received = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
    assert sent >= BYTES_TO_SEND
    assert 0 < received <= sent
    backwards = "-R" in options
    pairing.check(client, 0 if backwards else sent, sent if backwards else 0,
                  client_takes=["sg"] if "-l" in options else [])
    receiver = client if backwards else pairing.server
    if receiver.path not in (None, "tcp"):
        assert receiver.moved().received >= received
