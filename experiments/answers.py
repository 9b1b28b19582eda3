# SPDX-License-Identifier: MIT
"""What is asked of the rows of M: who wins, from which size on, and which cache gains. Computed, and said in words."""
from experiments import data, stacks

COPIES = {"flat": "two-copy (flat)", "iovec": "one-copy (iovec)", "zerocopy": "zero-copy (zerocopy)", "fields": "a send for each field"}
CACHES = {"l1d_misses": "L1 data", "llc_misses": "last level", "cache_misses": "all cache misses"}


def by_variant(points, network, stack=stacks.PLAIN):
    """Gbit/s: a row for each (threads, bytes), a column for each variant."""
    rows = points[(points.experiment == "M") & (points.network == network) & (points["stack"] == stack)]
    if rows.empty:
        return None
    return rows.pivot_table(index=["threads", "bytes"], columns="mode", values="gbit_s")


def winners(points, network):
    """(threads, bytes, Gbit/s of each variant without zc, winner, fastest of all with its stack) for each size and thread count."""
    table = by_variant(points, network)
    if table is None:
        return []
    everything = points[(points.experiment == "M") & (points.network == network) & (points["stack"] != stacks.CONTROL)]
    found = []
    for (threads, size), row in table.iterrows():
        here = everything[(everything.threads == threads) & (everything.bytes == size)]
        best = here.loc[here.gbit_s.idxmax()]
        found.append((threads, size, dict(row), row.idxmax(), f"{best['mode']} on {best['stack']}, {best['gbit_s']:.3g}"))
    return found


def from_which_size(points, network, threads, variant, against="flat", stack=stacks.PLAIN):
    """From which of the measured sizes on a variant is ahead at all larger ones too, in words."""
    table = by_variant(points, network, stack)
    if table is None or threads not in table.index.get_level_values(0) or not {variant, against} <= set(table.columns):
        return None
    its = table.loc[threads].dropna(subset=[variant, against]).sort_index()
    if its.empty:
        return None
    ahead = its[variant] > its[against]
    first = None
    for size in reversed(its.index):
        if not ahead[size]:
            break
        first = size
    measured = f"measured: {', '.join(data.size_text(size) for size in its.index)}"
    if first is not None:
        return f"from {data.size_text(first)} on ({measured})"
    some = [data.size_text(size) for size in its.index if ahead[size]]
    return f"{'at ' + ', '.join(some) + ' only' if some else 'at no size'} ({measured})"


def crossings(points, network):
    """A list of (threads, one-copy, zero-copy) in words."""
    table = by_variant(points, network)
    if table is None:
        return []
    return [(threads, from_which_size(points, network, threads, "iovec"), from_which_size(points, network, threads, "zerocopy"))
            for threads in sorted(set(table.index.get_level_values(0)))]


def both_ends(rows, event):
    return (rows[f"client_{event}"] + rows[f"server_{event}"]) / rows.moved_bytes


def counted(points, event):
    return points[f"client_{event}"].notna().any() if len(points) else False


def cache_gains(points, network):
    """For each cache that the machine counts: the share of misses that variants save against flat, over all sizes; in words."""
    rows = points[(points.experiment == "M") & (points.network == network) & (points["stack"] == stacks.PLAIN)]
    gains = {}
    for event, name in CACHES.items():
        if not counted(rows, event):
            continue
        misses = rows.assign(misses=both_ends(rows, event)).pivot_table(index=["threads", "bytes"], columns="mode", values="misses")
        if not {"flat", "zerocopy"} <= set(misses.columns):
            continue
        gains[name] = float((1 - misses["zerocopy"] / misses["flat"]).median())
    if not gains:
        return "not to be answered on this machine: it has no hardware counters, and none are made up"
    best = max(gains, key=gains.get)
    return f"{best} (misses a byte saved by zero-copy, median of all sizes: " + ", ".join(
        f"{name} {gain:.0%}" for name, gain in gains.items()) + ")"
