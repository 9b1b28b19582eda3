# SPDX-License-Identifier: MIT
"""What the tests of the commands share: where the build is, and how a command of it is run."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

BUILD = pathlib.Path(os.environ.get("ZC_BUILD", pathlib.Path(__file__).parents[2] / "build" / "dev"))


# The rows of common/paths.def: each path's name, and whether it moves bytes itself.
_ROWS = re.findall(
    r'^ZC_PATH\(\w+, "(\w+)", ([01])', (pathlib.Path(__file__).parents[2] / "common/paths.def").read_text(), re.MULTILINE
)
PATHS = [name for name, _ in _ROWS]
SENDING_PATHS = [name for name, sends in _ROWS if sends == "1"]


def clean_environment(**more):
    """The environment without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ZC_")}
    kept.pop("LD_PRELOAD", None)
    # Leaks of programs that run under a sanitized library (Python, the shell) are none of ours.
    kept["ASAN_OPTIONS"] = "detect_leaks=0"
    return kept | more


@pytest.fixture(scope="session")
def build():
    """The build directory whose programs are tested (ZC_BUILD; build/dev by default)."""
    return BUILD


@pytest.fixture(scope="session")
def zc():
    """Runs zc with arguments; keywords that start with ZC_ or LD_ become its environment."""

    def run(*arguments, **keywords):
        names = [name for name in keywords if name.isupper() or name == "container"]
        environment = clean_environment(**{name: keywords.pop(name) for name in names})
        keywords.setdefault("timeout", 60)
        keywords.setdefault("env", environment)
        keywords.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [BUILD / "apps/zc/zc", *map(str, arguments)], capture_output=True, text=True, check=False, **keywords
        )

    return run


@pytest.fixture(scope="module")
def open_directory():
    """A directory that another user can look into, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield pathlib.Path(directory)


@pytest.fixture(scope="module")
def public_zc(open_directory, build):
    """zc and its library where another user can execute them."""
    for part in ["apps/zc/zc", "preload/libzc.so"]:
        (open_directory / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(build / part, open_directory / part)
    (open_directory / "apps").chmod(0o755)
    (open_directory / "apps/zc").chmod(0o755)
    (open_directory / "preload").chmod(0o755)
    return open_directory / "apps/zc/zc"
