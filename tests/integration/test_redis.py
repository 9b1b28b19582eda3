# SPDX-License-Identifier: MIT
"""Redis under the library: values of 1 B to 10 MB, bursts, pipelines, publish and subscribe, redis-cli, redis-benchmark,
and a replica, whose first copy of the data a forked child of the server writes."""
import random

from apps import ADDRESS, need


def start_server(bench, path, *more):
    program = need("redis-server")
    directory = bench.new_directory("redis")
    return bench.start(
        lambda port: [program, "--port", port, "--bind", ADDRESS, "--protected-mode", "no", "--save", "", "--dir", directory,
                      "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", *more],
        path)


def test_values_come_back(pairing):
    client = pairing.python("redis_client.py", pairing.server.port)
    assert client.told["verified"] > 1000
    pairing.check(client, client.told["sent"], client.told["received"],
                  client_takes=["sg", "zerocopy"], server_takes=["zerocopy"])


def test_redis_cli(pairing):
    program = need("redis-cli")
    value = random.randbytes(1_000_000).hex().encode()
    command = [program, "-h", ADDRESS, "-p", pairing.server.port]
    put = pairing.run([*command, "-x", "SET", "by-cli"], input=value)
    assert put.output == b"OK\n"
    got = pairing.run([*command, "GET", "by-cli"])
    assert got.output == value + b"\n"
    put.check(len(value))
    pairing.check(got, len("GET by-cli"), len(value), lane=False)  # one request, one answer


def test_redis_benchmark(bench, under, path):
    program = need("redis-benchmark")
    under.mark()
    done = bench.run([program, "-h", ADDRESS, "-p", under.port, "-n", "2000", "-c", "10", "-P", "8", "-d", "1000", "-q",
                      "-t", "set,get,lrange_100"], path=path)
    assert done.output.count(b"requests per second") >= 3
    done.check(2 * 2000 * 1000, lane=True)
    under.check(2000 * 1000, lane=True)


def test_replica_gets_everything(bench, under, path):
    cli = need("redis-cli")
    value = random.randbytes(3_000_000).hex().encode()

    def set_and_wait(key, data):
        """WAIT speaks of what its own connection has written: the replica has that, and so all that came before."""
        orders = b"SET %s %s\nWAIT 1 30000\n" % (key, data)
        assert bench.run([cli, "-h", ADDRESS, "-p", under.port], input=orders).output == b"OK\n1\n"

    bench.run([cli, "-h", ADDRESS, "-p", under.port, "-x", "SET", "before"], input=value)
    replica = start_server(bench, path, "--replicaof", f"{ADDRESS} {under.port}")
    set_and_wait(b"meanwhile", b"1")
    set_and_wait(b"after", value[::-1])
    for key, expected in [("before", value), ("after", value[::-1])]:
        assert bench.run([cli, "-h", ADDRESS, "-p", replica.port, "GET", key]).output == expected + b"\n"
    replica.end()
