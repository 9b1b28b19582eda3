# SPDX-License-Identifier: MIT
"""
Where the processor time of a run goes, at each end: both are sampled by perf's cpu-clock, which needs no counters. Sampling slows a
run down; what is told are shares of the time that the ends say they took.
"""
import re
import shutil
import subprocess

from experiments import runner
from experiments.processes import ProgramFailed

FREQUENCY = 1999
LIMIT_S = 60
COPYING = re.compile(r"mem(cpy|move)|copy_by_vectors|copy_(to|from)_|rep_movs|copy_user")
PARTS = ["program", "libzc.so", "copying", "kernel"]


def why_no_samples(folder):
    """None where perf can sample, else why it can't."""
    if not shutil.which("perf"):
        return "perf is not installed: where time goes is not sampled (scripts/deps experiments)"
    probe = folder / "where-probe"
    done = subprocess.run([*command(probe), "true"], capture_output=True, text=True, check=False)
    probe.unlink(missing_ok=True)
    return f"perf record fails: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}" if done.returncode else None


def command(file):
    return ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", str(file), "--"]


def part_of(where, symbol):
    if COPYING.search(symbol):
        return "copying"
    if where.startswith("[kernel") or where.endswith(".ko"):
        return "kernel"
    return "libzc.so" if where == "libzc.so" else "program"


def shares(file):
    """Part: its share of the samples."""
    done = subprocess.run(["perf", "report", "-i", str(file), "--stdio", "-t", ";", "--sort", "dso,symbol"], capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    found = dict.fromkeys(PARTS, 0.0)
    for line in done.stdout.splitlines():
        fields = [field.strip() for field in line.split(";")]
        if len(fields) >= 3 and fields[0].endswith("%") and not line.startswith("#"):
            found[part_of(fields[1], fields[2])] += float(fields[0][:-1])
    total = sum(found.values())
    if not total:
        raise ProgramFailed(f"perf report tells nothing: {done.stderr.strip()[-200:]}")
    return {part: share / total for part, share in found.items()}


class SampledRunner(runner.Runner):
    """Runs a point as its base does, sampled. The row has the shares of both ends beside what it usually has."""

    def __init__(self, base):
        super().__init__(base.files, base.networks, [], base.scratch)

    def _around(self, end, program, folder):
        return [*command(folder / f"where-{runner.ENDS[end]}"), *program]

    def _counters(self, folder):
        return {"shares": {end: shares(folder / f"where-{end}") for end in runner.ENDS}}


def time_of(row, messages):
    """'END PART': (unit, what it takes of a message) of a sampled row."""
    found = {"message": ("ns", 1e9 * row["seconds"] / messages)}
    for end in runner.ENDS:
        busy = 1e9 * (row[f"{end}_user_s"] + row[f"{end}_system_s"]) / messages
        found |= {f"{end} {part}": ("ns", share * busy) for part, share in row["shares"][end].items()}
    return found


# What the rows of section C tell of it --------------------------------------------------------------------------------------------


def points_of(costs):
    """(subject, bytes, stack) of the sampled runs, in their order."""
    rows = costs[costs.measure == "where"]
    return list(rows[["subject", "bytes", "stack"]].drop_duplicates().itertuples(index=False, name=None))


def medians(costs, subject, stack, size=None):
    """'message' and 'END PART': ns of a message; None where it was not sampled."""
    rows = costs[(costs.measure == "where") & (costs.subject == subject) & (costs["stack"] == stack)]
    if size is not None and size == size:
        rows = rows[rows.bytes == size]
    return rows.groupby("what").value.median().to_dict() if len(rows) else None


def of_end(found, end):
    return [found.get(f"{end} {part}", 0.0) for part in PARTS]


def words(costs, subject, stack, size=None):
    """The reason in numbers, or nothing."""
    found = medians(costs, subject, stack, size)
    if found is None:
        return ""
    ends = []
    for end, name in (("client", "sender"), ("server", "receiver")):
        program, library, copying, kernel = of_end(found, end)
        ends.append(f"{name} {library:.0f} ns in libzc.so, {copying:.0f} copying, {program:.0f} in the program and libc, {kernel:.0f} in the kernel")
    return f"sampled under {stack}, {found['message']:.0f} ns a message: " + "; ".join(ends)
