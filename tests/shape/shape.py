# SPDX-License-Identifier: MIT
"""shape.py TEST SOURCE BUILD: one test of the house's shape; prints what is wrong and ends with 1."""

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(sys.argv[2])
BUILD = Path(sys.argv[3])
LIBRARY = BUILD / "preload/libzc.so"
# Arrows point down only.
LAYERS = {
    "common": {"common"},
    "rdma": {"rdma", "common"},
    "preload": {"preload", "rdma", "common"},
    "apps": {"apps", "common"},
}
FILE_LINES = 600
FUNCTION_LINES = 70
THREAD_LOCAL_BYTES = 1024
PARTS = ("common", "rdma", "preload", "apps", "tests", "docs", "experiments")


def output(*command, **options):
    return subprocess.run(command, check=True, text=True, capture_output=True, **options).stdout


def sources(*suffixes):
    for part in PARTS:
        for path in sorted((SOURCE / part).rglob("*")):
            if path.is_file() and path.suffix in suffixes and ".venv" not in path.parts:
                yield path


def calls():
    text = (SOURCE / "preload/calls.def").read_text()
    names = re.findall(r"^ZC_(?:CALL|POINTER|VARIADIC|JUMP|ALIAS)\([^,]+,\s*(\w+),", text, re.M)
    return set(names + re.findall(r"^ZC_(?:VOID|NORETURN)\((\w+),", text, re.M))


def exports():
    """libzc.so offers exactly the calls of the list, needs libc alone, and has no memory that is written and run."""
    wrong = []
    found = {line.split()[2].split("@")[0] for line in output("nm", "-D", "--defined-only", LIBRARY).splitlines()}
    # What a sanitizer adds to every library that it builds.
    found = {name for name in found if not re.match(r"_{0,2}(asan|tsan|odr_asan|ubsan|sanitizer|interceptor)", name)}
    wrong += [f"{name}: in calls.def, but not offered by libzc.so" for name in sorted(calls() - found)]
    wrong += [f"{name}: offered by libzc.so, but not in calls.def" for name in sorted(found - calls())]
    dynamic = output("readelf", "-d", LIBRARY)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    allowed = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    wrong += [f"libzc.so needs {name}" for name in sorted(needed - allowed)
              if not re.match(r"lib(asan|tsan|m|gcc_s)\.", name) or "SANITIZE:STRING=\n" in cache()]
    segments = output("readelf", "-lW", LIBRARY)
    wrong += [f"memory that is written and run: {line.strip()}" for line in segments.splitlines() if " RWE " in line]
    # It is taken from the stack of every thread, the program's and the flusher's, some of which are small.
    wrong += [f"{int(line.split()[5], 16)} bytes of thread-local memory, more than {THREAD_LOCAL_BYTES}"
              for line in segments.splitlines() if line.startswith("  TLS ") and int(line.split()[5], 16) > THREAD_LOCAL_BYTES]
    if "TEXTREL" in dynamic:
        wrong.append("libzc.so has text relocations")
    return wrong


def cache():
    return (BUILD / "CMakeCache.txt").read_text()


def layers():
    """No include points up; what is preloaded is C alone."""
    wrong = []
    for path in sources(".c", ".h", ".def"):
        part = path.relative_to(SOURCE).parts[0]
        for include in re.findall(r'^#include "(\w+)/', path.read_text(), re.M):
            if part in LAYERS and include in set(LAYERS) | {"tests"} and include not in LAYERS[part]:
                wrong.append(f"{path.relative_to(SOURCE)}: {part}/ includes from {include}/")
    for part in ("common", "rdma", "preload"):
        wrong += [f"{path}: not C" for path in (SOURCE / part).rglob("*") if path.suffix in (".py", ".cpp", ".sh")]
    return wrong


