# SPDX-License-Identifier: MIT
"""haproxy under the library in front of nginx, both on the same path: connections are reused, bodies are copied or spliced."""
import pytest
import test_nginx
from apps import ADDRESS, need

CONFIGURATION = """
defaults
	mode http
	timeout connect 60s
	timeout client 60s
	timeout server 60s
	http-reuse always

listen copied
	bind {address}:{port}
	use_backend spliced if {{ path_beg /spliced }}
	http-request set-path %[path,regsub(^/copied,/read)]
	server nginx {address}:{nginx}

backend spliced
	option splice-auto
	http-request set-path %[path,regsub(^/spliced,/sendfile)]
	server nginx {address}:{nginx}
"""


def start_server(bench, path):
    program = need("haproxy")
    directory = bench.new_directory("haproxy")
    nginx = test_nginx.start_server(bench, path)

    def command(port):
        configuration = directory / "haproxy.cfg"
        configuration.write_text(CONFIGURATION.format(address=ADDRESS, port=port, nginx=nginx.port))
        return [program, "-db", "-f", configuration]

    return bench.start(command, path)


@pytest.mark.parametrize("how", ["copied", "spliced"])
def test_bodies_come_through(pairing, how):
    client = pairing.python("http_client.py", pairing.server.port, "GET", f"/{how}")
    pairing.check(client, client.told["sent"], client.told["received"])
