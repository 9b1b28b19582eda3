# SPDX-License-Identifier: MIT
"""tiny.py serve PORT [WAY [MARK]]: a server that sends back what it gets. tiny.py ask PORT BYTES: a client that compares.

WAY: `background` leaves a daemon behind and ends with status 0; `stubborn` ignores SIGTERM; `told` says on standard output
that it is ready.
"""
import os
import random
import signal
import socket
import sys
import threading


def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def serve(port, way="", _mark=""):
    with socket.create_server(("127.0.0.1", port)) as listener:
        if way == "background" and os.fork():
            return
        if way == "background":
            os.setsid()
            if os.fork():
                return
        if way == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if way == "told":
            print(f"at your service on {port}", flush=True)
        while True:
            threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True).start()


def ask(port, size):
    data = random.randbytes(size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        sender = threading.Thread(target=connection.sendall, args=[data])
        sender.start()
        got = bytearray()
        while len(got) < size:
            part = connection.recv(65536)
            assert part, f"the end after {len(got)} bytes"
            got += part
        sender.join()
    assert got == data, "not the bytes that were sent"
    print(f"moved {2 * size} bytes")


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), *sys.argv[3:])
else:
    ask(int(sys.argv[2]), int(sys.argv[3]))
