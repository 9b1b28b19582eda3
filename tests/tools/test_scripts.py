# SPDX-License-Identifier: MIT
"""The scripts of the house, up to where they would install, build or measure: what they refuse, and what they say then."""
import fcntl
import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import PATHS, clean_environment

SOURCE = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (SOURCE / "scripts").iterdir() if os.access(path, os.X_OK))


@pytest.fixture
def tree(tmp_path):
    """As much of the source tree as these tests need: a demo that somebody runs in the real one is not in the way."""
    copy = tmp_path / "tree"
    copy.mkdir()
    shutil.copytree(SOURCE / "scripts", copy / "scripts")
    for name in ["common", "experiments", "tests"]:
        (copy / name).symlink_to(SOURCE / name)
    return copy


@pytest.fixture
def script(tree, tmp_path):
    """Runs a script with TMPDIR in a directory of the test; nothing may be left there."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(name, *arguments, cwd=tree, **environment):
        return subprocess.run(
            [tree / "scripts" / name, *arguments], capture_output=True, text=True, check=False, timeout=60,
            stdin=subprocess.DEVNULL, cwd=cwd, env=clean_environment(TMPDIR=str(temporary)) | environment,
        )

    yield run
    assert not list(temporary.iterdir())


@pytest.fixture
def few_programs(tmp_path):
    """A PATH on which there is little more than what the shell needs."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ["bash", "dirname", "readlink", "mktemp", "rm", "flock", "sed", "grep"]:
        (directory / name).symlink_to(shutil.which(name))
    return str(directory)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_given_from_anywhere(name, script, tmp_path):
    done = script(name, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: scripts/{name}")


@pytest.mark.parametrize(("name", "arguments", "said"), [
    ("demo", ["--fast"], "there is no option '--fast'"),
    ("demo", ["redis"], "there is no option 'redis'"),
    ("demo", ["--repeat"], "--repeat needs a value"),
    ("demo", ["--paths"], "--paths needs a value"),
    ("demo", ["--repeat", "4"], "--repeat: '4'; allowed is a number from 5 to 20"),
    ("demo", ["--repeat", "21"], "--repeat: '21'; allowed is a number from 5 to 20"),
    ("demo", ["--repeat", "many"], "--repeat: 'many'; allowed is a number from 5 to 20"),
    ("demo", ["--repeat", ""], "--repeat: ''; allowed is a number from 5 to 20"),
    ("demo", ["--paths", "tcp,quick"], f"--paths: there is no path 'quick'; paths are {', '.join(PATHS)}"),
    ("demo", ["--paths", "tcp,"], "--paths: 'tcp,' ends with a comma"),
    ("deps", [], "usage: scripts/deps GROUP..."),
    ("deps", ["build", "toys"], "there is no group 'toys'"),
    ("check", ["shell", "spelling"], "there is no check 'spelling'"),
    ("check", ["() { :"], "there is no check '() { :'"),
    ("fuzz", ["nothing"], "there is no target 'nothing'"),
    ("fuzz", ["lane", "--seconds", "0"], "--seconds needs a number, 1 or more"),
    ("experiments", [], "usage: scripts/experiments"),
    ("experiments", ["sell"], "invalid choice: 'sell'"),
])
def test_wrong_usage_is_told_before_anything_is_done(name, arguments, said, script):
    done = script(name, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_demo_names_the_program_that_is_missing(script, few_programs):
    done = script("demo", "--no-install", PATH=few_programs)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "scripts/demo: cmake is missing; scripts/deps build demo installs it\n"


def test_demo_says_what_to_do_without_apt(script, few_programs):
    done = script("demo", PATH=few_programs)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no apt-get (is this Debian?)" in done.stderr and "--no-install" in done.stderr


def test_two_demos_do_not_share_a_tree(tree, script, few_programs):
    with open(tree / "scripts/demo", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = script("demo", "--no-install", PATH=few_programs)
    assert (done.returncode, done.stderr) == (1, f"scripts/demo: another scripts/demo is running in {tree}\n")
