# SPDX-License-Identifier: MIT
"""The section RDMA of docs/figures.md: a results folder of the profile rdma."""
import re

from experiments import connects, data, environment, failover, figures_engine, goals, goals_rdma, network, stacks

HEADING = "## RDMA"
WORDS = (
    "Soft-RoCE between the two hosts of the guest that `scripts/lab` starts (docs/lab.md): `scripts/experiments run --profile rdma && "
    "scripts/experiments figures results/rdma`. Without KVM all of it is emulated, and soft-RoCE computes in the processor what a device "
    "does itself: these figures compare ways of the same guest with each other, and say nothing of a device. "
    "`rsockets` is rdma-core's preload under the same programs; a path of the engine begins with RDMA (`ZC_TRANSPORT=verbs "
    "ZC_RDMA_WAIT_MS=5000`). `auto by itself` is without settings: it begins over TCP, and compares; its runs, and those by tcp, take 12 s, the "
    "others less. Unmodified programs begin over TCP and move while they run (`ZC_TRANSPORT=verbs` alone).\n"
)
LIMITS_WORDS = (
    "What the devices give without zc, run in rounds between the others. `ib_write_lat` polls memory, and `ib_write_bw` its completions: on a "
    "guest of two processors that keeps soft-RoCE itself from running at times. CPU is seconds a GB: of both ends, and of the whole "
    "machine with its kernel, less what the same programs take for a few messages.\n"
)
FAILOVER_WORDS = (
    f"A verified transfer of {data.size_text(failover.MESSAGE_BYTES)} messages by {failover.THREADS} threads, each with a connection of its own. "
    f"Speeds are of what comes at the receiver's interface, headers included: in the last {failover.COUNTED_S:g} s before the break, from "
    f"when it is there until it is mended, and in the last {failover.COUNTED_S:g} of the {failover.AFTER_S:g} s behind that. The pause is the longest time in "
    f"which less than {data.size_text(failover.QUIET_BYTES)} came in each {failover.SAMPLE_S:g} s: what is sent again in vain is counted at the interface, too.\n"
)
FAILOVER_COLUMNS = {"before_gbit_s": "before, Gbit/s", "meanwhile_gbit_s": "meanwhile", "after_gbit_s": "afterwards",
                    "pause_s": "longest pause, s", "rdma_before": "of it by RDMA, before", "rdma_after": "afterwards"}
CONNECTS_WORDS = (
    "Connections from a host with a device to a peer without zc, one after the other: connect(), and all of it with a byte there, a byte back "
    "and the close. `forced` is ZC_TRANSPORT=verbs. `tcp, again` is plain TCP once more: by so much two runs of the same differ. Medians, "
    "and the middle half of the runs.\n"
)
CONNECTS_COLUMNS = {"connect_p50_us": "connect(), µs, median of a run", "connect_p90_us": "of ten the ninth",
                    "whole_p50_us": "the whole connection, µs", "whole_p90_us": "of ten the ninth", "rdma_packets": "packets of RDMA, a run"}
CPU_WORDS = "Processor time, seconds a GB: that of both ends by getrusage / that of the whole machine, start and end of the programs included.\n"
LATENCY = {"ping-pong": "p50_us", "hot-spot": "mean_us"}
BESIDE = {"ping-pong": ["ib_write_lat", "ib_send_lat", "rstream"], "stream": ["ib_write_bw", "ib_read_bw", "rstream"]}


def is_rdma(its):
    return its.environment["profile"] == network.Rdma.name


def number(value):
    return figures_engine.number(value, 3)


def spread(values):
    return f"{number(values.median())} ({number(values.min())}–{number(values.max())})" if len(values) else "—"


def middle(values):
    """Of many short runs: the median and the middle half."""
    return f"{number(values.median())} ({number(values.quantile(0.25))}–{number(values.quantile(0.75))})" if len(values) else "—"


def beside(its, mode, size):
    """What the bare tools that fit a point made of it."""
    what = "latency" if mode in LATENCY else "speed"
    for tool in BESIDE.get(mode, []):
        rows = goals_rdma.bare(its, tool, what, size)
        if len(rows):
            yield f"{tool} {number(rows.value.median())}"


def point_rows(its, cell):
    """A line for each point, a cell for each stack from its runs."""
    runs = its.runs[its.runs.network == network.Rdma.name]
    names = data.stack_order(runs["stack"])
    for _, here in runs.groupby(data.POINT, dropna=False, sort=False):
        mode = here["mode"].iloc[0]
        yield mode, here, [cell(mode, here[here["stack"] == name]) for name in names]


def figures_table(its, table):
    names = data.stack_order(its.runs["stack"])
    lines = []
    for mode, here, cells in point_rows(its, lambda mode, runs: spread(runs[LATENCY.get(mode, "gbit_s")])):
        unit = "µs" if mode in LATENCY else "Gbit/s"
        words = data.title(here.iloc[0]).split(" ", 2)[2]
        lines.append([f"{words}, {unit}", *cells, ", ".join(beside(its, mode, here.bytes.iloc[0]))])
    return table(["median (least–most)", *names, "bare"], lines)


def a_gb(seconds, moved):
    return (seconds / (moved / 1e9)).median()


def cpu_cell(_mode, runs):
    if not len(runs):
        return "—"
    return f"{number(runs.cpu_s_per_gb.median())} / {number(a_gb(runs.machine_cpu_s, runs.moved_bytes))}"


