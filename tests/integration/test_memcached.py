# SPDX-License-Identifier: MIT
"""memcached under the library: values up to 1 MB, quiet sets, many keys at once; its threads are handed their connections."""
import os

from apps import ADDRESS, need


def start_server(bench, path):
    program = need("memcached")
    user = ["-u", "root"] if os.geteuid() == 0 else []
    return bench.start(lambda port: [program, "-p", port, "-U", "0", "-l", ADDRESS, "-t", "2", *user], path)


def test_values_come_back(pairing):
    client = pairing.python("memcached_client.py", pairing.server.port)
    assert client.told["verified"] == 607
    pairing.check(client, client.told["sent"], client.told["received"], client_takes=["sg", "zerocopy"])
