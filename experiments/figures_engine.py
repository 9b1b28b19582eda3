# SPDX-License-Identifier: MIT
"""The tables of docs/figures.md that are the engine's: unmodified programs, azsdp step by step, and the paper's inner comparisons."""
from experiments import data, goals_engine, sources, stacks, where

APPS_WORDS = (
    "Each pair is a run over plain TCP and one with libzc.so in both programs, each with a server of its own, in turn (`zc compare`). "
    "The figure is the program's own. `CPU` is the processor time of both ends an operation against plain TCP's; `calls` and `switches` "
    "are system calls and context switches of both ends an operation, counted in one more run, whose payloads were verified.\n"
)
STEPS_WORDS = (
    "What a send by zsdp or azsdp is made of, each step by itself, medians in µs. `guard on`, `off`: write protection of the buffer by "
    "userfaultfd; `2 threads`: with a second thread running, whose processor has to be told. `mprotect`: the other guard. `fault, owner "
    "done`: a write to a guarded page whose bytes have been fetched (block-on-write at its shortest); `fault, copied`: one that copies the "
    "page (copy-on-write). `announce`: the record of a SrcAvail. `GET`: announced and fetched before the next one, as zsdp does; `GETs`: "
    "several announced, as azsdp does; `ring`: copied by both ends, as bsdp does; `kept`: announced, and copied to the segment before it "
    "was fetched.\n"
)
SKEW_WORDS = (
    "Speeds against plain TCP at the same point. `touch` rewrites each buffer after its send; a skewed receiver sleeps before each "
    "message. Copy-on-write is `ZC_BLOCK_US=0`, block-on-write `ZC_BLOCK_US=1000`, the default (`azsdp`) between them. The paper: {}.\n"
)
UNALIGNED_WORDS = "Speeds against plain TCP at the same point. The paper: {}.\n"


def number(value, digits=3):
    from experiments.figures import number as its

    return its(value, digits)


def app_rows(its):
    for name in dict.fromkeys(its.apps.name):
        rows = its.apps[its.apps.name == name]
        plain = rows[rows["path"] == stacks.PLAIN]
        for path in dict.fromkeys(rows["path"]):
            ours = rows[rows["path"] == path]
            median = number(ours.value.median(), 4) + " " + ours.unit.iloc[0].replace("us", "µs")
            cells = [name if path == stacks.PLAIN else "", path, median]
            pairs = data.pairs(ours, plain, "value", ours.higher.iloc[0] == "True") if path != stacks.PLAIN else None
            cells += [f"{pairs.ratio:.2f}", f"{pairs.low:.2f}–{pairs.high:.2f}"] if pairs else ["", ""]
            yield cells + app_costs(its, name, path, ours, plain)


def app_costs(its, name, path, ours, plain):
    spent = [((runs.server_cpu_s + runs.client_cpu_s) / runs.operations).median() for runs in (ours, plain)]
    counted = its.counted[(its.counted.name == name) & (its.counted["path"] == path)]
    cells = ["" if path == stacks.PLAIN or not len(plain) else f"{spent[0] / spent[1]:.2f}"]
    for what in ("system_calls", "switches"):
        each = (counted[f"server_{what}"] + counted[f"client_{what}"]) / counted.operations
        cells.append(number(each.iloc[0]) if len(each) else "—")
    return cells


def apps_section(its, table):
    if not len(its.apps):
        return []
    head = ["", "path", "median", "× tcp", "middle half", "CPU", "calls", "switches"]
    return ["## Unmodified programs\n", APPS_WORDS, table(head, list(app_rows(its)))]


STEPS = [
    ("guard on", "guard", "uffd", "protect", 1), ("guard off", "guard", "uffd", "release", 1),
    ("guard on, 2 threads", "guard", "uffd", "protect", 2), ("guard off, 2 threads", "guard", "uffd", "release", 2),
    ("guard on, mprotect", "guard", "mprotect", "protect", 1), ("guard off, mprotect", "guard", "mprotect", "release", 1),
    ("guard on, mprotect, 2 threads", "guard", "mprotect", "protect", 2),
    ("fault, owner done", "guard", "uffd", "fault_done", 1), ("fault, copied", "guard", "uffd", "fault_copy", 1),
    ("fault, owner done, mprotect", "guard", "mprotect", "fault_done", 1), ("fault, copied, mprotect", "guard", "mprotect", "fault_copy", 1),
    ("announce", "step", "one message", "announce", None), ("GET", "step", "one message", "get", None),
    ("GETs", "step", "one message", "gets", None), ("ring", "step", "one message", "ring", None),
    ("kept", "step", "one message", "kept", None),
]


WHERE_WORDS = (
    "ns of processor time a message (or a write), both ends sampled by perf's cpu-clock, which slows them down; medians. `program` is "
    "the measuring tool's own code and libc's but for copies; an end that waits for the other one spins in `libzc.so`.\n"
)


