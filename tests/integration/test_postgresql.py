# SPDX-License-Identifier: MIT
"""PostgreSQL under the library: large rows in and out by psql, and pgbench, whose sums must agree afterwards. The server forks a
process for each connection, and waits on sockets that it shares with it."""
import hashlib
import pathlib
import random
import shutil
import signal

from apps import ADDRESS, BETWEEN_HOSTS, IS_ROOT, missing

USER = {"user": "postgres", "group": "postgres", "extra_groups": []} if IS_ROOT else {}
SIZES = [1, 1000, 70_000, 1_000_000, 3_000_000]
# A queue pair is of one process, and here each connection goes from the one that accepted it to a child, which has another one only a second later.
LANE = not BETWEEN_HOSTS


def postgres(program):
    """Returns the full name of a program of PostgreSQL; those on the PATH are scripts around them."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    return found[-1] if found else shutil.which(program) or missing(f"no PostgreSQL ({program}) on this machine")


def start_server(bench, path):
    directory = bench.directory / ("postgresql-native" if path is None else "postgresql")
    if not directory.exists():
        made = bench.new_directory("postgresql")
        bench.run([postgres("initdb"), "-D", made / "data", "-A", "trust", "-U", "postgres", "--no-sync"], cwd="/", **USER)
        with (made / "data/pg_hba.conf").open("a") as allowed:  # it allows this host's own address alone
            allowed.write("host all all samenet trust\n")
        (made / "data").rename(directory)
    server = bench.start(
        lambda port: [postgres("postgres"), "-D", directory, "-p", port, "-c", f"listen_addresses={ADDRESS}",
                      "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=16MB"],
        path, quit_signal=signal.SIGINT, cwd="/", **USER)
    address = ["-h", ADDRESS, "-p", server.port, "-U", "postgres", "postgres"]
    # Its socket listens before it is ready to serve.
    bench.await_success([postgres("psql"), *address, "-c", "SELECT 1"])
    bench.run([postgres("pgbench"), "-i", "-I", "dtGp", "-q", *address])
    return server


def client(pairing, program, *arguments, **keywords):
    return pairing.run([postgres(program), "-h", ADDRESS, "-p", pairing.server.port, "-U", "postgres", *arguments, "postgres"],
                       **keywords)


def test_large_rows_come_back(pairing):
    rows = [random.randbytes(size // 2 + 1).hex()[:size] for size in SIZES]
    script = "\n".join([
        "CREATE TEMPORARY TABLE kept (number int, content text);",
        "ALTER TABLE kept ALTER content SET STORAGE EXTERNAL;",
        "COPY kept FROM STDIN;",
        *[f"{number}\t{content}" for number, content in enumerate(rows)],
        "\\.",
        "SELECT md5(content) FROM kept ORDER BY number;",
        "SELECT content FROM kept ORDER BY number;",
        "COPY (SELECT content FROM kept ORDER BY number DESC) TO STDOUT;",
    ])
    done = client(pairing, "psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", input=script.encode())
    hashes = [hashlib.md5(content.encode()).hexdigest() for content in rows]
    assert done.output.decode().split("\n") == [*hashes, *rows, *rows[::-1], ""]
    pairing.check(done, sum(SIZES), 2 * sum(SIZES), lane=LANE)


def test_pgbench_keeps_its_books(pairing):
    done = client(pairing, "pgbench", "-n", "-c", "4", "-j", "2", "-t", "20")
    assert b"number of transactions actually processed: 80/80" in done.output
    read = client(pairing, "pgbench", "-n", "-c", "4", "-j", "2", "-t", "100", "-S", "-M", "prepared")
    assert b"number of transactions actually processed: 400/400" in read.output
    sums = client(pairing, "psql", "-X", "-A", "-t", "-c", """
        SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
           AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)
           AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)""")
    assert sums.output == b"t\n"
    pairing.check(done, 80 * 100, 400 * 10, lane=LANE)
