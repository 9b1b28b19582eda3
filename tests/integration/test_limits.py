# SPDX-License-Identifier: MIT
"""A program under small limits (ulimit) does what it does without the library, which has files and descriptors of its own."""
import os
import re
import subprocess
import sys

import pytest
from apps import BUILD, environment, need

LIBRARY = BUILD / "preload/libzc.so"
PATHS = ["copy", "sg", "zerocopy", "bsdp", "azsdp", "auto"]

# Both ends in one process: bytes go both ways, many times.
BOTH_WAYS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
end = server.accept()[0]
for turn in range(200):
    for one, other in [(client, end), (end, client)]:
        one.sendall(bytes([turn]) * 1000)
        assert other.recv(1000, socket.MSG_WAITALL) == bytes([turn]) * 1000
"""
# What it prints is what is compared.
EXCHANGE = """
import os, resource, sys
limit, soft = getattr(resource, sys.argv[1]), int(sys.argv[2])
resource.setrlimit(limit, (soft, soft))
""" + BOTH_WAYS + """
os.close(0)
print("next:", os.open("/dev/null", os.O_RDONLY), "then:", os.open("/dev/null", os.O_RDONLY))
"""


def told_by_the_only(stats):
    (file,) = stats.iterdir()
    return subprocess.run([BUILD / "apps/zc/zc", "stat", "--json", file], capture_output=True, text=True, check=True).stdout


def run(path, limit, soft, **settings):
    if path:
        settings |= {"LD_PRELOAD": str(LIBRARY), "ZC_PATH": path}
    done = subprocess.run([sys.executable, "-c", EXCHANGE, limit, str(soft)], env=environment(**settings), timeout=60,
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


# All that the program has open is closed, by a system call of its own.
SWEEP = """
import ctypes
SYS_close_range = 436
assert not ctypes.CDLL(None, use_errno=True).syscall(SYS_close_range, 3, ctypes.c_uint(-1), 0)
""" + BOTH_WAYS


def test_library_keeps_its_descriptors(tmp_path):
    log = tmp_path / "log"
    within = environment(LD_PRELOAD=str(LIBRARY), ZC_PATH="bsdp", ZC_LOG="trace", ZC_LOG_FILE=str(log))
    subprocess.run([sys.executable, "-c", SWEEP], env=within, timeout=60, check=True)
    assert "met its peer" in log.read_text()


# Memory of each connection, once the first has been made.
LOCKED = """
import ctypes, errno, socket, sys
MCL_CURRENT, MCL_FUTURE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)
def shared():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssShmem"))
if libc.mlockall(MCL_CURRENT | MCL_FUTURE):
    sys.exit(errno.errorcode[ctypes.get_errno()])
server = socket.create_server(("127.0.0.1", 0))
pairs = []
def connect():
    client = socket.create_connection(server.getsockname())
    pairs.append((client, server.accept()[0]))
    for turn in range(50):
        for one, other in [pairs[-1], pairs[-1][::-1]]:
            one.sendall(bytes([turn]) * 1000)
            assert other.recv(1000, socket.MSG_WAITALL) == bytes([turn]) * 1000
connect()
before = shared()
for _ in range(8):
    connect()
print((shared() - before) // 8)
"""


@pytest.mark.parametrize("path", ["bsdp", "azsdp"])
def test_connections_are_not_locked_with_their_program(path, tmp_path):
    within = environment(LD_PRELOAD=str(LIBRARY), ZC_PATH=path, ZC_STATS_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", LOCKED], env=within, timeout=60, capture_output=True, text=True, check=False)
    if done.stderr.strip() in ("EPERM", "ENOMEM"):
        pytest.skip("too little memory may be locked (ulimit -l)")
    assert done.returncode == 0, done.stderr
    assert re.search('"ring_receive_bytes": *[1-9]', told_by_the_only(tmp_path))  # they have met
    assert int(done.stdout) < 1024  # KiB, of 12 MiB at each end


# Mappings of connections that have met, in a process that may have so many in all.
CROWD = """
import socket
server = socket.create_server(("127.0.0.1", 0))
pairs = []
for _ in range(100):
    client = socket.create_connection(server.getsockname())
    pairs.append((client, server.accept()[0]))
    for turn in range(20):
        for one, other in [pairs[-1], pairs[-1][::-1]]:
            one.sendall(bytes([turn]) * 1000)
            assert other.recv(1000, socket.MSG_WAITALL) == bytes([turn]) * 1000
def mappings():
    return sum("zc-channel" in line for line in open("/proc/self/maps"))
print(mappings())
for one, other in pairs:
    one.close()
    other.close()
print(mappings())
"""


def test_mappings_are_left_to_the_program(tmp_path):
    limit, stats = tmp_path / "limit", tmp_path / "stats"
    limit.write_text("600\n")
    stats.mkdir()
    within = [need("unshare"), *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c",
              f"mount --bind '{limit}' /proc/sys/vm/max_map_count && exec \"$@\"", "sh"]
    if subprocess.run([*within, "true"], env=environment(), timeout=60, capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run([*within, "env", f"LD_PRELOAD={LIBRARY}", "ZC_PATH=bsdp", f"ZC_STATS_DIR={stats}", sys.executable, "-c", CROWD],
                          env=environment(), timeout=60, capture_output=True, text=True, check=True)
    at_most, after = map(int, done.stdout.split())
    assert 200 < at_most <= 300
    assert after == 0
    assert re.search('"mappings": *[1-9]', told_by_the_only(stats))
