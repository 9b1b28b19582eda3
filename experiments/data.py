# SPDX-License-Identifier: MIT
"""The rows of a results folder as tables: medians, spread, and how a stack compares to plain TCP at the same point."""
import dataclasses
import statistics

import pandas

from experiments import apps, connects, costs, failover, limits, matrix, measure, results, runner, stacks
from experiments.errors import Failure

POINT = ["experiment", "network", *matrix.PARAMETERS]
TEXTS = {"experiment", "network", "mode", "stack", "path", "settings", "kind", "status", "error", "latency_of", "path_bytes",
         "reasons", "verified", "measure", "subject", "what", "unit", "name", "tool", "higher", "operation", "explanation",
         "break", "samples", "peer",
         *results.PROVENANCE}


@dataclasses.dataclass
class Data:
    folder: object
    environment: dict
    runs: pandas.DataFrame  # the measured runs that went well
    verified: pandas.DataFrame  # the runs whose bytes were verified
    costs: pandas.DataFrame
    failed: pandas.DataFrame  # runs that failed and have not gone well since
    points: pandas.DataFrame  # one row for each point and stack: medians
    apps: pandas.DataFrame  # the runs of unmodified programs
    limits: pandas.DataFrame  # the runs of tools that use RDMA without zc
    failover: pandas.DataFrame  # the transfers whose RDMA broke
    connects: pandas.DataFrame  # connections that found no peer by RDMA
    counted: pandas.DataFrame  # one run of each on each path, verified, with system calls and context switches counted


def frame_of(table):
    """Numbers as numbers; what is not told is NaN, in columns of text an empty text."""
    frame = pandas.DataFrame(table.rows, columns=table.columns)
    for name in frame.columns:
        if name not in TEXTS:
            frame[name] = pandas.to_numeric(frame[name], errors="coerce")
    return frame


def still_failed(frame, key):
    good = set(map(tuple, frame[frame.status == "ok"][key].fillna("").values))
    failed = frame[frame.status != "ok"].drop_duplicates(key, keep="last")
    return failed[[tuple(row) not in good for row in failed[key].fillna("").values]]


def shares(runs):
    """Of the bytes of a run, the part that each path has carried: medians, the greatest first."""
    each = [{name: int(count) for name, count in (pair.split("=") for pair in str(text).split())} for text in runs.path_bytes]
    found = {path: statistics.median(counts.get(path, 0) / max(1, sum(counts.values())) for counts in each)
             for path in {path for counts in each for path in counts}}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def medians(runs):
    """A row for each point and stack; `low` and `high` are the least and the greatest of the Gbit/s."""
    if runs.empty:
        more = ["runs", "low", "high", "ratio", "control", "behind", "ahead"]
        return pandas.DataFrame(columns=[*runner.COLUMNS, *more])
    groups = runs.groupby([*POINT, "stack"], dropna=False, sort=False)
    numbers = [name for name in runs.columns if name not in TEXTS and name not in (*POINT, "repeat", "order")]
    found = groups[numbers].median()
    found["low"], found["high"] = groups.gbit_s.min(), groups.gbit_s.max()
    found["runs"] = groups.gbit_s.count()
    found["reasons"], found["path_bytes"] = groups.reasons.first(), groups.path_bytes.first()
    return compared(found.reset_index())


def compared(points):
    """Adds `ratio`, the speed against plain TCP at the same point, and `control`, the same of plain TCP run again."""
    plain = points[points["stack"] == stacks.PLAIN][[*POINT, "gbit_s", "low", "high"]]
    points = points.merge(plain, on=POINT, how="left", suffixes=("", "_plain"))
    points["ratio"] = points.gbit_s / points.gbit_s_plain
    again = points[points["stack"] == stacks.CONTROL][[*POINT, "ratio", "low", "high"]]
    again = again.rename(columns={"ratio": "control", "low": "low_again", "high": "high_again"})
    points = points.merge(again, on=POINT, how="left")
    # Slower than plain TCP for certain: its best run behind the worst one of plain TCP, both times that was run.
    points["behind"] = points.high < points[["low_plain", "low_again"]].min(axis=1)
    points["ahead"] = points.low > points[["high_plain", "high_again"]].max(axis=1)
    return points


