# SPDX-License-Identifier: MIT
"""
The engine's goals: ratios to plain TCP in the same run. A missed one says what bounds it, from the rows themselves: the speed of
copies that nothing else is done beside, what the steps of a send take, and where the processor time of both ends goes (where.py).
"""

from experiments import data, stacks, where
from experiments.goals import Goal, not_measured

AUTO = "auto"
STREAMS = [(1 << 10, 10), (1 << 16, 4), (1 << 18, 4), (1 << 20, 4)]  # bytes, times plain TCP
CPU_FROM = 4 << 10
BEST_RATIO, MEDIUM_RATIO, OVERLAP_RATIO = 0.9, 1.35, 2
MEDIUM = (64 << 10, 4 << 20)
WRITES_RATIO = 5
# name of the app: times plain TCP
APPS = {
    "iperf3, one stream": 4,
    "ping-pong 64 B, blocking": 30,
    "ping-pong 64 B, epoll": 15,
    "ping-pong 64 B, blocking, 2 busy processes beside it": 1,
    "ping-pong 64 B, epoll, 2 busy processes beside it": 1,
    "redis GET 100 B, 1 client": 6,
    "redis GET 100 B, 50 clients": 1.5,
    "redis GET 100 B, 50 clients, pipelined 16": 1.3,
    "memcached 100 B, 1 client": 6,
    "memcached 100 B, 50 clients": 1.5,
    "memcached 100 B, 1 client, 16 keys a get": 1.3,
    "nginx, 1 KB bodies, 16 connections kept alive": 1.5,
    "nginx, 1 MB bodies, 4 connections": 2.5,
    "pgbench, select-only, 1 client": 1.3,
}


def ratio_goal(name, times, pairs, why):
    return Goal(name, f"at least {times:g} ×", f"{pairs.ratio:.2f} ×", bool(pairs.ratio >= times), f"{pairs.text()}; {why}")


def cost(its, measure, subject, what, size=None, threads=None):
    """The median of a measurement of section C, or None."""
    rows = its.costs[(its.costs.measure == measure) & (its.costs.subject == subject) & (its.costs.what == what)]
    if size is not None:
        rows = rows[rows.bytes == size]
    if threads is not None:
        rows = rows[rows.threads == threads]
    return float(rows.value.median()) if len(rows) else None


def runs_at(its, stack, **where):
    """The measured runs of a stack at one point."""
    rows = its.runs[(its.runs["stack"] == stack) & (its.runs.network == "loopback")]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


# Streams ------------------------------------------------------------------------------------------------------------------


def bare_bound(its, size, plain):
    """What copies alone would be at this size, against plain TCP."""
    bare = cost(its, "bare copies", "stream", "speed", size)
    if bare is None or not len(plain):
        return "bare copies were not measured"
    return f"bare copies through a ring make {bare:.1f} Gbit/s, {bare / plain.gbit_s.median():.1f} × plain TCP"


def streams(its):
    for size, times in STREAMS:
        name = f"zc-ttcp, one stream of {data.size_text(size)}"
        ours, plain = (runs_at(its, stack, experiment="S", mode="stream", bytes=size) for stack in (AUTO, stacks.PLAIN))
        pairs = data.pairs(ours, plain, "gbit_s")
        if pairs is None:
            yield not_measured(name, f"at least {times} ×", "S with auto and tcp")
            continue
        yield ratio_goal(name, times, pairs, f"{ours.gbit_s.median():.1f} Gbit/s against {plain.gbit_s.median():.1f} Gbit/s; "
                                             f"{bare_bound(its, size, plain)}")


def processor_time(its):
    """CPU seconds of both ends a GB: what spins counts too."""
    plain = its.points[(its.points["stack"] == stacks.PLAIN) & (its.points.experiment == "S") & (its.points["mode"] == "stream")
                       & (its.points.network == "loopback")]
    sizes = sorted(int(size) for size in plain.bytes if size >= CPU_FROM)
    if not sizes:
        yield not_measured("CPU seconds a GB", "below plain TCP's", "S")
    for size in sizes:
        ours, theirs = (runs_at(its, stack, experiment="S", mode="stream", bytes=size) for stack in (AUTO, stacks.PLAIN))
        pairs = data.pairs(ours, theirs, "cpu_s_per_gb")
        if pairs is None:
            continue
        ends = ", ".join(f"{end} {share(ours, end):.0%} of a core" for end in ("client", "server"))
        yield Goal(f"CPU seconds a GB, one stream of {data.size_text(size)}, spinning included", "below plain TCP's",
                   f"{pairs.ratio:.2f} of it", bool(pairs.ratio < 1),
                   f"{pairs.text()}; {ours.cpu_s_per_gb.median():.3f} against {theirs.cpu_s_per_gb.median():.3f} s; {ends}")


def share(runs, end):
    return ((runs[f"{end}_user_s"] + runs[f"{end}_system_s"]) / runs.seconds).median()


