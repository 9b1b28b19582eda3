# SPDX-License-Identifier: MIT
"""zc: help, version, and arguments that are none."""
import pathlib
import re

import pytest

DEFINITIONS = pathlib.Path(__file__).parents[2] / "apps/zc/commands.def"
COMMANDS = [name for name in re.findall(r"^ZC_COMMAND\((\w+),", DEFINITIONS.read_text(), re.M) if name != "compare"]


def test_version_is_the_one_of_the_source(zc):
    header = (DEFINITIONS.parents[2] / "common/version.h").read_text()
    version = re.search(r'ZC_VERSION "(.+)"', header)[1]
    got = zc("--version")
    assert (got.returncode, got.stdout) == (0, f"zc {version}\n")


@pytest.mark.parametrize("way", [["--help"], ["-h"], ["help"], ["help", "help"]])
def test_help_lists_every_command(zc, way):
    got = zc(*way)
    assert got.returncode == 0 and not got.stderr
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w", got.stdout, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_in_both_ways(zc, command):
    by_help, by_option = zc("help", command), zc(command, "--help")
    assert by_help.returncode == by_option.returncode == 0
    assert by_help.stdout == by_option.stdout
    assert by_help.stdout.startswith(f"Usage: zc {command} ")
    assert max(map(len, by_help.stdout.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["help", "nonsense"], ["--nonsense"], ["help", "run", "run"]])
def test_bad_usage_is_2_with_a_message(zc, arguments):
    got = zc(*arguments)
    assert got.returncode == 2 and not got.stdout
    assert got.stderr.startswith("zc")


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_is_named(zc, command):
    got = zc(command, "--nonsense")
    assert got.returncode == 2
    assert "--nonsense" in got.stderr and f"zc help {command}" in got.stderr


def test_full_disk_is_a_failure(build):
    import subprocess

    with open("/dev/full", "w", encoding="ascii") as full:
        got = subprocess.run([build / "apps/zc/zc", "--help"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert got.returncode == 1 and b"No space left" in got.stderr