def load(folder):
    there = results.read_environment(folder)
    if there is None:
        raise Failure(f"{folder} is not a results folder: it has no {results.ENVIRONMENT} (scripts/experiments run makes one)")
    tables = [results.Table(folder / measure.RUNS, runner.COLUMNS, runner.KEY),
              results.Table(folder / measure.COSTS, costs.COLUMNS, costs.KEY),
              results.Table(folder / measure.APPS, apps.COLUMNS, apps.KEY),
              results.Table(folder / measure.LIMITS, limits.COLUMNS, limits.KEY),
              results.Table(folder / measure.FAILOVER, failover.COLUMNS, failover.KEY),
              results.Table(folder / measure.CONNECTS, connects.COLUMNS, connects.KEY)]
    for table in tables:
        results.check_rows(table, there)
    if not any(table.rows for table in tables):
        raise Failure(f"{folder} has no rows yet")
    all_runs, all_costs, all_apps, all_limits, all_breaks, all_lonely = (frame_of(table) for table in tables)
    good = all_runs[all_runs.status == "ok"].drop_duplicates(runner.KEY, keep="last")
    runs = good[good.kind == "measure"]
    failed = pandas.concat([still_failed(all_runs, runner.KEY), still_failed(all_costs, costs.KEY), still_failed(all_apps, apps.KEY),
                            still_failed(all_limits, limits.KEY), still_failed(all_breaks, failover.KEY),
                            still_failed(all_lonely, connects.KEY)])
    programs = all_apps[all_apps.status == "ok"].drop_duplicates(apps.KEY, keep="last")
    return Data(folder, there, runs, good[good.kind == "verify"], all_costs[all_costs.status == "ok"], failed, medians(runs),
                programs[programs.kind == "measure"], all_limits[all_limits.status == "ok"].drop_duplicates(limits.KEY, keep="last"),
                all_breaks[all_breaks.status == "ok"].drop_duplicates(failover.KEY, keep="last"),
                all_lonely[all_lonely.status == "ok"].drop_duplicates(connects.KEY, keep="last"), programs[programs.kind == "verify"])


@dataclasses.dataclass
class Pairs:
    """Two things measured in turn: the ratio of their medians, and the middle half of the ratios of the pairs."""
    ratio: float
    low: float
    high: float
    count: int

    def text(self):
        return f"{self.count} pairs, the middle half of them {self.low:.2f} to {self.high:.2f}"


def pairs(runs, plain, value, higher=True):
    """How much better `runs` are than `plain`, both with a column `repeat`; None where there are no pairs."""
    both = runs.merge(plain, on="repeat", suffixes=("", "_plain"))[[value, f"{value}_plain"]].dropna()
    if both.empty:
        return None
    ours, theirs = (both[value], both[f"{value}_plain"]) if higher else (both[f"{value}_plain"], both[value])
    each = ours / theirs
    return Pairs(ours.median() / theirs.median(), each.quantile(0.25), each.quantile(0.75), len(both))


def stack_order(names):
    """The stacks that occur, plain TCP first, then in the order of the list of paths, rsockets, then the paper's own ones."""
    known = stacks.path_names() + [stacks.CONTROL, stacks.RSOCKETS]
    names = list(dict.fromkeys(names))
    return [name for name in known if name in names] + [name for name in names if name not in known]


def size_text(count):
    count = int(count)
    for unit, name in ((matrix.MIB, "MB"), (matrix.KIB, "KB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def title(row):
    """The words for a point."""
    words = [row["experiment"], row["network"], {"1": "type 1", "2": "type 2", "3": "type 3"}.get(row["mode"], row["mode"])]
    if row["bytes"] == row["bytes"]:
        words.append(size_text(row["bytes"]))
    if row["nbufs"] == row["nbufs"]:
        words.append(f"{row['nbufs']:.0f}×{row['bufsize']:.0f}")
    for name, text in (("threads", "threads {:.0f}"), ("compute_us", "compute {:.0f} µs"), ("window", "window {:.0f}"),
                       ("offset_bytes", "offset {:.0f}"), ("delay_us", "receiver late by {:.0f} µs")):
        if row[name] == row[name]:
            words.append(text.format(row[name]))
    return " ".join(words)
