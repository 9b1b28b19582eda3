# SPDX-License-Identifier: MIT
"""zc run: what it checks, what it refuses, and that what it starts is really under libzc.so."""
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest
from conftest import PATHS

CC = os.environ.get("ZC_CC", "cc")
IS_ROOT = os.geteuid() == 0
NOBODY = 65534


def compile_c(directory, name, source, *options):
    program = directory / name
    subprocess.run([CC, "-x", "c", "-", "-o", program, *options], input=source, text=True, check=True)
    return program


def script(directory, name, text):
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def static(open_directory):
    return compile_c(open_directory, "static", "int main(void) { return 5; }", "-static")


def loaded(zc, *arguments, **keywords):
    got = zc("run", *arguments, "cat", "/proc/self/maps", **keywords)
    assert got.returncode == 0, got.stderr
    return got.stdout


def test_library_is_loaded(zc, build):
    assert str((build / "preload/libzc.so").resolve()) in loaded(zc)


def test_exit_status_is_the_programs(zc):
    assert zc("run", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert zc("run", sys.executable, "-c", "import os; os.kill(os.getpid(), 15)").returncode == -15


def test_arguments_pass_untouched(zc):
    got = zc("run", "-p", "copy", "--", "printf", "%s|", "-p", "--anyway", "", "a b")
    assert got.stdout == "-p|--anyway||a b|"
    assert zc("run", "printf", "%s|", "-p", "x").stdout == "-p|x|"


@pytest.mark.parametrize("path", PATHS)
def test_path_is_handed_on(zc, path):
    assert zc("run", "-p", path, "printenv", "ZC_PATH").stdout == path + "\n"
    assert zc("run", f"--path={path}", "printenv", "ZC_PATH", ZC_PATH="copy").stdout == path + "\n"
    assert zc("run", "printenv", "ZC_PATH", ZC_PATH=path).stdout == path + "\n"


def test_what_is_preloaded_already_stays_behind(zc, build, tmp_path):
    other = compile_c(tmp_path, "other.so", "int other;", "-shared", "-fPIC")
    # A sanitizer's runtime has to stay in front of everything, for zc too.
    *runtime, library = zc("run", "printenv", "LD_PRELOAD").stdout.strip().split(":")
    assert library == str((build / "preload/libzc.so").resolve())
    before = ":".join([*runtime, str(other)])
    assert zc("run", "printenv", "LD_PRELOAD", LD_PRELOAD=before).stdout.strip() == ":".join([*runtime, library, before])
    maps = loaded(zc, LD_PRELOAD=before)
    assert library in maps and str(other) in maps


@pytest.mark.parametrize(
    "setting",
    [{"ZC_PATH": "fast"}, {"ZC_SG_HOLD_US": "0"}, {"ZC_GUARD": "maybe"}, {"ZC_NONSENSE": "1"}, {"ZC_ZEROCOPY_MIN": "1x"}],
)
def test_refused_setting_is_named_and_nothing_runs(zc, tmp_path, setting):
    made = tmp_path / "made"
    got = zc("run", "touch", made, **setting)
    assert got.returncode == 2 and not made.exists()
    for name, value in setting.items():
        assert name in got.stderr
        assert "allowed is" in got.stderr and value in got.stderr or "no setting" in got.stderr


def test_every_refused_setting_is_told(zc):
    got = zc("run", "true", ZC_PATH="x", ZC_LOG="y")
    assert "ZC_PATH" in got.stderr and "ZC_LOG" in got.stderr


@pytest.mark.parametrize(
    "text, what",
    [
        ("use fast client * *:*\n", "line 1: PATH is one of: " + " ".join(PATHS)),
        ("# fine\n\nuse sg client redis-* 10.0.0.0/8:6379\nuse sg both * *:*\n", "line 4"),
        ("use sg client * *:0\n", "PORT"),
        ("use sg client * 10.0.0.0/33:1\n", "PREFIX"),
        ("x" * 600, "line 1"),
    ],
)
def test_malformed_rule_is_named_with_its_line(zc, tmp_path, text, what):
    rules = tmp_path / "rules"
    rules.write_text(text)
    got = zc("run", "true", ZC_RULES=str(rules))
    assert got.returncode == 2 and str(rules) in got.stderr and what in got.stderr


def test_good_rules_pass(zc, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("use copy server nginx [::1]/128:80-443 # web\nuse sg client * *:*")
    assert zc("run", "true", ZC_RULES=str(rules)).returncode == 0


@pytest.mark.parametrize("name", ["ZC_RULES", "ZC_STATS_DIR", "ZC_LOG_FILE", "ZC_LIBRARY"])
def test_missing_file_is_named(zc, tmp_path, name):
    absent = str(tmp_path / "absent" / "file")
    got = zc("run", "true", **{name: absent, "ZC_LOG": "info"})
    assert got.returncode == (1 if name == "ZC_LIBRARY" else 2)
    assert name in got.stderr and absent in got.stderr


@pytest.mark.parametrize("mode", [0o777, 0o644])
def test_stats_dir_must_be_a_directory(zc, tmp_path, mode):
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)
    got = zc("run", "true", ZC_STATS_DIR=str(tmp_path / "file"))
    assert got.returncode == 2 and f"{tmp_path / 'file'}: is no directory; allowed is a directory" in got.stderr


def test_relative_files_stay_where_they_are_when_the_program_moves(zc, tmp_path):
    (tmp_path / "rules").write_text("use copy server * *:*\n")
    (tmp_path / "stats").mkdir()
    got = zc("run", "sh", "-c", "cd / && echo $ZC_RULES $ZC_STATS_DIR $ZC_LOG_FILE", ZC_RULES="rules", ZC_STATS_DIR="stats",
             ZC_LOG="error", ZC_LOG_FILE="./log", cwd=tmp_path)
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout.split() == [f"{tmp_path}/rules", f"{tmp_path}/stats", f"{tmp_path}/./log"]
    got = zc("run", "sh", "-c", "echo ${ZC_RULES-none}")
    assert got.stdout == "none\n"


def test_log_file_is_used(zc, tmp_path):
    log = tmp_path / "log"
    assert zc("run", "true", ZC_LOG="trace", ZC_LOG_FILE=str(log)).returncode == 0
    assert log.exists()


@pytest.mark.parametrize("arguments, what", [([], "COMMAND"), (["-p"], "-p"), (["-x", "true"], "-x"),
                                             (["--anyway=1", "true"], "--anyway"), (["-p", "up", "true"], "up")])
def test_usage_errors(zc, arguments, what):
    got = zc("run", *arguments)
    assert got.returncode == 2 and what in got.stderr and not got.stdout


@pytest.mark.parametrize("command", ["no-such-program-anywhere", "/no/such/program", "", "./absent"])
def test_missing_program_is_127(zc, tmp_path, command):
    got = zc("run", command, cwd=tmp_path)
    assert got.returncode == 127 and (command or "''") in got.stderr


def test_what_cannot_be_executed_is_126(zc, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("echo\n")
    for target in [plain, tmp_path]:
        got = zc("run", target)
        assert got.returncode == 126 and str(target) in got.stderr
    assert zc("run", "plain", PATH=str(tmp_path)).returncode == 126


def test_search_follows_path_and_its_empty_entry(zc, tmp_path, static):
    shutil.copy(static, tmp_path / "zc-test-program")
    assert zc("run", "zc-test-program", PATH=f"/nowhere:{tmp_path}").returncode == 1
    assert zc("run", "zc-test-program", PATH="/nowhere:", cwd=tmp_path).returncode == 1
    assert zc("run", "zc-test-program", PATH="/nowhere").returncode == 127


def test_static_program_is_refused_and_runs_anyway(zc, static):
    got = zc("run", static)
    assert got.returncode == 1 and str(static) in got.stderr and "static" in got.stderr and "--anyway" in got.stderr
    got = zc("run", "--anyway", static)
    assert got.returncode == 5 and "warning" in got.stderr and "static" in got.stderr


def test_static_pie_is_refused(zc, open_directory):
    program = compile_c(open_directory, "static-pie", "int main(void) { return 0; }", "-static-pie")
    got = zc("run", program)
    assert got.returncode == 1 and "static" in got.stderr


def test_loader_run_by_name_is_in_reach(zc):
    readelf = subprocess.run(["readelf", "-l", "/bin/true"], capture_output=True, text=True, check=True).stdout
    loader = readelf.split("interpreter: ")[1].split("]")[0]
    got = zc("run", loader, "/bin/cat", "/proc/self/maps")
    assert got.returncode == 0 and "libzc.so" in got.stdout


def elf(directory, name, bits=64, machine=62, loader=b"/lib64/ld-linux-x86-64.so.2\0", big=False):
    """A minimal ELF file: a header, one PT_INTERP."""
    order = ">" if big else "<"
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 2 if big else 1, 1]) + bytes(9)
    if bits == 64:
        header = ident + struct.pack(order + "HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        program = struct.pack(order + "IIQQQQQQ", 3, 4, 120, 0, 0, len(loader), len(loader), 1)
    else:
        header = ident + struct.pack(order + "HHIIIIIHHHHHH", 2, machine, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        program = struct.pack(order + "IIIIIIII", 3, 84, 0, 0, len(loader), len(loader), 4, 1)
    path = directory / name
    path.write_bytes(header + program + loader)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "keywords, what",
    [
        ({"bits": 32, "machine": 3}, "32-bit x86"),
        ({"bits": 32, "machine": 62}, "x32"),
        ({"machine": 243}, "RISC-V"),
        ({"machine": 22, "big": True}, "S/390"),
        ({"machine": 9999}, "another"),
    ],
)
def test_other_machine_is_refused(zc, tmp_path, keywords, what):
    got = zc("run", elf(tmp_path, "foreign", **keywords))
    assert got.returncode == 1 and what in got.stderr and "machine" in got.stderr


@pytest.fixture
def native():
    return {"x86_64": 62, "aarch64": 183}[os.uname().machine]


def test_missing_loader_is_127_and_named(zc, tmp_path, native):
    got = zc("run", elf(tmp_path, "orphan", machine=native, loader=b"/nowhere/ld.so\0"))
    assert got.returncode == 127 and "/nowhere/ld.so" in got.stderr


def test_other_libc_is_refused(zc, tmp_path, native):
    musl = tmp_path / "ld-musl-x86_64.so.1"
    shutil.copy("/bin/true", musl)
    got = zc("run", elf(tmp_path, "alpine", machine=native, loader=bytes(musl) + b"\0"))
    assert got.returncode == 1 and "musl" in got.stderr and "glibc" in got.stderr


@pytest.mark.parametrize("cut", [4, 16, 52, 63, 64, 100, 121])
def test_truncated_elf_is_126(zc, tmp_path, native, cut):
    whole = elf(tmp_path, "whole", machine=native)
    broken = tmp_path / "broken"
    broken.write_bytes(whole.read_bytes()[:cut])
    broken.chmod(0o755)
    got = zc("run", broken)
    assert got.returncode == 126 and "malformed" in got.stderr


def test_absurd_elf_headers_are_126(zc, tmp_path, native):
    for offset, value in [(54, b"\xff\xff"), (56, b"\xff\xff"), (32, b"\xff" * 8), (64 + 32, b"\xff" * 8), (64 + 8, b"\xff" * 8)]:
        image = bytearray(elf(tmp_path, "whole", machine=native).read_bytes())
        image[offset : offset + len(value)] = value
        broken = tmp_path / "broken"
        broken.write_bytes(image)
        broken.chmod(0o755)
        got = zc("run", broken)
        assert got.returncode == 126, (offset, got)


def test_go_program_is_refused(zc, tmp_path):
    note = r'''
__asm__(".section .note.go.buildid,\"a\",@note\n.balign 4\n.long 4, 4, 4\n.asciz \"Go\\0\"\n.long 7\n.previous\n");
int main(void) { return 0; }
'''
    got = zc("run", compile_c(tmp_path, "gopher", note))
    assert got.returncode == 1 and "Go program" in got.stderr


def test_script_is_judged_by_its_interpreter(zc, tmp_path, static):
    assert zc("run", script(tmp_path, "good", f"#!{sys.executable}\nraise SystemExit(9)\n")).returncode == 9
    bad = script(tmp_path, "bad", f"#! {static} -x\n")
    got = zc("run", bad)
    assert got.returncode == 1 and str(bad) in got.stderr and str(static) in got.stderr and "static" in got.stderr
    twice = script(tmp_path, "twice", f"#!{bad}\n")
    assert zc("run", twice).returncode == 1
    got = zc("run", script(tmp_path, "lost", "#!/no/interpreter\n"))
    assert got.returncode == 127 and "/no/interpreter" in got.stderr
    assert zc("run", script(tmp_path, "empty", "#!\n")).returncode == 126


def test_script_without_interpreter_is_the_shells(zc, build, tmp_path):
    if "SANITIZE:STRING=thread" in (build / "CMakeCache.txt").read_text():
        pytest.skip("the runtime of ThreadSanitizer kills shells, also without zc")
    assert zc("run", script(tmp_path, "plain", "exit 8\n")).returncode == 8
    assert zc("run", script(tmp_path, "nothing", "")).returncode == 0


def test_script_by_env_is_judged_by_the_program_that_env_runs(zc, tmp_path, static):
    path = f"{static.parent}:{os.environ['PATH']}"
    bad = script(tmp_path, "bad", f"#!/usr/bin/env {static.name}\n")
    got = zc("run", bad, PATH=path)
    assert got.returncode == 1 and "static" in got.stderr
    got = zc("run", script(tmp_path, "bad2", f"#!/usr/bin/env -S A=b {static.name} x\n"), PATH=path)
    assert got.returncode == 1 and "static" in got.stderr
    assert zc("run", script(tmp_path, "good", "#!/usr/bin/env python3\nraise SystemExit(6)\n")).returncode == 6
    assert zc("run", script(tmp_path, "lost", "#!/usr/bin/env no-such-program-anywhere\n")).returncode == 127


def test_endless_scripts_end(zc, tmp_path):
    loop = tmp_path / "loop"
    script(tmp_path, "loop", f"#!{loop}\n")
    assert zc("run", loop).returncode == 126


def as_nobody(public_zc, *arguments):
    environment = {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        [public_zc, "run", *arguments], capture_output=True, text=True, check=False, timeout=60, cwd="/",
        env=environment, user=NOBODY, group=NOBODY, extra_groups=[],
    )


@pytest.mark.skipif(not IS_ROOT, reason="takes root to make files of another owner")
class TestRights:
    def program(self, directory, name, mode):
        program = directory / name
        shutil.copy(shutil.which("id"), program)
        program.chmod(mode)
        return program

    @pytest.mark.parametrize("mode, what", [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")])
    def test_gained_rights_are_refused(self, public_zc, open_directory, zc, mode, what):
        program = self.program(open_directory, "gains", mode)
        got = as_nobody(public_zc, program)
        assert got.returncode == 1 and what in got.stderr and str(program) in got.stderr
        assert as_nobody(public_zc, "--anyway", program).returncode == 0
        # The owner gains nothing: libzc.so is loaded.
        assert zc("run", program).returncode == 0

    def test_group_bit_without_execute_is_no_gain(self, public_zc, open_directory):
        assert as_nobody(public_zc, self.program(open_directory, "mandatory", 0o2745)).returncode == 0

    def test_no_new_privileges_make_it_ordinary(self, public_zc, open_directory):
        program = self.program(open_directory, "tamed", 0o4755)
        got = as_nobody(public_zc, "setpriv", "--no-new-privs", public_zc, "run", program)
        assert got.returncode == 0, got.stderr

    def test_file_capabilities_are_refused(self, public_zc, open_directory):
        program = self.program(open_directory, "capable", 0o755)
        # A revision 2 attribute: effective, permitted = CAP_NET_RAW
        os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
        got = as_nobody(public_zc, program)
        assert got.returncode == 1 and "capabilities" in got.stderr

    def test_unreadable_program_runs(self, public_zc, open_directory):
        assert as_nobody(public_zc, self.program(open_directory, "secret", 0o711)).returncode == 0


def test_library_not_found_says_where_it_looked(build, tmp_path):
    lonely = tmp_path / "bin" / "zc"
    lonely.parent.mkdir()
    shutil.copy(build / "apps/zc/zc", lonely)
    got = subprocess.run([lonely, "run", "true"], capture_output=True, text=True, check=False, env={"PATH": "/bin"})
    assert got.returncode == 1
    assert "libzc.so" in got.stderr and str(tmp_path) in got.stderr and "ZC_LIBRARY" in got.stderr


def test_installed_pair_is_found_wherever_it_lies(build, tmp_path):
    subprocess.run(["cmake", "--install", build, "--prefix", tmp_path / "first"], check=True, capture_output=True)
    shutil.move(tmp_path / "first", tmp_path / "second")
    program = next((tmp_path / "second").rglob("bin/zc"))
    got = subprocess.run([program, "run", "cat", "/proc/self/maps"], capture_output=True, text=True, check=False,
                         env={"PATH": "/bin", "ASAN_OPTIONS": "detect_leaks=0"})
    assert got.returncode == 0 and str(tmp_path / "second") in got.stdout, got.stderr


def test_library_is_chosen_by_setting(zc, build, tmp_path):
    copy = tmp_path / "libzc.so"
    shutil.copy(build / "preload/libzc.so", copy)
    assert str(copy) in loaded(zc, ZC_LIBRARY=str(copy))
    spaced = tmp_path / "a b"
    spaced.mkdir()
    shutil.copy(copy, spaced)
    got = zc("run", "true", ZC_LIBRARY=str(spaced / "libzc.so"))
    assert got.returncode == 1 and "space" in got.stderr
    got = zc("run", "true", ZC_LIBRARY=str(tmp_path))
    assert got.returncode == 1 and str(tmp_path) in got.stderr


def test_library_that_is_another_one_is_refused(zc, build, tmp_path):
    whole = (build / "preload/libzc.so").read_bytes()
    cut, text = tmp_path / "cut.so", tmp_path / "text.so"
    text.write_text("no library\n")
    others = [text, build / "apps/zc/zc", build / "rdma/libzc-verbs.so"]
    for other in filter(pathlib.Path.exists, others):
        got = zc("run", "true", ZC_LIBRARY=str(other))
        assert got.returncode == 1 and f"ZC_LIBRARY={other}: is no libzc.so" in got.stderr
    for bytes_left in range(0, 4096, 64):
        cut.write_bytes(whole[:bytes_left])
        assert zc("run", "true", ZC_LIBRARY=str(cut)).returncode == 1


def test_python_program_under_the_library_moves_bytes(zc, tmp_path):
    program = tmp_path / "pair.py"
    program.write_text(
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept()\n"
        "c.sendall(b'x' * 1000); got = a.recv(1000, socket.MSG_WAITALL); print(len(got), set(got))\n"
    )
    for path in PATHS:
        got = zc("run", "-p", path, sys.executable, program)
        assert (got.returncode, got.stdout) == (0, "1000 {120}\n"), got.stderr