def starting_a_send(its, table):
    """The paper's table: what the call of a send takes on each path."""
    rows = its.costs[(its.costs.measure == "send") & (its.costs.what == "p50") & (its.costs.burst == 1)]
    sizes = sorted(set(rows.bytes))
    if not sizes:
        return []
    lines = []
    for stack in data.stack_order(rows["stack"]):
        here = rows[rows["stack"] == stack].groupby("bytes").value.median() / 1000
        lines.append([stack, *(number(here.get(size, float("nan"))) for size in sizes)])
    return ["What the call that sends takes, the peer's buffers empty, µs. The paper: " + sources.ALLOCATION + "\n",
            table(["path", *(data.size_text(size) for size in sizes)], lines)]


def steps_section(its, table):
    rows = its.costs[its.costs.measure.isin(["guard", "step"])]
    sizes = sorted(set(rows.bytes.dropna()))
    if not sizes:
        return []
    lines = []
    for words, measure, subject, what, threads in STEPS:
        values = [goals_engine.cost(its, measure, subject, what, size, threads) for size in sizes]
        if any(value is not None for value in values):
            lines.append([words, *("—" if value is None else number(value / 1000) for value in values)])
    wake = its.costs[(its.costs.measure == "ping-pong") & (its.costs["stack"] == stacks.PLAIN) & (its.costs.what == "p50")].value
    found = ["## azsdp, step by step\n", STEPS_WORDS, table(["step", *(data.size_text(size) for size in sizes)], lines)]
    if len(wake):
        found.append(f"The wake-up of an end that sleeps in the kernel, half a round trip by TCP: {wake.median():.1f} µs. "
                     f"The paper's fault took about {sources.FAULT_US} µs.\n")
    return found + starting_a_send(its, table)


def where_section(its, table):
    lines = []
    for subject, size, stack in where.points_of(its.costs):
        found = where.medians(its.costs, subject, stack, size)
        times = [found["message"], *where.of_end(found, "client"), *where.of_end(found, "server")]
        lines.append([f"{subject} {data.size_text(size)}" if size == size else subject, stack, *map(number, times)])
    names = [f"{end}: {part}" for end in ("sender", "receiver") for part in where.PARTS]
    return ["## Where the time of a message goes\n", WHERE_WORDS, table(["", "path", "in all", *names], lines)] if lines else []


def inner_table(its, mode, own, table):
    """A mode with stacks of its own beside the paths."""
    rows = its.points[(its.points.experiment == "S") & (its.points["mode"] == mode) & (its.points.network == "loopback")]
    if rows.empty:
        return None
    names = [name for name in data.stack_order(rows["stack"]) if name not in (stacks.PLAIN, stacks.CONTROL)]
    names = [name for name in names if name in stacks.path_names() or name in own]
    lines = []
    for _, point in rows.groupby(data.POINT, dropna=False, sort=False):
        by_stack = point.set_index("stack").ratio
        words = data.title(point.iloc[0]).split(" ", 3)[3]
        lines.append([words, *(f"{by_stack[name]:.2f}" if name in by_stack else "—" for name in names)])
    return table(["", *names], lines)


def inner_section(its, table):
    skew = inner_table(its, "skew", [stack.name for stack in stacks.SKEWED], table)
    unaligned = inner_table(its, "unaligned", [stack.name for stack in stacks.ZEROCOPY_KEPT], table)
    found = []
    if skew:
        found += ["### Skewed receivers: block-on-write against copy-on-write\n", SKEW_WORDS.format(sources.PAPER["skew"]), skew]
    if unaligned:
        found += ["### Unaligned buffers\n", UNALIGNED_WORDS.format(sources.PAPER["unaligned"]), unaligned]
    return found


def paper_section(its, table):
    """What the paper saw in each mode, and what the rows say."""
    rows = its.points[(its.points.experiment == "S") & (its.points.network == "loopback")]
    lines = []
    for mode, words in sources.PAPER.items():
        here = rows[rows["mode"] == mode]
        if len(here) and mode not in ("skew", "unaligned"):
            lines.append([mode, words, "; ".join(paper_words(here))])
    return ["### The AZ-SDP paper's statements and these figures\n", table(["mode", "the paper", "here"], lines), f"{sources.BALAJI}.\n"] \
        if lines else []


def paper_words(rows):
    for _, point in rows.groupby(data.POINT, dropna=False, sort=False):
        speed = point.set_index("stack").gbit_s
        if {"bsdp", "zsdp", "azsdp"} <= set(speed.index):
            words = data.title(point.iloc[0]).split(" ", 3)[3]
            yield f"{words}: azsdp {speed['azsdp'] / speed['zsdp']:.2f} × zsdp, {speed['azsdp'] / speed['bsdp']:.2f} × bsdp"
