# SPDX-License-Identifier: MIT
"""The project's goals, each with what was measured, whether it is met, and what the rows say about why."""
import collections
import dataclasses

from experiments import data, stacks, where

PASS_NS, PASS_SHARE, START_MS, AUTO_RATIO, GATHER_RATIO, BARE_RATIO = 20, 0.03, 1, 0.97, 1, 0.85
CALLS = {
    "read-zero": ("read of /dev/zero, a descriptor that is not ours", 1),
    "write-null": ("write to /dev/null, a descriptor that is not ours", 1),
    "tcp-receive-nothing": ("recv on an empty TCP connection on copy", 1),
    "tcp-send-receive": ("send and recv of 64 bytes on a TCP connection on copy, for each of both calls", 2),
}


@dataclasses.dataclass
class Goal:
    name: str
    wanted: str
    measured: str
    met: object  # True, False, or None where it was not measured
    why: str

    def verdict(self):
        return {True: "met", False: "missed", None: "not measured"}[self.met]


def not_measured(name, wanted, what):
    return Goal(name, wanted, "—", None, f"the results have no rows of {what}")


def added(costs, measure, subject, calls):
    """
    What the preload adds to a call: (the difference of the best repeats, the quartiles of the differences of all), or None. The best
    ones, because whatever else the machine does can only add to a call.
    """
    rows = costs[(costs.measure == measure) & (costs.subject == subject)]
    table = rows.pivot_table(index="repeat", columns="stack", values="value")
    if table.empty or not {stacks.PLAIN, "copy"} <= set(table.columns):
        return None
    table = table.dropna(subset=["copy", stacks.PLAIN]) / calls
    if table.empty:
        return None
    differences = table["copy"] - table[stacks.PLAIN]
    return table["copy"].min() - table[stacks.PLAIN].min(), differences.quantile(0.25), differences.quantile(0.75)


def ping_pong_us(costs):
    rows = costs[(costs.measure == "ping-pong") & (costs["stack"] == stacks.PLAIN) & (costs.what == "p50")]
    return rows.value.median() if len(rows) else None


def instructions_text(costs, subject, calls):
    counted = added(costs, "instructions", subject, calls)
    return f"{counted[0]:.0f} instructions more by callgrind" if counted else "instructions were not counted"


def pass_through(its):
    for subject, (words, calls) in CALLS.items():
        name, wanted = f"pass-through: {words}", f"under {PASS_NS} ns a call"
        ns = added(its.costs, "call", subject, calls)
        if ns is None:
            yield not_measured(name, wanted, "section C")
            continue
        met = bool(ns[0] < PASS_NS)
        why = f"{instructions_text(its.costs, subject, calls)}; the middle half of the repeats: {ns[1]:.1f} to {ns[2]:.1f} ns"
        yield Goal(name, wanted, f"{ns[0]:.1f} ns", met, why)


def pass_share(its):
    name, wanted = "pass-through in a 64-byte ping-pong", f"under {PASS_SHARE:.0%}"
    ns, trip = added(its.costs, "call", "tcp-send-receive", 1), ping_pong_us(its.costs)
    if ns is None or not trip:
        yield not_measured(name, wanted, "section C")
        return
    share = ns[0] / 1000 / trip
    yield Goal(name, wanted, f"{share:.2%}", bool(share < PASS_SHARE),
               f"a send and a receive take {ns[0]:.0f} ns more; half a round trip of 64 bytes over plain TCP takes {trip:.1f} µs")


def start(its):
    name, wanted = "start-up of a process", f"under {START_MS} ms more"
    table = its.costs[its.costs.measure == "start"].pivot_table(index="repeat", columns="what", values="value")
    if table.empty:
        yield not_measured(name, wanted, "section C")
        return
    more = (table.preloaded - table.plain).median()
    yield Goal(name, wanted, f"{more:.3f} ms", bool(more < START_MS),
               f"a program that does nothing takes {table.plain.median():.3f} ms without and {table.preloaded.median():.3f} ms with the library")


def common_reasons(texts, most=3):
    """The reasons that the library gave most often for not taking a faster path."""
    counts = collections.Counter()
    for text in texts:
        for pair in str(text).split():
            name, _, count = pair.partition("=")
            if count.isdigit():
                counts[name] += int(count)
    return ", ".join(name for name, _ in counts.most_common(most))


