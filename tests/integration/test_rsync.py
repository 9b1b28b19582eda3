# SPDX-License-Identifier: MIT
"""rsync under the library: a tree comes from its daemon, changes, and goes back as differences. The daemon forks for each
connection, and both ends fork once more."""
import pathlib
import random

from apps import ADDRESS, BETWEEN_HOSTS, need

FILES = {"empty": 0, "small": 10, "page": 4096, "deep/er/large": 3_000_000, **{f"many/{n}": 500 for n in range(100)}}
CONFIGURATION = """
use chroot = no
max connections = 0
lock file = {directory}/lock
[tree]
path = {directory}/tree
read only = no
{user}
"""


def write_tree(directory):
    for name, size in FILES.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.randbytes(size))


def content(directory):
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def start_server(bench, path):
    program = need("rsync")
    directory = bench.new_directory("rsync")
    (directory / "tree").mkdir()
    write_tree(directory / "tree")
    user = f"uid = {directory.stat().st_uid}\ngid = {directory.stat().st_gid}"
    configuration = directory / "rsyncd.conf"
    configuration.write_text(CONFIGURATION.format(directory=directory, user=user))
    server = bench.start(
        lambda port: [program, "--daemon", "--no-detach", f"--address={ADDRESS}", f"--port={port}", f"--config={configuration}",
                      "--log-file=/dev/stderr"],
        path)
    server.tree = directory / "tree"
    return server


def change(file: pathlib.Path):
    data = bytearray(file.read_bytes())
    data[len(data) // 2:len(data) // 2 + 100_000] = random.randbytes(300_000)
    file.write_bytes(data)


def test_tree_comes_and_goes_back_as_differences(pairing):
    program = need("rsync")
    copy = pairing.bench.new_directory("copy")
    address = f"rsync://{ADDRESS}:{pairing.server.port}/tree/"
    pairing.run([program, "-a", address, f"{copy}/"])
    assert content(copy) == content(pairing.server.tree)
    change(copy / "deep/er/large")
    push = pairing.run([program, "-a", "--no-whole-file", "--ignore-times", f"{copy}/", address])
    assert content(copy) == content(pairing.server.tree)
    # Both ends fork with the connection open, and a queue pair belongs to one process.
    pairing.check(push, 300_000, 3_000_000, lane=not BETWEEN_HOSTS)