def cpu_table(its, table):
    lines = [[data.title(here.iloc[0]).split(" ", 2)[2], *cells] for mode, here, cells in point_rows(its, cpu_cell) if mode not in LATENCY]
    return table(["", *data.stack_order(its.runs["stack"])], lines)


def limits_table(its, table):
    lines = []
    start = its.limits[its.limits.what == "start"].groupby("tool")[["cpu_s", "machine_cpu_s"]].median()
    for (tool, what, size), rows in its.limits[its.limits.what != "start"].groupby(["tool", "what", "bytes"], sort=False):
        spent = [number(a_gb((rows[name] - start[name].get(tool, 0)).clip(lower=0), rows.moved_bytes)) if what == "speed" else "—"
                 for name in ("cpu_s", "machine_cpu_s")]
        lines.append([f"{tool}, {what}, {data.size_text(size)}", spread(rows.value), rows.unit.iloc[0].replace("us", "µs"), *spent])
    return table(["", "median (least–most)", "", "CPU of both ends", "of the machine"], lines)


def failover_table(its, table):
    """A line for each break and path, in the order of failover.py."""
    lines = []
    for name, (words, *_) in failover.BREAKS.items():
        for stack in failover.STACKS:
            rows = its.failover[(its.failover["break"] == name) & (its.failover["stack"] == stack)]
            if len(rows):
                lines.append([words, stack, *(spread(rows[column]) for column in FAILOVER_COLUMNS)])
    return table(["", "path", *FAILOVER_COLUMNS.values()], lines)


def connects_table(its, table):
    lines = []
    for name, (words, *_) in connects.PEERS.items():
        for stack in connects.STACKS:
            rows = its.connects[(its.connects.peer == name) & (its.connects["stack"] == stack)]
            if len(rows):
                lines.append([words, stack, *(middle(rows[column]) for column in CONNECTS_COLUMNS), *times_plain(its, rows)])
    return table(["", "path", *CONNECTS_COLUMNS.values(), "connect() × tcp", "the whole × tcp"], lines)


def times_plain(its, rows):
    """Of the runs of the same turn."""
    keys = ["peer", "repeat"]
    both = rows.merge(its.connects[its.connects["stack"] == stacks.PLAIN], on=keys, suffixes=("", "_plain"))
    return [middle(both[name] / both[f"{name}_plain"]) for name in ("connect_p50_us", "whole_p50_us")]


def counts(its, stack):
    """Of a stack's runs: how many failed, and how many of those that went well sent nothing by RDMA."""
    failed = its.failed[its.failed["stack"] == stack] if "stack" in its.failed else []
    went = its.runs[its.runs["stack"] == stack]
    return len(went), len(failed), int((went.rdma_packets * 4096 < went.moved_bytes / 2).sum())


def outcome_table(its, table):
    names = data.stack_order([*its.runs["stack"], *(its.failed["stack"].dropna() if "stack" in its.failed else [])])
    return table(["", "runs measured", "failed", "of those measured, by TCP"], [[name, *counts(its, name)] for name in names])


def failures(its):
    if not len(its.failed):
        return ["No run failed.\n"]
    lines = []
    for _, row in its.failed.iterrows():
        shown = [str(row[name]) for name in ("mode", "bytes", "threads", "break", "peer", "stack", "tool", "what", "name", "path") if name in row
                 and row[name] == row[name] and row[name] != ""]
        lines.append(f"- {' '.join(shown)}: {' '.join(str(row.error).split())[:300]}")
    return ["What failed, the last try of each:\n", "\n".join(dict.fromkeys(lines)) + "\n"]


def rounds(its):
    """Of the points: an interrupted run may have measured some of them more often."""
    counts = its.runs.groupby(data.POINT, dropna=False).repeat.nunique()
    return f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else str(counts.max())


def section(its, table, goal_table):
    parts = [
        f"{HEADING}\n", WORDS,
        f"{environment.caption(its.environment)}. {rounds(its)} rounds, {len(its.runs)} runs in all, {len(its.verified)} more with every "
        "byte verified.\n",
        *([PENDING] if by_ring(its) else []),
        "### Goals between hosts\n", goal_table(goals.all_goals(its)),
        "### The paper's modes, and messages of eight fields\n", figures_table(its, table), CPU_WORDS, cpu_table(its, table),
    ]
    if len(its.limits):
        parts += ["### The devices without zc\n", LIMITS_WORDS, limits_table(its, table)]
    if len(its.connects):
        parts += ["### Where nobody answers by RDMA\n", CONNECTS_WORDS, connects_table(its, table)]
    if len(its.failover):
        parts += ["### When RDMA breaks\n", FAILOVER_WORDS, failover_table(its, table)]
    if len(its.apps):
        head = ["", "path", "median", "× tcp", "middle half", "CPU", "calls", "switches"]
        parts += ["### Unmodified programs between hosts\n", table(head, list(figures_engine.app_rows(its)))]
    return "\n".join([*parts, "### What went how\n", outcome_table(its, table), *failures(its)])


PENDING = "In these runs zsdp and azsdp went by the ring, like bsdp: no byte was fetched by a GET over verbs.\n"


def by_ring(its):
    """Whether the paths that announce buffers carried nothing by themselves."""
    rows = its.runs[its.runs["stack"].isin(["zsdp", "azsdp"])]
    return len(rows) > 0 and not any(re.search(r"\ba?zsdp=", text) for text in rows.path_bytes)


def split(text):
    """A document without the section, and the section: the last of the document."""
    before, heading, after = text.partition(f"\n{HEADING}\n")
    return before.rstrip("\n") + "\n", (heading + after).lstrip("\n")
