# SPDX-License-Identifier: MIT
"""zc doctor: every row is there, tells the truth where a test can change it, and helps."""
import ctypes
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

import pytest
from conftest import clean_environment

LIST = (pathlib.Path(__file__).parents[2] / "apps/zc/doctor.def").read_text()
CHECKS = re.findall(r'^ZC_CHECK\((\w+), "([^"]+)"', LIST, re.M)
IS_ROOT = os.geteuid() == 0
NOBODY = 65534
CC = os.environ.get("ZC_CC", "cc")

needs_root = pytest.mark.skipif(not IS_ROOT, reason="takes root to become another user or enter a namespace")


def checks_of(got, status=0):
    assert got.returncode == status, got.stderr
    report = json.loads(got.stdout)
    assert report["ready"] is (status == 0)
    return {check["id"]: check for check in report["checks"]}


def as_nobody(public_zc, *arguments, **keywords):
    keywords = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"} | keywords
    return subprocess.run([public_zc, "doctor", *arguments], capture_output=True, text=True, check=False, timeout=120,
                          env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"}, **keywords)


def test_table_has_every_row_of_the_list(zc):
    got = zc("doctor")
    assert got.returncode == 0 and not got.stderr
    for _, name in CHECKS:
        assert re.search(rf"^{re.escape(name)} +(ok|limited|missing) +\S", got.stdout, re.M)


def test_json_has_every_row_with_all_that_belongs_to_it(zc):
    checks = checks_of(zc("doctor", "--json"))
    assert list(checks) == [id for id, _ in CHECKS]
    for check in checks.values():
        assert check["state"] in ("ok", "limited", "missing") and check["value"] and check["purpose"]
        assert (check["remedy"] is None) == (check["state"] == "ok")
        if check["state"] == "limited":
            assert check["means"] or check["id"] == "rdma"


def test_library_is_tried_on_a_program(zc, build):
    library = checks_of(zc("doctor", "--json"))["library"]
    assert library["state"] == "ok" and str((build / "preload/libzc.so").resolve()) in library["value"]
    assert re.search(r"counted \d+ sends", library["value"])


def test_own_settings_of_the_user_do_not_change_the_answer(zc, tmp_path):
    checks = checks_of(zc("doctor", "--json", ZC_PATH="tcp", ZC_STATS_DIR=str(tmp_path), ZC_RULES="/absent"))
    assert checks["library"]["state"] == "ok" and not list(tmp_path.iterdir())


def test_missing_library_is_1_and_told(zc, tmp_path):
    got = zc("doctor", "--json", ZC_LIBRARY=str(tmp_path / "absent.so"))
    library = checks_of(got, 1)["library"]
    assert library["state"] == "missing" and "absent.so" in library["means"] and library["remedy"]
    got = zc("doctor", ZC_LIBRARY=str(tmp_path / "absent.so"))
    assert got.returncode == 1 and "can't run under zc" in got.stdout and "absent.so" in got.stdout


def test_library_that_is_none_is_1(zc, tmp_path):
    text = tmp_path / "libzc.so"
    text.write_text("no library\n")
    assert checks_of(zc("doctor", "--json", ZC_LIBRARY=str(text)), 1)["library"]["state"] == "missing"
    subprocess.run([CC, "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,libzc.so", "-o", text], input="int nothing;", text=True, check=True)
    library = checks_of(zc("doctor", "--json", ZC_LIBRARY=str(text)), 1)["library"]
    assert library["state"] == "missing" and "were not counted" in library["means"]


def test_library_that_kills_its_program_is_1(zc, tmp_path):
    killer = tmp_path / "libzc.so"
    source = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }"
    subprocess.run([CC, "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,libzc.so", "-o", killer], input=source, text=True, check=True)
    library = checks_of(zc("doctor", "--json", ZC_LIBRARY=str(killer)), 1)["library"]
    assert "signal 6" in library["means"]


def test_values_are_those_of_the_machine(zc):
    checks = checks_of(zc("doctor", "--json"))
    assert os.uname().release in checks["kernel"]["value"]
    assert checks["cores"]["value"].startswith(f"{len(os.sched_getaffinity(0))} of ")
    optmem = pathlib.Path("/proc/sys/net/core/optmem_max")
    assert not optmem.exists() or checks["optmem_max"]["value"] == f"{optmem.read_text().strip()} bytes"


