# SPDX-License-Identifier: MIT
"""A JVM under the library: a selector with direct buffers, blocking sockets and channels; it has its own SIGSEGV handler."""
import json

from apps import PROGRAMS, need


def java(bench, *arguments):
    """Returns the command that runs Exchange.java, compiled once for all runs."""
    classes = bench.directory / "java"
    if not classes.exists():
        classes.mkdir(0o755)
        bench.run([need("javac"), "-d", classes, PROGRAMS / "Exchange.java"])
    return [need("java"), "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m", "-cp", classes, "Exchange", *arguments]


def start_server(bench, path):
    return bench.start(lambda port: java(bench, "server", port), path, quit_signal=9)


def test_bodies_come_back(pairing):
    client = pairing.run(java(pairing.bench, "client", pairing.server.port))
    told = json.loads(client.output)
    assert told["verified"] == 28
    pairing.check(client, told["sent"], told["received"], ["zerocopy"], ["zerocopy"])
