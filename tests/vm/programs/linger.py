# SPDX-License-Identifier: MIT
"""
linger.py HOW ADDRESS DOWN UP: a connection over RDMA to a process that listens there; DOWN, a command, ends once the network is gone, UP brings it back
after three seconds. The connecting end sends meanwhile what it can without waiting, and ends: by HOW, close, shutdown, exit, or killed, right behind a
close. Tells what each has sent and received, and how it ended. To be run under libzc.so.
"""
import json
import os
import signal
import socket
import subprocess
import sys

AWAY_S = 3
TURNS = 50
MOST = 600_000
PART = 20_000


def byte_at(begin, count):
    pattern = bytes(i * 7 % 251 for i in range(251))
    return (pattern * (count // 251 + 2))[begin % 251:][:count]


def receive(listening):
    """The accepting end: answers the first turns, then takes all."""
    connection, _ = listening.accept()
    for _ in range(TURNS):
        connection.sendall(connection.recv(1))
    total, how = 0, "end of file"
    try:
        while got := connection.recv(65536):
            assert got == byte_at(total, len(got)), f"a wrong byte behind {total}"
            total += len(got)
    except OSError as error:
        how = os.strerror(error.errno)
    return {"received": total, "end": how}


def send_what_goes(connection):
    total = 0
    connection.setblocking(False)
    try:
        while total < MOST:
            total += connection.send(byte_at(total, PART))
    except BlockingIOError:
        pass
    return total


def send(where, how, down, up, told):
    connection = socket.create_connection(where)
    for _ in range(TURNS):
        connection.sendall(b"t")
        assert connection.recv(1) == b"t"
    subprocess.run(down, shell=True, check=True)
    with subprocess.Popen(f"sleep {AWAY_S}; {up}", shell=True) as back:
        os.write(told, json.dumps({"sent": send_what_goes(connection)}).encode())
        os.close(told)
        if how in ("close", "killed"):
            connection.close()
        elif how == "shutdown":
            connection.shutdown(socket.SHUT_WR)
        else:
            os._exit(0)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        back.wait()
        sys.stdin.read()  # until the accepting end has all


def main():
    how, address, down, up = sys.argv[1:]
    listening = socket.create_server((address, 0))
    reads, writes = os.pipe()
    waits, ends = os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.dup2(waits, 0)
        send(listening.getsockname(), how, down, up, writes)
        os._exit(0)
    os.close(writes)
    result = receive(listening)
    os.close(ends)
    os.waitpid(child, 0)
    print(json.dumps({**json.loads(os.read(reads, 100)), **result}))


main()