def test_one_core_is_limited(zc):
    core = min(os.sched_getaffinity(0))
    cores = checks_of(zc("doctor", "--json", preexec_fn=lambda: os.sched_setaffinity(0, {core})))["cores"]
    assert cores["state"] == "limited" and cores["value"].startswith("1 of ")


def test_container_is_told_by_its_own_word(zc):
    if not pathlib.Path("/.dockerenv").exists() and not pathlib.Path("/run/.containerenv").exists():
        assert "podman" in checks_of(zc("doctor", "--json", container="podman"))["container"]["value"]
    else:
        assert checks_of(zc("doctor", "--json"))["container"]["value"].startswith("yes: ")


@needs_root
def test_small_memlock_is_limited_for_an_ordinary_user(public_zc):
    def memlock(limit, **environment):
        command = ["prlimit", f"--memlock={limit}:{limit}", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}",
                   "--clear-groups", public_zc, "doctor", "--json"]
        got = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/",
                             env=clean_environment(**environment))
        return checks_of(got)["memlock"]

    small = memlock(65536)
    assert small["state"] == "limited" and small["value"] == "64 kB" and "ulimit -l" in small["remedy"]
    assert memlock(65536, ZC_ZEROCOPY_BYTES_MAX="65536")["state"] == "ok"


@needs_root
def test_ordinary_user_without_userfaultfd_is_told_the_command(public_zc):
    found = checks_of(as_nobody(public_zc, "--json"))["userfaultfd"]
    allowed = pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "1"
    device = pathlib.Path("/dev/userfaultfd")
    if allowed or (device.exists() and device.stat().st_mode & 0o006 == 0o006):
        assert found["state"] == "ok"
    else:
        assert found["state"] == "limited" and "unprivileged_userfaultfd=1" in found["remedy"]
        assert "mprotect" in found["means"]


def forbid(*calls):
    """Installs a seccomp filter that answers EPERM to the calls."""
    allow, deny = 0x7FFF0000, 0x00050001
    program = [(0x20, 0, 0, 0)]  # load the call's number
    for index, call in enumerate(calls):
        program.append((0x15, len(calls) - index, 0, call))
    program += [(0x06, 0, 0, allow), (0x06, 0, 0, deny)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in program))

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("rows", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    described = Program(len(program), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(described), 0, 0) == 0  # PR_SET_SECCOMP, filter


CALLS = {"x86_64": (323, 310, 298), "aarch64": (282, 270, 241)}[os.uname().machine]


def test_what_a_filter_forbids_is_seen(zc):
    checks = checks_of(zc("doctor", "--json", preexec_fn=lambda: forbid(*CALLS)))
    assert checks["seccomp"]["state"] == "limited" and checks["seccomp"]["value"] == "a filter"
    assert checks["vm_readv"]["state"] == "missing" and "not permitted" in checks["vm_readv"]["value"]
    assert checks["perf"]["state"] == "missing" and "not permitted" in checks["perf"]["value"]
    if IS_ROOT and os.path.exists("/dev/userfaultfd"):
        assert checks["userfaultfd"]["value"] == "full, by /dev/userfaultfd"
    else:
        assert checks["userfaultfd"]["state"] == "limited"


@needs_root
def test_network_without_loopback_is_no_broken_library(build):
    if not shutil.which("unshare"):
        pytest.skip("unshare is missing (package util-linux)")
    got = subprocess.run(["unshare", "-n", build / "apps/zc/zc", "doctor", "--json"], capture_output=True, text=True,
                         check=False, env=clean_environment(), timeout=120)
    checks = checks_of(got)
    assert checks["library"]["state"] == "limited" and "loopback" in checks["library"]["value"]
    assert "lo up" in checks["library"]["remedy"] and checks["so_zerocopy"]["state"] == "missing"


def test_usage_errors(zc):
    for arguments, what in [(["now"], "'now'"), (["--json=x"], "--json")]:
        got = zc("doctor", *arguments)
        assert got.returncode == 2 and what in got.stderr and not got.stdout


def test_full_disk_is_a_failure(build):
    for arguments in [[], ["--json"]]:
        with open("/dev/full", "w", encoding="ascii") as full:
            got = subprocess.run([build / "apps/zc/zc", "doctor", *arguments], stdout=full, stderr=subprocess.PIPE,
                                 check=False, env=clean_environment(), timeout=120)
        assert got.returncode == 1 and b"No space left" in got.stderr
