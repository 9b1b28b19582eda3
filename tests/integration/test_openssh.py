# SPDX-License-Identifier: MIT
"""OpenSSH under the library: a file comes and goes by cat, scp and sftp. The server passes its connection on over exec, fork and a
change of user into a process with a seccomp filter; the client closes all descriptors that it does not know."""
import os
import pathlib
import pwd
import random

import pytest
from apps import ADDRESS, IS_ROOT, need

CONFIGURATION = """
ListenAddress {address}:{port}
HostKey {directory}/host
AuthorizedKeysFile {directory}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
"""
BYTES = 1_000_001
# sshd insists on it when it is started by root.
PRIVILEGE_SEPARATION = pathlib.Path("/run/sshd")


@pytest.fixture(scope="module", autouse=True)
def privilege_separation_directory():
    absent = IS_ROOT and not PRIVILEGE_SEPARATION.exists()
    if absent:
        PRIVILEGE_SEPARATION.mkdir(0o755)
    yield
    if absent:
        PRIVILEGE_SEPARATION.rmdir()


def start_server(bench, path):
    program, keygen = need("sshd", "ssh-keygen")
    directory = bench.directory / "ssh"
    if not directory.exists():
        directory.mkdir(0o755)
        for key in ["host", "user"]:
            bench.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", directory / key])
        (directory / "file").write_bytes(random.randbytes(BYTES))

    def command(port):
        configuration = directory / f"config-{port}"
        configuration.write_text(CONFIGURATION.format(address=ADDRESS, port=port, directory=directory))
        return [program, "-D", "-e", "-f", configuration]

    return bench.start(command, path)


@pytest.fixture
def options(pairing):
    directory = pairing.bench.directory / "ssh"
    return ["-F", "none", "-q", "-i", directory / "user", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes",
            "-o", "UserKnownHostsFile=/dev/null", "-o", f"Port={pairing.server.port}"]


def test_files_come_and_go(pairing, options):
    ssh, scp, sftp = need("ssh", "scp", "sftp")
    host = f"{pwd.getpwuid(os.geteuid()).pw_name}@{ADDRESS}"
    file = pairing.bench.directory / "ssh" / "file"
    content = file.read_bytes()
    into = pairing.bench.new_directory("ssh")

    got = pairing.run([ssh, *options, host, f"cat {file}"])
    assert got.output == content
    put = pairing.run([scp, *options, file, f"{host}:{into}/by-scp"])
    assert (into / "by-scp").read_bytes() == content
    pairing.run([sftp, *options, "-b", "-", host], input=f"put {file} {into}/by-put\nget {file} {into}/by-get\n".encode())
    assert (into / "by-put").read_bytes() == content
    assert (into / "by-get").read_bytes() == content

    put.check(BYTES)
    pairing.check(got, 1000, 2 * BYTES, lane=False)  # sshd executes itself
