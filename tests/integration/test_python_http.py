# SPDX-License-Identifier: MIT
"""CPython's http.server (a thread for each connection) under the library, asked by http.client and by curl."""
import sys

from apps import ADDRESS, need
from bodies import SIZES, body


def start_server(bench, path):
    return bench.start(
        lambda port: [sys.executable, "-m", "http.server", "--bind", ADDRESS, "--protocol", "HTTP/1.1",
                      "--directory", bench.bodies(), port],
        path)


def test_bodies_by_python(pairing):
    client = pairing.python("http_client.py", pairing.server.port, "GET", "")
    pairing.check(client, client.told["sent"], client.told["received"], server_takes=["zerocopy"])


def test_bodies_by_curl_in_parallel(pairing):
    program = need("curl")
    directory = pairing.bench.new_directory("downloads")
    address = f"http://{ADDRESS}:{pairing.server.port}/{{{','.join(map(str, SIZES))}}}"
    client = pairing.run([program, "-sS", "--fail", "-Z", "-o", f"{directory}/#1", address])
    for size in SIZES:
        assert (directory / str(size)).read_bytes() == body(size)
    # A connection for one request and one answer has a lane by luck only.
    pairing.check(client, len(SIZES) * len("GET / HTTP/1.1"), sum(SIZES), lane=False)
