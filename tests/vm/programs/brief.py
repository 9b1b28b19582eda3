# SPDX-License-Identifier: MIT
"""
brief.py ADDRESS: brief connections one after the other, then one that lasts, to a server there without libzc.so that sends back what comes.
To be run under it, on a path that asks the peer's host by RDMA. Tells how often other threads than the program's, which are the
library's, have been woken meanwhile.
"""
import json
import os
import pathlib
import signal
import socket
import sys
import time

FIRST, COUNT = 10, 60  # of the first ones each may ask
OPENING_MAX = 200  # connections more that end while the devices are opened
LASTS_S = 1


def serve(listening):
    while True:
        peer, _ = listening.accept()
        with peer:
            while got := peer.recv(64):
                peer.sendall(got)


def server_process(address):
    """Returns its process and where it listens. A process that was begun without the library."""
    if len(sys.argv) > 2:
        listening = socket.create_server((address, 0))
        print(listening.getsockname()[1], flush=True)
        serve(listening)
    reads, writes = os.pipe()
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    child = os.posix_spawn(sys.executable, [sys.executable, __file__, address, "serve"], plain,
                           file_actions=[(os.POSIX_SPAWN_DUP2, writes, 1)])
    os.close(writes)
    with os.fdopen(reads) as told:
        return child, (address, int(told.readline()))


def switches():
    """By thread. One that opens a device does not last."""
    told = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        told[task.name] = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    del told[str(os.getpid())]
    return told


def wakes_since(before):
    return sum(count - before.get(task, 0) for task, count in switches().items())


def exchange(connection, byte):
    connection.sendall(byte)
    assert connection.recv(1) == byte


def ask(where, count):
    for _ in range(count):
        with socket.create_connection(where) as connection:
            exchange(connection, b"x")


def ask_until_rest(where):
    """Ends also where there is none."""
    ask(where, FIRST)
    for _ in range(OPENING_MAX):
        before = switches()
        ask(where, 1)
        if not wakes_since(before):
            return


def main():
    child, where = server_process(sys.argv[1])
    told = {"brief": COUNT}
    try:
        ask_until_rest(where)
        before = switches()
        ask(where, COUNT)
        told["wakes"] = wakes_since(before)
        with socket.create_connection(where) as connection:
            before, until = switches(), time.monotonic() + LASTS_S
            while time.monotonic() < until:
                exchange(connection, b"y")
            told["wakes_of_one_that_lasts"] = wakes_since(before)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(json.dumps(told))


main()
