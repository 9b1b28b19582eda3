# SPDX-License-Identifier: MIT
"""ZC_RECV_ASYNC: whatever a program does with its memory right after a receive, its bytes are the ones that were sent.

programs/later.c does it, on paths that announce, and the statistics prove that receives have returned before their bytes."""
import json
import subprocess

import pytest
from apps import compiled, environment

ROUNDS = 120
BYTES = 256 * 1024
LATER = {"ZC_RECV_ASYNC": "yes", "ZC_SOURCE_MIN": "4096"}


@pytest.fixture(scope="module", params=["zsdp", "azsdp"])
def path(request):
    return request.param


@pytest.fixture(scope="module")
def program(shared_directory):
    return compiled(shared_directory, "later")


def counted(bench, run):
    """Bytes that came later, and receives that could not."""
    later = none = 0
    for file in run.directory.glob("zc-*.stats"):
        got = subprocess.run([bench.zc, "stat", "--json", file], capture_output=True, check=True, env=environment())
        told = json.loads(got.stdout)["processes"][0]["all"]
        later += told["counters"]["later_bytes"]
        none += told["reasons"]["no_recv_async"]
    return later, none


@pytest.mark.parametrize("what", ["thread", "fork", "file", "mremap", "munmap", "realloc", "mprotect", "madvise", "close",
                                  "exec", "end"])
def test_memory_has_the_bytes_whatever_is_done_with_it(bench, program, path, what):
    done = bench.run([program, what, ROUNDS], path, env=LATER)
    assert done.output == b"right %d\n" % (ROUNDS * BYTES)
    later, none = counted(bench, done)
    if what != "exec":  # the new program's statistics are in the file's place
        assert later > 0 or none > 0, f"every receive has waited for its bytes: {done.moved()}"


def test_off_by_default(bench, program, path):
    done = bench.run([program, "thread", ROUNDS], path, env={"ZC_SOURCE_MIN": "4096"})
    assert counted(bench, done) == (0, 0)
