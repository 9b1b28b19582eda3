# SPDX-License-Identifier: MIT
"""
strangers.py FROM TO SECONDS: three connections from one address to another, by a program that is both ends. A packet filter changes the port of the
first, 5000, to that from which the second then goes there, too: 6000. The server's end of the first has the names that the second has at its
client. The third is left alone. Each end receives what its own peer has sent.
"""
import socket
import sys
import time

PORT = 8080
BYTES = 1000
APART_S = 0.5


def connect(server, own):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((sys.argv[1], own))
    client.connect(server.getsockname())
    return client, server.accept()[0]


def main():
    server = socket.create_server((sys.argv[2], PORT))
    pairs = [connect(server, 5000)]
    time.sleep(APART_S)  # those that begin at the same time, and do the same, are not told apart
    pairs.append(connect(server, 6000))
    assert pairs[0][1].getpeername() == pairs[1][0].getsockname() != pairs[1][1].getpeername()
    pairs.append(connect(server, 6001))
    until = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < until:
        for number, pair in enumerate(pairs):
            for one, other in (pair, pair[::-1]):
                other.settimeout(20)
                one.sendall(bytes([number + 1]) * BYTES)
                assert other.recv(BYTES, socket.MSG_WAITALL) == bytes([number + 1]) * BYTES, "another's bytes"


main()
