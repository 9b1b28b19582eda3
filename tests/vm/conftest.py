# SPDX-License-Identifier: MIT
"""What the tests of the lab share: the lab itself, and one start of its guest for all that is looked at in there."""
import json
import os
import pathlib
import re
import subprocess
import warnings

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ZC_BUILD", ROOT / "build" / "dev")).resolve()
INSIDE = pathlib.Path(__file__).resolve().parent / "programs"


def environment():
    """The environment without the settings of whoever runs the tests; where the lab keeps its kernel may stay."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ZC_")}
    kept.pop("LD_PRELOAD", None)
    return kept


def lab_command(*arguments):
    return [ROOT / "scripts" / "lab", *map(str, arguments)]


def missing(why):
    """Skips the tests, or fails them where nothing may be missing."""
    (pytest.fail if os.environ.get("TESTS_REQUIRE_ALL") == "1" else pytest.skip)(why)


@pytest.fixture(scope="session")
def lab():
    """Runs the lab with arguments and returns the completed process."""

    def run(*arguments, **keywords):
        keywords.setdefault("timeout", 280)
        keywords.setdefault("env", environment())
        return subprocess.run(
            lab_command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **keywords
        )

    return run


@pytest.fixture(scope="session")
def prepared(lab):
    """The lab with all that a start needs; without it the tests are skipped, or fail where nothing may be missing."""
    done = lab("--no-install", "--prepare")
    if done.returncode:
        missing(f"the lab cannot start here: {done.stderr.strip()}")
    return lab


def is_lost(process):
    """Whether the time ran out (scripts/lab's status 124), or the emulator itself died of a signal: QEMU 7.2 did so in one of hundreds of starts."""
    return process.returncode == 124 or process.returncode == 125 and re.search(r"\(QEMU's is 1[3-5]\d\)", process.stderr)


class Guest:
    """What the one start left."""

    def __init__(self, process, directory):
        self.process = process
        self.directory = directory

    def text(self, step):
        """What the step printed; it has to have ended well."""
        status = (self.directory / f"{step}.status").read_text().strip()
        text = (self.directory / f"{step}.txt").read_text()
        assert status == "0", f"{step} ended with status {status}:\n{text}"
        return text

    def counters(self, step):
        return {name: int(value) for name, value in (line.split() for line in self.text(step).splitlines())}

    def measured(self, step):
        """What the measuring program of the step told."""
        text = self.text(step)
        return json.loads(text[text.index("{"):])

    def paths(self, directory):
        """Bytes by path, of all processes that left statistics in the directory."""
        total = {}
        for file in (self.directory / directory).iterdir():
            shown = subprocess.run([BUILD / "apps/zc/zc", "stat", "--json", file], capture_output=True, check=True, env=environment())
            for process in json.loads(shown.stdout)["processes"]:
                for path, told in process["all"]["paths"].items():
                    total[path] = total.get(path, 0) + told["bytes"]
        return total


@pytest.fixture(scope="session")
def start_guest(prepared, tmp_path_factory):
    """Starts the guest once with programs/PROGRAM BUILD ARGUMENT... in it; returns what that left, once it has ended."""

    def run(program, arguments, seconds, directory, settings, keywords):
        return prepared(
            "--no-install", "--writable", directory, "--timeout", seconds, "--", INSIDE / program, BUILD, *arguments,
            env=environment() | (settings or {}), timeout=seconds + 10, **keywords,
        )

    def start(program, *arguments, seconds, settings=None, **keywords):
        if not (BUILD / "rdma/libzc-verbs.so").exists():
            missing("built without libibverbs and librdmacm")
        directory = tmp_path_factory.mktemp("writable")
        process = run(program, arguments, seconds, directory, settings, keywords)
        if is_lost(process):
            # Steps have limits of their own. Soft-RoCE of the guest's kernel spins now and then when its packets are dropped.
            warnings.warn(f"{program}: the guest was lost, once more: {process.stderr[-500:]}")
            directory = tmp_path_factory.mktemp("writable")
            process = run(program, arguments, seconds, directory, settings, keywords)
        assert process.returncode == 0, process.stderr
        return Guest(process, directory)

    return start


@pytest.fixture(scope="session")
def guest(prepared, tmp_path_factory):
    directory = tmp_path_factory.mktemp("writable")
    process = prepared(
        "--no-install", "--writable", directory, "--timeout", 240, "--env", "LAB_TEST_GIVEN=a 'b' \"c\" $d\n\\e", "--", INSIDE / "inside", BUILD,
        cwd=BUILD, env=environment() | {"LAB_TEST_INHERITED": "from\noutside"},
    )
    return Guest(process, directory)
