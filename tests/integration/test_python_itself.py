# SPDX-License-Identifier: MIT
"""CPython's own tests of sockets and selectors under the library: each single test ends as it does without, on each path."""
import concurrent.futures
import subprocess
import sys
import xml.etree.ElementTree

import pytest
from apps import PATHS, missing

# Without a hypervisor those of VSOCK wait for ever, under the library or not.
NAMES = "*TestLinuxAbstractNamespace*"  # there is one of each on a machine: not for two at a time
TESTS = ["-v", "-i", "*VSOCK*", "-i", NAMES, "test_socket", "test_selectors"]


def python():
    """Returns an interpreter that has its own tests: Debian's come in a package of their own."""
    for candidate in ["/usr/bin/python3", sys.executable]:
        if subprocess.run([candidate, "-c", "import test.test_socket"], capture_output=True, check=False).returncode == 0:
            return candidate
    return missing("no Python with its own tests on this machine (Debian: libpython3.11-testsuite)")


def outcome_of(case):
    for kind in ["error", "failure", "skipped"]:
        if case.find(kind) is not None:
            return kind
    return "ok"


def run_tests(bench, interpreter, path, tests):
    directory = bench.new_directory("python")
    run = bench.run([interpreter, "-m", "test", "--junit-xml", directory / "results.xml", *tests], path=path, cwd=directory,
                    timeout=280, status=None)
    results = xml.etree.ElementTree.parse(directory / "results.xml")
    run.outcomes = {case.get("name"): outcome_of(case) for case in results.iter("testcase")}
    return run


@pytest.fixture(scope="module")
def runs(bench):
    """Nearly all runs at once: most of their time is spent in time-outs that they test."""
    interpreter = python()
    with concurrent.futures.ThreadPoolExecutor(len(PATHS) + 1) as threads:
        started = {path: threads.submit(run_tests, bench, interpreter, path, TESTS) for path in [None, *PATHS]}
        done = {path: run.result() for path, run in started.items()}
    for path, run in done.items():
        run.outcomes.update(run_tests(bench, interpreter, path, ["-m", NAMES, "test_socket"]).outcomes)
    return done


def test_each_test_ends_as_it_does_without(runs, path):
    native, run = runs[None], runs[path]
    assert list(native.outcomes.values()).count("ok") > 500
    different = {name: (outcome, run.outcomes.get(name)) for name, outcome in native.outcomes.items()
                 if run.outcomes.get(name) != outcome}
    assert not different, run.output[-20000:].decode(errors="replace")
    assert run.outcomes.keys() == native.outcomes.keys()
    run.check(1_000_000)
