# SPDX-License-Identifier: MIT
"""
Where and of what figures were measured: it is written beside them, and decides whether more may be added to them.

The fingerprint is what must be the same for all rows of a results folder: the sources, the build, the profile and the machine.
Everything else (date, load, kernel settings) is told for the reader.
"""
import datetime
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess

from experiments.errors import Failure

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a figure depends on; documents may change between two runs.
SOURCES = ["CMakeLists.txt", "CMakePresets.json", "common", "rdma", "preload", "apps", "experiments", "scripts/experiments"]
FINGERPRINT = ["commit", "changes", "build_type", "profile", "kernel", "cpu", "cores"]

LIBRARY = "preload/libzc.so"
PLUG_IN = "rdma/libzc-verbs.so"
TOOLS = {name: f"apps/tools/{name}" for name in ("zc-msg", "zc-writes", "zc-ttcp")}


def text_of(path, default=""):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return default


def output_of(*command, default=""):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError:
        return default
    return done.stdout.strip() if done.returncode == 0 else default


def digest_of_sources():
    digest = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def commit():
    """The commit and what was changed since: "clean" or a digest; without git the sources' digest stands for both."""
    head = output_of("git", "rev-parse", "HEAD")
    if not head:
        return "sources-" + digest_of_sources(), "not under git"
    changed = output_of("git", "status", "--porcelain", "--", *SOURCES)
    return head, ("changed-" + digest_of_sources()) if changed else "clean"


def cmake_cache(build):
    values = dict(re.findall(r"^(\w+):\w+=(.*)$", text_of(build / "CMakeCache.txt"), re.MULTILINE))
    build_type = values.get("CMAKE_BUILD_TYPE", "")
    compiler = output_of(values.get("CMAKE_C_COMPILER", "cc"), "--version").splitlines()
    return {
        "build_type": build_type + (f" with {values['SANITIZE']} sanitizer" if values.get("SANITIZE") else ""),
        "compiler": compiler[0] if compiler else "unknown",
        "compiler_flags": values.get(f"CMAKE_C_FLAGS_{build_type.upper()}", ""),
    }


def cpu_model():
    found = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.*)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def memory_gib():
    found = re.search(r"^MemTotal:\s*(\d+) kB", text_of("/proc/meminfo"), re.MULTILINE)
    return round(int(found.group(1)) / 1048576, 1) if found else None


def kernel_settings():
    names = {
        "tcp_congestion_control": "/proc/sys/net/ipv4/tcp_congestion_control",
        "tcp_rmem": "/proc/sys/net/ipv4/tcp_rmem",
        "tcp_wmem": "/proc/sys/net/ipv4/tcp_wmem",
        "optmem_max": "/proc/sys/net/core/optmem_max",
        "unprivileged_userfaultfd": "/proc/sys/vm/unprivileged_userfaultfd",
        "transparent_hugepage": "/sys/kernel/mm/transparent_hugepage/enabled",
        "clocksource": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        "governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    }
    return {name: text_of(path, "not there").replace("\t", " ") for name, path in names.items()}


def build_folder(named):
    """A build by the name of its preset, or by its folder where the name has a slash."""
    return pathlib.Path(named).resolve() if "/" in named else ROOT / "build" / named


def needed(build):
    """The programs of a build that the experiments run; a Failure names the first that is missing."""
    wanted = {**TOOLS, "library": LIBRARY, "zc": "apps/zc/zc"}
    for name in ("calls", "sends", "starts", "guards", "gets", "ring", "exchange", "connects", "nothing"):
        wanted[name] = f"experiments/bench/{name}"
    files = {name: build / path for name, path in wanted.items()}
    for file in files.values():
        if not file.exists():
            raise Failure(f"{file} is missing: build it first (cmake --preset PRESET && cmake --build --preset PRESET)")
    return files


def copied(files, scratch):
    """The same files in memory, as the guest's are slow; the library with its transport between hosts beside it, as when installed."""
    folder = scratch / "build"
    folder.mkdir()
    plug_in = files["library"].parent.parent / PLUG_IN
    if not plug_in.exists():
        raise Failure(f"{plug_in} is missing: zc was built without libibverbs and librdmacm (scripts/deps build)")
    shutil.copy(plug_in, folder)
    return {name: pathlib.Path(shutil.copy(file, folder)) for name, file in files.items()}


def gather(build, profile):
    """Everything that is told about a run of the experiments."""
    head, changes = commit()
    hypervisor = "yes" if " hypervisor" in text_of("/proc/cpuinfo") else "no"
    return {
        "commit": head,
        "changes": changes,
        "profile": profile,
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "virtual_machine": hypervisor,
        "memory_gib": memory_gib(),
        "distribution": dict(re.findall(r'^(\w+)="?([^"\n]*)', text_of("/etc/os-release"), re.MULTILINE)).get("PRETTY_NAME"),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_at_start": os.getloadavg()[0],
        "build": str(build),
        **cmake_cache(build),
        "library_sha256": hashlib.sha256((build / LIBRARY).read_bytes()).hexdigest()[:16],
        "root": os.geteuid() == 0,
        **kernel_settings(),
    }


def differences(there, here):
    """The lines that name what differs between the fingerprints of two environments."""
    return [
        f"{name.replace('_', ' ')}: there {there.get(name)}, here {here.get(name)}"
        for name in FINGERPRINT
        if str(there.get(name)) != str(here.get(name))
    ]


def caption(environment):
    """One line for beneath a figure."""
    changes = "" if environment["changes"] == "clean" else f" ({environment['changes']})"
    return (
        f"Linux {environment['kernel']}, {environment['cpu']}, {environment['cores']} cores, "
        f"commit {environment['commit'][:12]}{changes}, {environment['build_type']}, {environment['date']}"
    )
