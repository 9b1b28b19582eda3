# SPDX-License-Identifier: MIT
"""The port that zc compare gives to a server."""
import pathlib
import shlex
import sys

TINY = f"{shlex.quote(sys.executable)} -S {pathlib.Path(__file__).parent / 'programs' / 'tiny.py'}"


def test_no_connection_of_others_gets_the_port_before_the_server(zc, tmp_path):
    log = tmp_path / "ports"
    done = zc("compare", "--paths", "tcp", "--repeat", 8, "--warmup", 0, "--server", f"echo {{port}} >>{log}; exec {TINY} serve {{port}}",
              "--client", f"{TINY} ask {{port}} 1000")
    assert done.returncode == 0, done.stdout
    least, most = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [int(port) for port in log.read_text().split()]
    assert len(ports) == 8 and len(set(ports)) > 1
    assert [port for port in ports if least <= port <= most] == []