# Unmodified programs ------------------------------------------------------------------------------------------------------


def app_costs(its, name, path, its_runs):
    """What an operation takes on a path: the words of one half of a reason."""
    operations = its_runs.operations
    words = []
    for end in ("server", "client"):
        busy = its_runs[f"{end}_cpu_s"]
        words.append(f"{end} {(busy / its_runs.wall_s).median():.0%} of a core, {(1e6 * busy / operations).median():.1f} µs "
                     f"a{'n' if its_runs.operation.iloc[0][0] in 'aeiou' else ''} {its_runs.operation.iloc[0]}")
    counted = its.counted[(its.counted.name == name) & (its.counted["path"] == path)]
    for what in ("system_calls", "switches"):
        both = counted[f"server_{what}"] + counted[f"client_{what}"]
        if len(counted) and both.notna().all():
            words.append(f"{(both / counted.operations).iloc[0]:.2f} {'system calls' if what == 'system_calls' else 'context switches'}")
    return f"{path}: " + ", ".join(words)


def app_bound(its, name, plain, ours):
    """What the program could gain at most: with the busier end busy all the time with what it does now."""
    if "busy processes" in name:
        return (f"which of the four processes share a core differs from run to run: plain TCP took {plain.value.min():.1f} to "
                f"{plain.value.max():.1f} µs, auto {ours.value.min():.1f} to {ours.value.max():.1f}")
    if name.startswith("ping-pong"):
        bare = cost(its, "bare copies", "ping-pong", "p50", 64)
        return f"bare copies there and back take {bare:.2f} µs a half, {plain.value.median() / bare:.0f} × shorter" if bare else ""
    if name.startswith("iperf3"):
        return bare_bound(its, 1 << 17, plain.rename(columns={"value": "gbit_s"})) if cost(
            its, "bare copies", "stream", "speed", 1 << 17) else ""
    end = max(("server", "client"), key=lambda which: ours[f"{which}_cpu_s"].median())
    least = (ours[f"{end}_cpu_s"] / ours.operations).median()
    now = (plain.wall_s / plain.operations).median()
    return (f"with the {end}'s processor time of an operation as it is now and no waiting at all it would be "
            f"{now / least:.1f} × plain TCP")


