# SPDX-License-Identifier: MIT
"""redis_client.py PORT [HOST]: writes random values to a Redis server and reads them back; prints what it moved as JSON.

One value a time from 1 B to 10 MB, a burst of small commands each in a send of its own, a pipeline in one send, and
publish and subscribe. It knows nothing of zc.
"""
import json
import random
import socket
import sys

from address import ADDRESS

port = int(sys.argv[1])
host = sys.argv[2] if len(sys.argv) > 2 else ADDRESS
rng = random.Random(port)
moved = {"sent": 0, "received": 0, "verified": 0}
SIZES = [1, 2, 100, 4095, 4096, 4097, 65536, 65537, 1 << 20, 10_000_000]


class Redis:
    def __init__(self):
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = self.socket.makefile("rb")

    def send(self, *commands):
        data = b"".join(encode(command) for command in commands)
        self.socket.sendall(data)
        moved["sent"] += len(data)

    def line(self):
        line = self.input.readline()
        moved["received"] += len(line)
        return line[:-2]

    def answer(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind == b"$":
            data = self.input.read(int(rest) + 2)
            moved["received"] += len(data)
            assert data[-2:] == b"\r\n"
            return data[:-2]
        assert kind in b"+:", line
        return rest

    def ask(self, *words):
        self.send(words)
        return self.answer()


def encode(words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
    return b"".join(parts)


def same(got, expected):
    assert got == expected, f"{got[:80]}... is not {expected[:80]}..."
    moved["verified"] += 1


def large_and_small_values(redis):
    for size in SIZES:
        value = rng.randbytes(size)
        same(redis.ask("SET", f"value:{size}", value), b"OK")
        same(redis.ask("GET", f"value:{size}"), value)
    for size in SIZES:
        same(redis.ask("STRLEN", f"value:{size}"), b"%d" % size)


def bursts(redis):
    """Many small sends before the first answer is read."""
    values = [rng.randbytes(rng.randrange(1, 500)) for _ in range(500)]
    for number, value in enumerate(values):
        redis.send(("SET", f"burst:{number}", value))
    for _ in values:
        same(redis.answer(), b"OK")
    for number in range(len(values)):
        redis.send(("GET", f"burst:{number}"))
    for value in values:
        same(redis.answer(), value)


def pipeline(redis):
    values = [rng.randbytes(rng.choice([1, 50, 5000, 70000])) for _ in range(100)]
    redis.send(*[("SET", f"pipe:{number}", value) for number, value in enumerate(values)],
               *[("GET", f"pipe:{number}") for number in range(len(values))])
    for _ in values:
        same(redis.answer(), b"OK")
    for value in values:
        same(redis.answer(), value)


def subscribe(redis):
    listener = Redis()
    same(listener.ask("SUBSCRIBE", "news")[1], b"news")
    messages = [rng.randbytes(rng.choice([1, 10, 1000, 100_000])) for _ in range(100)]
    for message in messages:
        redis.send(("PUBLISH", "news", message))
    for message in messages:
        same(redis.answer(), b"1")
        same(listener.answer(), [b"message", b"news", message])
    listener.input.close()
    listener.socket.close()


client = Redis()
for part in (large_and_small_values, bursts, pipeline, subscribe):
    part(client)
client.ask("FLUSHALL")
json.dump(moved, sys.stdout)