def files():
    """Each file says its licence and is not too long; what the README's first screen names is there."""
    wrong = []
    for path in sources(".c", ".h", ".py", ".def"):
        text = path.read_text()
        name = path.relative_to(SOURCE)
        if "SPDX-License-Identifier: MIT" not in text[:200]:
            wrong.append(f"{name}: no SPDX line")
        if text.count("\n") > FILE_LINES:
            wrong.append(f"{name}: {text.count(chr(10))} lines, more than {FILE_LINES}")
    first_screen = (SOURCE / "README.md").read_text().splitlines()[:24]
    for command in ("./scripts/demo", "./scripts/test"):
        if not any(line.startswith(command) for line in first_screen):
            wrong.append(f"README.md: {command} is not in the first screen")
        elif not (SOURCE / command).exists():
            wrong.append(f"{command}: named in README.md, but not there")
    for path in [SOURCE / "README.md", *(SOURCE / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            if not (path.parent / link).exists():
                wrong.append(f"{path.relative_to(SOURCE)}: link to {link}, which is not there")
    return wrong


def c_functions(text):
    """Each function's first line and its number of lines; the braces of its body stand alone at the margin."""
    head, body = [], None
    for line in text.splitlines():
        if body is not None:
            body += 1
            if line == "}":
                yield head[0], len(head) + body
                head, body = [], None
        elif line == "{" and head:
            body = 1
        elif not line or line.startswith(("/*", " *", "*/", "#", "}")):
            head = []
        else:
            head.append(line)


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.end_lineno - node.lineno + 1


def functions():
    """No function is too long."""
    wrong, seen = [], 0
    for path in sources(".c", ".h", ".py"):
        for name, lines in (python_functions if path.suffix == ".py" else c_functions)(path.read_text()):
            seen += 1
            if lines > FUNCTION_LINES:
                wrong.append(f"{path.relative_to(SOURCE)}: {lines} lines, more than {FUNCTION_LINES}: {name}")
    return wrong if seen else ["no functions were found"]


def pages():
    """groff has nothing to say about the man pages, and libzc(7) names every setting, reason and call."""
    wrong = []
    for page in sorted((BUILD / "docs").glob("*.[17]")):
        run = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", page], text=True, capture_output=True, check=False)
        wrong += [f"{page.name}: {line}" for line in run.stderr.splitlines()]
    text = (BUILD / "docs/libzc.7").read_text().replace("\\-", "-")
    names = re.findall(r'"(ZC_\w+)"', (SOURCE / "common/settings.def").read_text())
    names += re.findall(r'^ZC_REASON\(\w+, "(\w+)"', (SOURCE / "common/stats.def").read_text(), re.M)
    wrong += [f"libzc.7 does not name {name}" for name in [*names, *sorted(calls())] if name not in text]
    wrong += [f"libzc.7 tells no standard: {line}" for line in text.splitlines()
              if "Allowed: " in line and not re.search(r"Standard: \w+\.$", line)]
    remedies = (BUILD / "docs/zc.1").read_text()
    wrong += ["zc.1 tells a remedy that is empty"] if "Remedy: ." in remedies else []
    return wrong


def install():
    """What is installed works from where it is installed."""
    wrong = []
    with tempfile.TemporaryDirectory() as root:
        output("cmake", "--install", BUILD, "--prefix", f"{root}/usr")
        tools = [f"{place}{tool}{end}" for tool in ("zc", "zc-msg", "zc-writes", "zc-ttcp")
                 for place, end in (("bin/", ""), ("share/man/man1/", ".1"))]
        for name in (*tools, "share/man/man7/libzc.7"):
            if not (Path(root) / "usr" / name).exists():
                wrong.append(f"{name} is not installed")
        found = list(Path(root).rglob("zc.pc"))
        if not found:
            return [*wrong, "zc.pc is not installed"]
        version = output("pkg-config", "--modversion", found[0]).strip()
        if version not in (SOURCE / "common/version.h").read_text():
            wrong.append(f"zc.pc says version {version}")
        library = Path(output("pkg-config", "--variable=preload", found[0]).strip())
        if not library.is_file() or not library.resolve().is_relative_to(root):
            wrong.append(f"zc.pc says that the library is {library}")
        run = subprocess.run([f"{root}/usr/bin/zc", "run", "/bin/sh", "-c", "echo $LD_PRELOAD"], text=True,
                             capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"})
        if run.returncode or f"{root}/usr/" not in run.stdout:
            wrong.append(f"the installed zc run: status {run.returncode}, {run.stdout}{run.stderr}")
    return wrong


TESTS = {test.__name__: test for test in (exports, layers, files, functions, pages, install)}
problems = TESTS[sys.argv[1]]()
print("\n".join(problems) if problems else f"{sys.argv[1]}: fine")
sys.exit(1 if problems else 0)
