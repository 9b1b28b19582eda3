# SPDX-License-Identifier: MIT
"""A program under small limits (ulimit) does what it does without the library, which has files and descriptors of its own."""
import os
import subprocess
import sys

import pytest
from apps import BUILD

LIBRARY = BUILD / "preload/libzc.so"
PATHS = ["copy", "sg", "zerocopy", "bsdp", "azsdp", "auto"]

# Both ends in one process: bytes go both ways, many times. What it prints is what is compared.
EXCHANGE = """
import os, resource, socket, sys
limit, soft = getattr(resource, sys.argv[1]), int(sys.argv[2])
resource.setrlimit(limit, (soft, soft))
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
end = server.accept()[0]
for turn in range(200):
    for one, other in [(client, end), (end, client)]:
        one.sendall(bytes([turn]) * 1000)
        assert other.recv(1000, socket.MSG_WAITALL) == bytes([turn]) * 1000
os.close(0)
print("next:", os.open("/dev/null", os.O_RDONLY), "then:", os.open("/dev/null", os.O_RDONLY))
"""


def run(path, limit, soft, **settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZC_")} | settings
    if path:
        environment |= {"LD_PRELOAD": str(LIBRARY), "ZC_PATH": path}
    done = subprocess.run([sys.executable, "-c", EXCHANGE, limit, str(soft)], env=environment, timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("limit, soft", [("RLIMIT_FSIZE", 4096), ("RLIMIT_FSIZE", 30 << 20), ("RLIMIT_NOFILE", 64),
                                         ("RLIMIT_NOFILE", 512), ("RLIMIT_NOFILE", 1000)])
@pytest.mark.parametrize("path", PATHS)
def test_program_ends_as_it_does_without(path, limit, soft):
    assert run(path, limit, soft) == run(None, limit, soft) == (0, "next: 0 then: 6\n", "")


def test_log_ends_before_its_program(tmp_path):
    log = tmp_path / "log"
    assert run("auto", "RLIMIT_FSIZE", 512, ZC_LOG="trace", ZC_LOG_FILE=str(log)) == (0, "next: 0 then: 6\n", "")
    assert 0 < log.stat().st_size <= 512
