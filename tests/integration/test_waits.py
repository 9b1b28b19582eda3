# SPDX-License-Identifier: MIT
"""No path waits for the peer where TCP does not. Nothing is timed: the peer receives only after the other end has told that
it is done, so an end that waited for it would wait for ever.

The ends run programs/waits.c and do what they are told, one thing after the other. How much TCP's buffers take from a program
whose peer does not receive is measured without the library; under it, blocking sends of as much have to return.
"""
import os
import signal

import pytest
from apps import INSISTENCE, PATHS, Ordered, compiled

SHARED = [path for path in PATHS if path != "tcp"]
RINGS = {"bsdp", "zsdp", "azsdp"}
ROUNDS = 24
ROUND_BYTES = 20000
PIECE_BYTES = 32768


class Way(str):
    """A path, with settings of its own."""

    def __new__(cls, path, **settings):
        made = super().__new__(cls, path)
        made.settings = INSISTENCE.get(path, {}) | settings
        return made


WAYS = [None, *map(Way, SHARED), Way("azsdp", ZC_GUARD="mprotect")]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way and way + way.settings.get("ZC_GUARD", ""))
def path(request):
    return request.param


@pytest.fixture(scope="module")
def program(shared_directory):
    return compiled(shared_directory, "waits")


class End(Ordered):
    def __init__(self, bench, program, path, *arguments):
        super().__init__(bench, [program, *arguments], path, env=path.settings if path else {})

    def send(self, size, seed):
        self.order("send", size, seed)

    def receive(self, size, seed):
        self.order("receive", size, seed)
        assert self.hear() == "received"

    def has_sent(self):
        assert self.hear() == "sent"

    def stop(self):
        """Until go_on() it can do nothing at all."""
        pid = self.run.process.pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        os.kill(self.run.process.pid, signal.SIGCONT)


def pair(bench, program, path):
    """Two ends of a connection that has been used a while: it is on its rings, if it gets any."""
    server = End(bench, program, path, "listen")
    client = End(bench, program, path, "connect", server.hear())
    for seed in range(ROUNDS):
        for sender, receiver in [(client, server), (server, client)]:
            sender.send(ROUND_BYTES, seed)
            receiver.receive(ROUND_BYTES, seed)
            sender.has_sent()
    return server, client


def end_all(path, sent, *ends):
    """Each must have used its path, or the test has shown nothing."""
    for moved in [end.end() for end in ends]:
        assert path not in RINGS or moved.paths[path] > sent / 3, moved


@pytest.fixture(scope="module")
def fits(bench, program):
    """Bytes that TCP takes in each direction of a connection while nobody receives."""
    measured = []
    for _ in range(3):
        ends = pair(bench, program, None)
        for end in ends:
            end.order("fit")
        measured += [int(end.hear().split()[1]) for end in ends]
        for end in ends:
            end.run.end(signal.SIGKILL)
    # How much exactly depends on how sends fall into segments.
    return min(measured) * 7 // 8


def sizes(fits):
    return [1, 5000, 65536, 300001, 1 << 20, fits]


def test_both_send_before_they_receive(bench, program, path, fits):
    server, client = pair(bench, program, path)
    for seed, size in enumerate(sizes(fits)):
        for end in [server, client]:
            end.send(size, seed)
        for end in [server, client]:
            end.has_sent()
        for end in [server, client]:
            end.receive(size, seed)
    end_all(path, sum(sizes(fits)), server, client)


def test_many_sends_before_any_receive(bench, program, path, fits):
    """More buffers than can be announced at a time; each is rewritten before the next send."""
    server, client = pair(bench, program, path)
    pieces = fits // 2 // PIECE_BYTES
    for seed in range(pieces):
        for end in [server, client]:
            end.send(PIECE_BYTES, seed)
    for _ in range(pieces):
        server.has_sent()
        client.has_sent()
    for seed in range(pieces):
        for end in [server, client]:
            end.receive(PIECE_BYTES, seed)
    end_all(path if path == "bsdp" else None, pieces * PIECE_BYTES, server, client)


def test_buffer_is_rewritten_while_the_peer_can_do_nothing(bench, program, path, fits):
    """The rewriting ends, and what is received then is what was there when it was sent."""
    server, client = pair(bench, program, path)
    for seed, size in enumerate(sizes(fits)):
        for sender, receiver in [(client, server), (server, client)]:
            receiver.stop()
            sender.send(size, seed)
            sender.has_sent()
            receiver.go_on()
            receiver.receive(size, seed)
    end_all(path, sum(sizes(fits)), server, client)


def test_peer_is_stopped_in_its_receive(bench, program, path, fits):
    """Whoever looks for bytes does not have to be awake when they come."""
    server, client = pair(bench, program, path)
    for seed, size in enumerate(sizes(fits)):
        for sender, receiver in [(client, server), (server, client)]:
            receiver.order("receive", size, seed)
            receiver.stop()
            sender.send(size, seed)
            sender.has_sent()
            receiver.go_on()
            assert receiver.hear() == "received"
    end_all(path, sum(sizes(fits)), server, client)


def test_proxy_with_one_buffer(bench, program, path, fits):
    """The server receives only when the proxy has passed on everything."""
    server = End(bench, program, path, "listen")
    proxy = End(bench, program, path, "proxy", server.hear())
    client = End(bench, program, path, "connect", proxy.hear())
    for seed, size in enumerate([ROUND_BYTES] * ROUNDS + sizes(fits)):
        client.send(size, seed)
        proxy.order("relay", size)
        client.has_sent()
        assert proxy.hear() == "relayed"
        server.receive(size, seed)
    for moved in [client.end(), proxy.end()]:
        if path in RINGS:
            assert moved.paths[path] > ROUND_BYTES, moved
    server.end()
