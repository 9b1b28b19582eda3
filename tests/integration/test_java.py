# SPDX-License-Identifier: MIT
"""A JVM under the library: a selector with direct buffers, blocking sockets and channels; it has its own SIGSEGV handler."""
import json

from apps import PROGRAMS, need, process_counters


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


def test_null_pointers_beside_guarded_sends(bench):
    """Both ask for SIGSEGV: the JVM for its null checks, the guard for writes to what is being sent. Each gets its own."""
    settings = {"ZC_GUARD": "mprotect"}
    server = bench.start(lambda port: java(bench, "server", port), "azsdp", quit_signal=9, env=settings)
    client = bench.run(java(bench, "client", server.port, "nulls"), "azsdp", env=settings)
    told = json.loads(client.output)
    assert told["verified"] == 28 and told["nulls"] > 1000
    for run, sent in [(server, told["received"]), (client, told["sent"])]:
        run.check(sent, lane=True)
        assert run.moved().paths["azsdp"] > 1_000_000, run.moved()
    counted = [process_counters(bench, run) for run in [server, client]]
    assert all(process["guards"] > 0 for process in counted) and sum(process["faults"] for process in counted) > 0, counted
