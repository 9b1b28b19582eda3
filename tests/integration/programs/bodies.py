# SPDX-License-Identifier: MIT
"""The bodies that servers hand out and clients expect, known to both by their size alone."""
import functools
import random

SIZES = [0, 1, 1024, 65536, 100_001, 1 << 20, 10_000_000]


@functools.cache
def body(size):
    return random.Random(size).randbytes(size)


def write_bodies(directory):
    """Leaves a file named after its size for each of SIZES."""
    for size in SIZES:
        (directory / str(size)).write_bytes(body(size))
    return directory
