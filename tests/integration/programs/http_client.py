# SPDX-License-Identifier: MIT
"""http_client.py PORT GET|ECHO PREFIX...: asks an HTTP server for bodies under each prefix and compares them; prints what it moved
as JSON. GET: PREFIX/SIZE is the body of that size. ECHO: what is posted there comes back.

Each prefix is asked over one connection kept alive, then by a pipeline of requests that leave in sends of their own, then over
several connections at once. It knows nothing of zc.
"""
import concurrent.futures
import http.client
import json
import socket
import sys

from address import ADDRESS
from bodies import SIZES, body

port, verb, prefixes = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
moved = {"sent": 0, "received": 0, "verified": 0}


def same(got, expected):
    assert got == expected, f"{len(got)} bytes are not the {len(expected)} expected"
    moved["received"] += len(got)
    moved["verified"] += 1


def ask(connection, prefix, size):
    if verb == "GET":
        connection.request("GET", f"{prefix}/{size}")
    else:
        connection.request("POST", prefix, body(size))
        moved["sent"] += size
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    same(answer.read(), body(size))


def keep_alive(prefix):
    connection = http.client.HTTPConnection(ADDRESS, port)
    connection.connect()
    descriptor = connection.sock.fileno()
    for size in SIZES:
        ask(connection, prefix, size)
        assert connection.sock and connection.sock.fileno() == descriptor, "not kept alive"
    connection.close()


def pipeline(prefix):
    sizes = [1, 1024, 1, 65536, 100_001] * 10
    with socket.create_connection((ADDRESS, port)) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, size in enumerate(sizes):
            last = "Connection: close\r\n" if number == len(sizes) - 1 else ""
            request = f"GET {prefix}/{size} HTTP/1.1\r\nHost: here\r\n{last}\r\n".encode()
            connection.sendall(request)
            moved["sent"] += len(request)
        for size in sizes:
            assert b" 200 " in answers.readline()
            while (line := answers.readline()) != b"\r\n":
                assert line, "the server closed the connection"
                if line.lower().startswith(b"content-length:"):
                    assert int(line.split(b":")[1]) == size
            same(answers.read(size), body(size))
        assert answers.read() == b""


def crowd(prefix):
    def one(number):
        connection = http.client.HTTPConnection(ADDRESS, port)
        for size in SIZES[number % 2 : -1 : 2]:
            ask(connection, prefix, size)
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(4)))


for each in prefixes:
    keep_alive(each)
    if verb == "GET":
        pipeline(each)
    crowd(each)
json.dump(moved, sys.stdout)