def figure(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def app_goals(its):
    for name, times in APPS.items():
        rows = its.apps[its.apps.name == name]
        plain, ours = (rows[rows["path"] == path] for path in (stacks.PLAIN, AUTO))
        higher = bool(len(rows)) and rows.higher.iloc[0] == "True"
        pairs = data.pairs(ours, plain, "value", higher)
        if pairs is None:
            yield not_measured(name, f"at least {times:g} ×", f"A {name}")
            continue
        unit = rows.unit.iloc[0].replace("us", "µs")
        why = [f"{figure(ours.value.median())} {unit} against {figure(plain.value.median())}"]
        why += [app_costs(its, name, stacks.PLAIN, plain), app_costs(its, name, AUTO, ours)]
        if pairs.ratio < times:
            why.append(app_bound(its, name, plain, ours))
        yield ratio_goal(name, times, pairs, "; ".join(word for word in why if word))


# Many writes --------------------------------------------------------------------------------------------------------------


def writes_subject(shape):
    return f"W type 1 {shape.nbufs:.0f}×{shape.bufsize:.0f}"


def writes(its):
    shapes = its.runs[its.runs.experiment == "W"][["nbufs", "bufsize"]].drop_duplicates()
    if shapes.empty:
        yield not_measured("W type 1, unmodified", f"at least {WRITES_RATIO} ×", "W")
    for _, shape in shapes.iterrows():
        at = {"experiment": "W", "nbufs": shape.nbufs, "bufsize": shape.bufsize}
        ours, many, one = runs_at(its, AUTO, mode="1", **at), *(runs_at(its, stacks.PLAIN, mode=mode, **at) for mode in "13")
        sampled = where.words(its.costs, writes_subject(shape), AUTO)
        for words, plain, times in (("its figure over plain TCP", many, WRITES_RATIO), ("plain TCP's type 3", one, 1)):
            pairs = data.pairs(ours, plain, "us", higher=False)
            if pairs is None:
                continue
            a_write, spare = ((runs.us * 1000 / runs.repetitions / runs.nbufs).median() for runs in (ours, plain))
            yield ratio_goal(f"W type 1 under auto against {words}, {shape.nbufs:.0f}×{shape.bufsize:.0f}", times, pairs,
                             f"a write takes {a_write:.0f} ns in all, against {spare:.0f} ns for each part there"
                             + (f"; {sampled}" if sampled else ""))


# azsdp and auto -----------------------------------------------------------------------------------------------------------


def a_message(runs):
    """µs of a message, and of that the system time of the end that sends, for guards among other things."""
    us = 1e6 * (runs.seconds / runs.messages)
    return us.median(), (us * runs.client_system_s / runs.seconds).median()


def steps_why(its, size, compute_us, ours, waiting):
    """The reason in numbers: what a message took each way in these runs, and what its steps take by themselves."""
    (our_us, our_system), (their_us, _) = (a_message(runs) for runs in (ours, waiting))
    computing = f", {compute_us:.0f} µs of them computing" if compute_us else ""
    why = (f"at {data.size_text(size)} a message took {their_us:.1f} µs by zsdp{computing} and {our_us:.1f} µs by azsdp, whose sender was "
           f"in the kernel for {our_system:.1f} µs of them and whose guard kept {data.shares(ours).get('azsdp', 0):.0%} of the bytes")
    get, gets = (cost(its, "step", "one message", what, size) for what in ("get", "gets"))
    if get is None or gets is None:
        return why + "; the steps of a send were not measured at this size (section C)"
    least = max(gets / 1000, compute_us)
    return (f"{why}; of zsdp's, {get / 1000:.1f} µs are the GET that it waits for, {their_us - compute_us - get / 1000:.1f} µs the words between both "
            f"ends; GETs in a row take {gets / 1000:.1f} µs, so with guards that cost nothing azsdp could be {their_us / least:.2f} × zsdp")


def asynchronous(its):
    """azsdp against zsdp: in streams of medium sizes, and where the program computes meanwhile."""
    for name, mode, times in (("azsdp against zsdp, best of its medium range", "stream", MEDIUM_RATIO),
                              ("azsdp against zsdp, best of overlap", "overlap", OVERLAP_RATIO)):
        found = []
        rows = its.runs[(its.runs.experiment == "S") & (its.runs["mode"] == mode) & its.runs.bytes.between(*MEDIUM)]
        for _, point in rows[["bytes", "compute_us"]].drop_duplicates().iterrows():
            at = {"experiment": "S", "mode": mode, "bytes": point.bytes}
            if mode == "overlap":
                at["compute_us"] = point.compute_us
            both = [runs_at(its, path, **at) for path in ("azsdp", "zsdp")]
            pairs = data.pairs(*both, "gbit_s")
            if pairs:
                found.append((pairs, int(point.bytes), point.compute_us if mode == "overlap" else 0, both))
        if not found:
            yield not_measured(name, f"at least {times} ×", "S with azsdp and zsdp")
            continue
        words = [data.size_text(size) + (f" computing {compute:.0f} µs" if compute else "") + f" {pairs.ratio:.2f}"
                 for pairs, size, compute, _ in found]
        best, size, compute, both = max(found, key=lambda one: one[0].ratio)
        yield ratio_goal(name, times, best, f"{', '.join(words)}; {steps_why(its, size, compute, *both)}")


def why_behind(its, points):
    """Where both paths were sampled at a point: what both do of it."""
    words = [[where.words(its.costs, title.replace("W loopback ", "W "), path) for path in (AUTO, best)] for title, best in points]
    return "".join(f"; {'; '.join(both)}" for both in words if all(both))


def best_fixed(its):
    """auto against the best of the paths that one can ask for, plain TCP among them, at every point."""
    name, wanted = "auto against the best fixed path, every point of the matrix", f"never below {BEST_RATIO}"
    fixed = [path for path in stacks.path_names() if path != AUTO]
    found = []
    for _, rows in its.points.groupby(data.POINT, dropna=False, sort=False):
        ours, others = rows[rows["stack"] == AUTO], rows[rows["stack"].isin(fixed)]
        if len(ours) and len(others):
            best = others.loc[others.gbit_s.idxmax()]
            ours = ours.iloc[0]
            found.append((ours.gbit_s / best.gbit_s, bool(ours.high < best.low), data.title(ours), best["stack"]))
    if not found:
        yield not_measured(name, wanted, "the path auto")
        return
    ratios = sorted(ratio for ratio, *_ in found)
    low = [one for one in found if one[0] < BEST_RATIO]
    worst = min(found)
    against = why_behind(its, [(title, best) for _, apart, title, best in sorted(low) if apart])
    certain = [f"{title} ({best}, {ratio:.2f})" for ratio, apart, title, best in sorted(low) if apart]
    yield Goal(name, wanted, f"{worst[0]:.2f}", not low,
               f"lowest at {worst[2]}, where {worst[3]} is the best; {len(low)} of {len(found)} points are below, {len(certain)} of them "
               f"beyond the spread of the runs{': ' if certain else ''}{', '.join(certain[:5])}; the median is {ratios[len(ratios) // 2]:.2f}. "
               f"The best of {len(fixed)} medians is above its own by chance alone; more of what bounds these is in docs/design.md, \"What auto costs at first\" "
               f"and \"A receiver that is late\"{against}")


MAKERS = (streams, app_goals, writes, processor_time, asynchronous, best_fixed)