def auto_ratio(its):
    name, wanted = "auto against plain TCP, every point of the matrix", f"never below {AUTO_RATIO}"
    rows = its.points[(its.points["stack"] == "auto") & its.points.ratio.notna()]
    if rows.empty:
        yield not_measured(name, wanted, "the path auto")
        return
    worst = rows.loc[rows.ratio.idxmin()]
    low, certain = rows[rows.ratio < AUTO_RATIO], rows[(rows.ratio < AUTO_RATIO) & rows.behind]
    control = rows.control.dropna()
    which = f": {', '.join(data.title(row) for _, row in certain.head(5).iterrows())}" if len(certain) else ""
    why = (f"lowest at {data.title(worst)}; {len(low)} of {len(rows)} points are below, {len(certain)} of them beyond the spread of "
           f"the runs (the best run behind the worst of plain TCP){which}; plain TCP against itself is below at "
           f"{(control < AUTO_RATIO).sum()} of {len(control)} points, lowest {control.min():.2f}; the median of all points is "
           f"{rows.ratio.median():.2f}")
    yield Goal(name, wanted, f"{worst.ratio:.2f}", bool(low.empty), why)


def gather(its):
    """Many writes under sg against one write without, for each shape."""
    points = its.points[its.points.experiment == "W"]
    held = points[(points["mode"] == "1") & (points["stack"] == "sg")]
    single = points[(points["mode"] == "3") & (points["stack"] == stacks.PLAIN)]
    both = held.merge(single, on=["network", "nbufs", "bufsize", "repetitions"], suffixes=("", "_single"))
    wanted = f"at least {GATHER_RATIO:.2f} of its speed"
    if both.empty:
        yield not_measured("many writes under sg against one write without zc", wanted, "W with sg and tcp")
    for _, row in both.iterrows():
        ratio = row.us_single / row.us
        a_write = row.us * 1000 / row.repetitions / row.nbufs
        spare = row.us_single * 1000 / row.repetitions / row.nbufs
        yield Goal(f"type 1 under sg against type 3 without, {row.nbufs:.0f}×{row.bufsize:.0f}, {row.network}", wanted, f"{ratio:.2f}",
                   bool(ratio >= GATHER_RATIO),
                   f"a write under sg takes {a_write:.0f} ns in all; the one write takes {spare:.0f} ns for each of its "
                   f"{row.nbufs:.0f} parts, and that is what a write may take")


def bare_copies(its):
    """One stream by the ring against a program that does the same copies and nothing else."""
    points = its.points[(its.points.experiment == "S") & (its.points.network == "loopback") & (its.points["mode"] == "stream")]
    ring = points[points["stack"] == "bsdp"].set_index("bytes").gbit_s
    bare = its.costs[(its.costs.measure == "bare copies") & (its.costs.subject == "stream")].groupby("bytes").value.median()
    wanted = f"at least {BARE_RATIO} of its speed"
    sizes = sorted(set(ring.index) & set(bare.index))
    if not sizes:
        yield not_measured("a stream under bsdp against bare copies through a ring", wanted, "S with bsdp, and section C")
    for size in sizes:
        ratio = ring[size] / bare[size]
        ns = [8 * size / speed[size] for speed in (ring, bare)]
        why = f"{ring[size]:.1f} Gbit/s against {bare[size]:.1f} Gbit/s, a message in {ns[0]:.0f} ns against {ns[1]:.0f} ns"
        sampled = where.words(its.costs, "stream", "bsdp", size)
        yield Goal(f"a stream of {data.size_text(size)} under bsdp against bare copies through a ring", wanted, f"{ratio:.2f}",
                   bool(ratio >= BARE_RATIO), f"{why}; {sampled}" if sampled else why)


def all_goals(its):
    from experiments import goals_engine, goals_rdma  # which make Goals too

    if its.environment["profile"] == "rdma":
        return [goal for make in goals_rdma.MAKERS for goal in make(its)]
    makers = (pass_through, pass_share, start, auto_ratio, gather, bare_copies, *goals_engine.MAKERS)
    return [goal for make in makers for goal in make(its)]
