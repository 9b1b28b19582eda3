# SPDX-License-Identifier: MIT
"""`perf stat` around a program, where the machine has counters. Where it has none, the columns stay empty: nothing is made up."""
import csv
import pathlib
import subprocess

# column: perf's event
EVENTS = {
    "cycles": "cycles",
    "instructions": "instructions",
    "l1d_misses": "L1-dcache-load-misses",
    "llc_misses": "LLC-load-misses",
    "cache_misses": "cache-misses",
    "context_switches": "context-switches",
}
HARDWARE = [name for name in EVENTS if name != "context_switches"]


def command(events, output, program):
    """The program's command line with perf in front of it."""
    return ["perf", "stat", "-x", ",", "-o", str(output), "-e", ",".join(EVENTS[name] for name in events), "--", *program]


def read(output, events):
    """Column: count, from perf's file; what perf could not count is left out."""
    counts = {}
    with open(output, encoding="utf-8", newline="") as file:
        for fields in csv.reader(line for line in file if not line.startswith("#")):
            if len(fields) < 3:
                continue
            value, event = fields[0], fields[2]
            for name in events:
                if EVENTS[name].lower() == event.split(":")[0].lower() and value.isdigit():
                    counts[name] = int(value)
    return counts


def _probe(names, output):
    """What perf stat counts of these events: counts, and what it has said if it failed."""
    try:
        done = subprocess.run(command(names, output, ["true"]), capture_output=True, text=True, check=False)
        if done.returncode:
            return {}, (done.stderr.strip().splitlines() or ["no reason given"])[0]
        return read(output, names), None
    finally:
        output.unlink(missing_ok=True)


def available(folder):
    """The events that this machine counts: (names, why none) with the reason where there is no hardware counter."""
    output = pathlib.Path(folder) / "perf-probe"
    try:
        # First without the kernel's own events: for those it patches its code, in which an emulated processor may stay (docs/lab.md).
        counts, failure = _probe(HARDWARE, output)
        if counts:
            counts, failure = _probe(list(EVENTS), output)
    except FileNotFoundError:
        return [], "perf is not installed: no hardware counters"
    except OSError as error:
        return [], f"perf can't be used: {error}"
    if failure:
        return [], f"perf stat fails: {failure}"
    if not counts:
        return [], "this machine has no hardware counters (perf stat: not supported); cost is processor time by getrusage"
    return [name for name in EVENTS if name in counts], None
