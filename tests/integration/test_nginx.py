# SPDX-License-Identifier: MIT
"""nginx under the library: bodies up to 10 MB, read and by sendfile, asked for by Python and by curl, kept alive and pipelined."""
import pytest
from apps import ADDRESS, IS_ROOT, need
from bodies import SIZES, body

CONFIGURATION = """
daemon off;
pid {directory}/pid;
worker_processes 2;
{user}
events {{ worker_connections 256; }}
http {{
	access_log off;
	client_body_temp_path {directory}/temporary;
	proxy_temp_path {directory}/temporary;
	fastcgi_temp_path {directory}/temporary;
	uwsgi_temp_path {directory}/temporary;
	scgi_temp_path {directory}/temporary;
	keepalive_timeout 60s;
	server {{
		listen {address}:{port};
		location /read {{ alias {bodies}; sendfile off; output_buffers 1 512k; }}
		location /sendfile {{ alias {bodies}; sendfile on; tcp_nopush on; sendfile_max_chunk 512k; }}
	}}
}}
"""


def start_server(bench, path):
    program = need("nginx")
    directory = bench.new_directory("nginx")

    def command(port):
        configuration = directory / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(
            directory=directory, address=ADDRESS, port=port, bodies=bench.bodies(), user="user www-data;" if IS_ROOT else ""))
        return [program, "-e", "stderr", "-p", directory, "-c", configuration]

    return bench.start(command, path)


@pytest.mark.parametrize("how, takes", [("read", ["zerocopy"]), ("sendfile", [])])
def test_bodies_by_python(pairing, how, takes):
    client = pairing.python("http_client.py", pairing.server.port, "GET", f"/{how}")
    assert client.told["verified"] >= len(SIZES) + 50
    pairing.check(client, client.told["sent"], client.told["received"], server_takes=takes)


@pytest.mark.parametrize("how", ["read", "sendfile"])
def test_bodies_by_curl(pairing, how):
    program = need("curl")
    addresses = [f"http://{ADDRESS}:{pairing.server.port}/{how}/{size}" for size in SIZES]
    client = pairing.run([program, "-sS", "--fail", *addresses])
    expected = b"".join(map(body, SIZES))
    assert client.output == expected
    pairing.check(client, len(addresses) * len("GET / HTTP/1.1"), len(expected))
