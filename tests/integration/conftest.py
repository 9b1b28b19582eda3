# SPDX-License-Identifier: MIT
"""Fixtures of the tests of real applications. A test file defines `start_server(bench, path)`; a test that takes `pairing`
is then run on each path with the library at the server, at the client and at both, each server being started once."""
import os
import pathlib
import shutil
import tempfile

import pytest
from apps import BETWEEN_HOSTS, BUILD, MODES, PATHS, Bench, Pairing, adopt_orphans, end_orphans


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left():
    adopt_orphans()
    yield
    end_orphans()


@pytest.fixture(scope="session")
def shared_directory():
    """A directory that other users can look into, as pytest's own are not: some servers insist on another user."""
    with tempfile.TemporaryDirectory(prefix="zc-integration-") as directory:
        os.chmod(directory, 0o755)
        yield pathlib.Path(directory)


@pytest.fixture(scope="session")
def public_zc(shared_directory):
    """zc and its library where each user can execute them."""
    for part in ["apps/zc/zc", "preload/libzc.so", "rdma/libzc-verbs.so"]:
        if not (BUILD / part).exists():  # the plug-in, where its libraries are not
            continue
        copy = shared_directory / part
        copy.parent.mkdir(parents=True)
        shutil.copy(BUILD / part, copy)
        copy.chmod(0o755)
    return shared_directory / "apps/zc/zc"


@pytest.fixture(scope="session")
def bench(shared_directory, public_zc):
    """Starts and runs programs that any test of the file may use."""
    made = Bench(shared_directory, public_zc)
    with made.stack:
        yield made


@pytest.fixture(scope="module")
def native(request, bench):
    """The file's server without the library."""
    return request.module.start_server(bench, None)


@pytest.fixture(scope="module", params=PATHS)
def path(request):
    return request.param


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


# Between hosts each test has its own: a server whose clients had no library leaves their host alone for a minute.
@pytest.fixture(scope=lambda fixture_name, config: "function" if BETWEEN_HOSTS else "module")
def under(request, bench, path):
    """The file's server under the library on this path."""
    run = request.module.start_server(bench, path)
    yield run
    run.end()


@pytest.fixture
def pairing(bench, path, mode, native, under):
    return Pairing(bench, path, mode, lambda wanted: under if wanted else native)
