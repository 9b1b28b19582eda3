# SPDX-License-Identifier: MIT
"""memcached_client.py PORT: stores random values in a memcached and compares what comes back; prints what it moved as JSON.

Values of 1 B to 1,000,000 B, quiet sets in sends of their own, and one get of many keys. It knows nothing of zc.
"""
import json
import random
import socket
import sys

from address import ADDRESS

rng = random.Random(5)
connection = socket.create_connection((ADDRESS, int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
answers = connection.makefile("rb")
moved = {"sent": 0, "received": 0, "verified": 0}


def send(data):
    connection.sendall(data)
    moved["sent"] += len(data)


def expect(line):
    got = answers.readline()
    assert got == line + b"\r\n", got
    moved["received"] += len(got)


def expect_value(key, value):
    expect(b"VALUE %s 0 %d" % (key, len(value)))
    got = answers.read(len(value) + 2)
    assert got == value + b"\r\n"
    moved["received"] += len(got)
    moved["verified"] += 1


for size in [1, 100, 4096, 65536, 65537, 500_000, 1_000_000]:
    large = rng.randbytes(size)
    send(b"set large 0 0 %d\r\n%s\r\n" % (size, large))
    expect(b"STORED")
    send(b"get large\r\n")
    expect_value(b"large", large)
    expect(b"END")

values = {b"key%d" % number: rng.randbytes(rng.randrange(1, 2000)) for number in range(500)}
for key, value in values.items():
    send(b"set %s 0 0 %d noreply\r\n" % (key, len(value)))
    send(value + b"\r\n")
for key, value in values.items():
    send(b"get %s\r\n" % key)
for key, value in values.items():
    expect_value(key, value)
    expect(b"END")
keys = list(values)[:100]
send(b"get %s\r\n" % b" ".join(keys))
for key in keys:
    expect_value(key, values[key])
expect(b"END")
json.dump(moved, sys.stdout)
