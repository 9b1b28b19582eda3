# SPDX-License-Identifier: MIT
"""
What zc is to reach between hosts: ratios to the device's own figures (perftest), to rsockets and to plain TCP, each measured in the
same guest and in turn. Soft-RoCE computes each packet's checksum in the processor, and TCP there needs none: a stream can't beat it.
"""
import itertools

from experiments import data, network, stacks
from experiments.goals import Goal, not_measured

BARE_RATIO, PEER_RATIO = 0.9, 1
PEER_TRIP_RATIO, TRIP_RATIO = 0.91, 1  # half a round trip of at most 1.1 times rsockets', and no longer than TCP's
MEDIUM_RATIO, OVERLAP_RATIO = 1.35, 2
FREE_RATIO = 0.97
SIZES = [64 << 10, 256 << 10, 1 << 20]
# path: what the device does for it at its best.
BARE = {"bsdp": "ib_write_bw", "zsdp": "ib_read_bw", "azsdp": "ib_read_bw"}
TRIPS = ["ib_send_lat", "ib_write_lat"]
ENGINE = ["bsdp", "zsdp", "azsdp", "auto"]


def runs_at(its, stack, **where):
    rows = its.runs[(its.runs["stack"] == stack) & (its.runs.network == network.Rdma.name)]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


def bare(its, tool, what, size):
    """The runs of a tool that goes without zc."""
    rows = its.limits
    return rows[(rows.tool == tool) & (rows.what == what) & (rows.bytes == size)]


# Where the processors are meanwhile was sampled, and is told there.
WHERE_STREAMS = "docs/rdma.md, 'A stream, step by step'"
WHERE_TRIALS = "docs/rdma.md, 'What a trial of auto costs'"


def goal(name, wanted, pairs, why, where=None):
    met = bool(pairs.ratio >= wanted)
    why = f"{pairs.text()}; {why}" + (f"; why: {where}" if where and not met else "")
    return Goal(name, f"at least {wanted:g} ×", f"{pairs.ratio:.2f} ×", met, why)


def against_the_device(its):
    for path, tool in BARE.items():
        for size in SIZES:
            name = f"a stream of {data.size_text(size)} by {path} against {tool}"
            ours, theirs = runs_at(its, path, mode="stream", bytes=size), bare(its, tool, "speed", size)
            pairs = data.pairs(ours.assign(value=ours.gbit_s), theirs, "value")
            if pairs is None:
                yield not_measured(name, f"at least {BARE_RATIO} ×", f"{path} and {tool}")
                continue
            went = ", ".join(f"{share:.0%} by {way}" for way, share in data.shares(ours).items() if share >= 0.005)
            yield goal(name, BARE_RATIO, pairs, f"{ours.gbit_s.median():.3f} against {theirs.value.median():.3f} Gbit/s; of its bytes {went}",
                       WHERE_STREAMS)


def figures_of(its, path, mode, column, size, other):
    """Pairs of a path and another stack, and both medians in words."""
    ours, theirs = (runs_at(its, stack, mode=mode, bytes=size) for stack in (path, other))
    pairs = data.pairs(ours, theirs, column, column == "gbit_s")
    unit = "Gbit/s" if column == "gbit_s" else "µs"
    return pairs, f"{ours[column].median():.4g} against {theirs[column].median():.4g} {unit}"


def against_the_others(its):
    for mode, column, sizes, paths, others, where in (
            ("stream", "gbit_s", SIZES, ENGINE, {stacks.RSOCKETS: PEER_RATIO}, WHERE_STREAMS),
            ("ping-pong", "p50_us", [64], ["auto"], {stacks.RSOCKETS: PEER_TRIP_RATIO, stacks.PLAIN: TRIP_RATIO}, None)):
        for path, size, other in itertools.product(paths, sizes, others):
            name, wanted = f"{mode} of {data.size_text(size)} by {path} against {other}", others[other]
            pairs, words = figures_of(its, path, mode, column, size, other)
            yield goal(name, wanted, pairs, words, where) if pairs else not_measured(name, f"at least {wanted} ×", f"{path} and {other}")


def asynchronous(its):
    """azsdp against zsdp: in streams, and where the program computes meanwhile."""
    for name, mode, wanted in (("azsdp against zsdp, best of its streams", "stream", MEDIUM_RATIO),
                               ("azsdp against zsdp, best of overlap", "overlap", OVERLAP_RATIO)):
        found = []
        for size in SIZES:
            rows = [runs_at(its, path, mode=mode, bytes=size) for path in ("azsdp", "zsdp")]
            pairs = data.pairs(*rows, "gbit_s")
            if pairs:
                speeds = " against ".join(f"{its_rows.gbit_s.median():.3f}" for its_rows in rows)
                found.append((pairs, f"{data.size_text(size)} {pairs.ratio:.2f} ({speeds} Gbit/s)"))
        if not found:
            yield not_measured(name, f"at least {wanted} ×", "azsdp and zsdp")
            continue
        yield goal(name, wanted, max((pairs for pairs, _ in found), key=lambda its_pairs: its_pairs.ratio),
                   ", ".join(words for _, words in found))


def never_slower(its):
    """auto that may choose between RDMA and TCP, against plain TCP, at every point: what the trial costs is in it."""
    name, wanted = "auto by itself against tcp, every point", f"never below {FREE_RATIO}"
    found = []
    for _, here in its.runs[its.runs.network == network.Rdma.name].groupby(data.POINT, dropna=False, sort=False):
        pairs = data.pairs(*(here[here["stack"] == stack] for stack in (stacks.FREE, stacks.PLAIN)), "gbit_s")
        if pairs:
            found.append((pairs.ratio, data.title(here.iloc[0]).split(" ", 2)[2], pairs))
    if not found:
        yield not_measured(name, wanted, stacks.FREE)
        return
    worst, low = min(found, key=lambda one: one[0]), [one for one in found if one[0] < FREE_RATIO]
    yield Goal(name, wanted, f"{worst[0]:.2f}", not low,
               f"{len(low)} of {len(found)} points are below: {', '.join(f'{title} {ratio:.2f}' for ratio, title, _ in sorted(low)[:6])}"
               f"; why: {WHERE_TRIALS}" if low else f"lowest at {worst[1]}; {len(found)} points")


def carried(its):
    """Over TCP by accident, a run would only look good."""
    rows = its.runs[(its.runs.network == network.Rdma.name) & its.runs["stack"].isin(ENGINE)]
    name, wanted = "runs of the engine's paths in which the devices sent packets", "all"
    if rows.empty:
        yield not_measured(name, wanted, "the engine's paths")
        return
    by_tcp = rows[rows.rdma_packets * 4096 <= rows.moved_bytes / 2]
    why = "enough of them for half of the run's bytes at least"
    if len(by_tcp):
        points = [data.title(here.iloc[0]).split(" ", 2)[2] for _, here in by_tcp.groupby(data.POINT, dropna=False, sort=False)]
        why += f"; by TCP: {', '.join(points)}"
    yield Goal(name, wanted, f"{len(rows) - len(by_tcp)} of {len(rows)}", not len(by_tcp), why)


MAKERS = (against_the_device, against_the_others, asynchronous, never_slower, carried)
