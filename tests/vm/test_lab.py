# SPDX-License-Identifier: MIT
"""The lab: what a command in its guest gets and gives, soft-RoCE in there, the library on the guest's kernel, and an end that
leaves nothing behind."""
import json
import os
import pathlib
import platform
import select
import signal
import subprocess
import time

import pytest
from conftest import BUILD, environment, lab_command


def test_output_and_exit_status_are_the_commands(guest):
    assert guest.process.returncode == 7, guest.process.stderr
    assert guest.process.stdout == "to standard output\nlast line\n"
    assert "to standard error\n" in guest.process.stderr


def test_kernel_is_the_guests_own(guest):
    release = guest.text("kernel").strip()
    assert release.endswith("-amd64")
    assert release != platform.release()


def test_files_elsewhere_stay_as_they_were(guest):
    guest.text("elsewhere")
    assert not (BUILD / "written-in-the-guest").exists()


def test_command_starts_in_the_same_directory(guest):
    assert guest.text("directory") == f"{BUILD}\n"


def test_environment_is_passed_on(guest):
    assert guest.text("environment") == "a 'b' \"c\" $d\n\\e\nfrom\noutside\n"


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_rdma_between_both_hosts(guest, family):
    assert guest.text(f"ping_{family}").count("ping data: rdma-ping-") == 3


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_rdma_after_an_interface_was_down(guest, family):
    guest.text("link")
    assert guest.text(f"ping_{family}_again").count("ping data: rdma-ping-") == 3


def test_rdma_is_sent_by_both_devices(guest):
    before, after = guest.counters("before"), guest.counters("after_ping")
    for device in ["rxe0", "rxe1"]:
        assert after[device] > before[device]


def test_tcp_crosses_the_link_between_both_hosts(guest):
    sent = guest.measured("sg")["bytes"] + guest.measured("zerocopy")["bytes"]
    # The messages go from zc1 to zc0, requests and acknowledgements the other way.
    before, after = guest.counters("after_ping"), guest.counters("after_tcp")
    assert after["zc1"] - before["zc1"] > sent
    assert after["zc0"] > before["zc0"]


def checks_of(guest, step):
    return {check["id"]: check for check in json.loads(guest.text(step))["checks"]}


def test_doctor_opens_the_devices(guest):
    checks = checks_of(guest, "doctor")
    assert checks["rdma"]["state"] == "ok"
    assert "rxe0" in checks["rdma"]["value"] and "rxe1" in checks["rdma"]["value"] and "queue pairs" in checks["rdma"]["value"]
    assert checks["library"]["state"] == "ok"
    assert checks["zerocopy_path"]["state"] == "ok"


def test_doctor_tells_of_a_root_that_may_lock_little(guest):
    rdma = checks_of(guest, "doctor_little")["rdma"]
    assert rdma["state"] == "limited" and "1024 KB may be locked" in rdma["value"] and "ulimit -l" in rdma["remedy"]


@pytest.mark.parametrize("step, value, remedy", [("doctor_torn", "libzc-verbs.so can't be used", "libibverbs1"),
                                                 ("doctor_without_drivers", "there is no RDMA device", "ibverbs-providers")])
def test_doctor_tells_devices_that_cannot_be_opened(guest, step, value, remedy):
    rdma = checks_of(guest, step)["rdma"]
    assert rdma["state"] == "limited" and value in rdma["value"] and remedy in rdma["remedy"]


@pytest.mark.parametrize("path", ["sg", "zerocopy"])
def test_library_on_the_guests_kernel(guest, path):
    assert guest.measured(path)["verified"] is True
    assert guest.paths(f"stats-{path}").get(path, 0) > 0


def test_library_to_a_host_without_rdma(guest):
    assert guest.measured("plain")["verified"] is True


def children(pid):
    """The processes below this one, by number."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children(child)]
    return found


def program(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.parametrize("number,status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_end_by_signal_leaves_no_guest(prepared, tmp_path, number, status):
    with subprocess.Popen(
        lab_command("--no-install", "--no-rxe", "--writable", tmp_path, "--", "sleep", "1000"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment() | {"TMPDIR": str(tmp_path)}, start_new_session=True,
    ) as process:
        guests = []
        while not guests and process.poll() is None:
            guests = [pid for pid in children(process.pid) if program(pid).startswith("qemu")]
            time.sleep(0.05)
        assert guests, "the lab ended by itself"
        ended = os.pidfd_open(guests[0])
        process.send_signal(number)
        assert process.wait(30) == status
    with os.fdopen(ended) as descriptor:
        assert select.select([descriptor], [], [], 30)[0], "QEMU outlived the lab"
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_end_of_the_reader_ends_the_guest(prepared, tmp_path):
    with subprocess.Popen(
        lab_command("--no-install", "--no-rxe", "--writable", tmp_path, "--timeout", 240, "--", "yes"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(),
    ) as process:
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(60) == 141


def test_time_limit(prepared):
    done = prepared("--no-install", "--timeout", 1, "--", "true")
    assert done.returncode == 124
    assert "not done after 1 s" in done.stderr


@pytest.mark.parametrize("arguments,words", [
    ([], "no command"),
    (["--cpus", "0", "true"], "--cpus: '0'; allowed is a number from 1 to 64"),
    (["--memory", "x", "true"], "--memory: 'x'"),
    (["--timeout"], "--timeout needs a value"),
    (["--env", "x", "true"], "--env: 'x'; allowed is NAME=VALUE"),
    (["--accel", "x", "true"], "allowed are kvm and tcg"),
    (["--writable", "/nowhere", "true"], "'/nowhere' is no directory"),
    (["--nonsense", "true"], "there is no option '--nonsense'"),
])
def test_wrong_arguments_are_named(lab, arguments, words):
    done = lab(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_kernel_that_is_no_package_is_named(lab, tmp_path):
    """And what is there is left alone."""
    for name in ["kernel", "release"]:
        (tmp_path / name).write_text("as it was", encoding="ascii")
    (tmp_path / "modules").mkdir()
    done = lab("--no-install", "--prepare", env={**environment(), "LAB_DIR": str(tmp_path), "LAB_KERNEL": "/etc/passwd"})
    assert done.returncode == 1
    assert "LAB_KERNEL: '/etc/passwd'; allowed are files of Debian packages" in done.stderr
    assert (tmp_path / "kernel").read_text(encoding="ascii") == "as it was"


def test_help_names_every_option(lab):
    done = lab("--help")
    assert done.returncode == 0
    for option in ["--cpus", "--memory", "--timeout", "--writable", "--env", "--no-rxe", "--mtu", "--log", "--accel", "--no-install"]:
        assert option in done.stdout
