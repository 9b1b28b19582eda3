# SPDX-License-Identifier: MIT
"""Programs whose two ends are in one process, under zc or without, and do what each line of their input says."""
import subprocess
import sys

from conftest import clean_environment

# Sends each line's worth of messages from a client to a server in one process; closes at the end of its input.
PAIR = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
print("ready", flush=True)
for line in sys.stdin:
    count, size = map(int, line.split())
    reader = threading.Thread(target=lambda: [server.recv(size, socket.MSG_WAITALL) for _ in range(count)])
    reader.start()
    data = bytes(size)
    for _ in range(count):
        client.sendall(data)
    reader.join()
    print("done", flush=True)
client.close()
server.close()
print("closed", flush=True)
"""


# The same with no descriptor left.
TAKES_ALL = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
more = []
try:
    while True:
        more.append(socket.socket())
except OSError:
    pass
"""
FULL = PAIR.replace('print("ready"', TAKES_ALL + 'print("ready"', 1)


# A client whose connect() is under way: the listener's queue is full until a line comes.
UNDER_WAY = """
import select, socket, sys
listener = socket.create_server(("127.0.0.1", 0), backlog=0)
first = socket.create_connection(listener.getsockname())
client = socket.socket()
client.setblocking(False)
client.connect_ex(listener.getsockname())
print("ready", flush=True)
for line in sys.stdin:
    listener.accept()[0].close()
    server, _ = listener.accept()
    select.select([], [client], [])
    client.sendall(b"x")
    assert server.recv(2) == b"x"
    print("done", flush=True)
first.close()
client.close()
print("closed", flush=True)
"""


class Pair:
    def __init__(self, command, program=PAIR, **environment):
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environment(**environment),
        )
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def send(self, count, size):
        self.process.stdin.write(f"{count} {size}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.stdin.close()
        assert self.process.stdout.readline() in ("closed\n", "")
        assert self.process.wait(60) == 0
