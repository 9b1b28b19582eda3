# SPDX-License-Identifier: MIT
"""git under the library: a clone from git daemon and a push to it. The daemon hands its connection to another program as standard
input and output."""
import random
import subprocess

import pytest
from apps import ADDRESS, environment, need

BYTES = 1_000_000
IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]


def git(directory, *arguments):
    return subprocess.run([need("git"), *IDENTITY, "-C", directory, *arguments], capture_output=True, text=True, check=True,
                          env=settings()).stdout


def settings():
    """None of the configuration of the machine and its user."""
    return environment(GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1", GIT_TERMINAL_PROMPT="0")


def commit_files(directory):
    for name in ["one", "two"]:
        (directory / name).write_bytes(random.randbytes(BYTES))
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "random files")


def start_server(bench, path):
    directory = bench.new_directory("git")
    source = directory / "source"
    git(directory, "init", "-q", "-b", "trunk", source)
    commit_files(source)
    git(directory, "clone", "-q", "--bare", source, directory / "bare.git")
    server = bench.start(
        lambda port: [need("git"), "daemon", f"--listen={ADDRESS}", f"--port={port}", "--export-all", "--reuseaddr",
                      "--enable=receive-pack", f"--base-path={directory}", directory],
        path, env={"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"})
    server.repository = directory / "bare.git"
    return server


@pytest.fixture
def clone(pairing):
    return pairing.bench.new_directory("clone") / "clone"


def test_clone_and_push_arrive(pairing, clone):
    keywords = {"env": {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}}
    address = f"git://{ADDRESS}:{pairing.server.port}/bare.git"
    pairing.run([need("git"), "clone", "-q", address, clone], **keywords)
    git(clone, "fsck", "--full", "--strict")
    assert git(clone, "rev-parse", "HEAD") == git(pairing.server.repository, "rev-parse", "HEAD")
    commit_files(clone)
    push = pairing.run([need("git"), "-C", clone, "push", "-q", "origin", "trunk"], **keywords)
    git(pairing.server.repository, "fsck", "--full", "--strict")
    assert git(clone, "rev-parse", "HEAD") == git(pairing.server.repository, "rev-parse", "HEAD")
    pairing.check(push, 2 * BYTES, 2 * BYTES, lane=False)  # its daemon executes programs
