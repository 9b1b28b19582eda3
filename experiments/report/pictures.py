# SPDX-License-Identifier: MIT
"""Pictures as <img> with the drawing in them. A stack has the same colour in all of them."""
import base64
import io
import math

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

from experiments import data, stacks  # noqa: E402
from experiments.report import html  # noqa: E402

matplotlib.rcParams["svg.hashsalt"] = "zc"
matplotlib.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                            "axes.spines.right": False})
COLUMNS = 4


def colour(name, names):
    """By the list of paths, so that it does not depend on what was measured."""
    known = stacks.path_names() + [stacks.CONTROL]
    others = [other for other in names if other not in known]
    index = known.index(name) if name in known else len(known) + others.index(name)
    return matplotlib.colormaps["tab10" if index < 10 else "tab20"](index % 20)


def embedded(figure, words):
    out = io.BytesIO()
    figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    drawing = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="{html.text(words)}" src="data:image/svg+xml;base64,{drawing}">\n'


def grid_of(count):
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(max(4.2, 3.3 * columns), 3 * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat)


def draw_lines(axis, rows, x, y, line, names):
    for name in names:
        its = rows[rows[line] == name].dropna(subset=[x, y]).sort_values(x)
        if its.empty:
            continue
        shade = colour(name, names)
        dashed = ":" if name == stacks.CONTROL else "-"
        axis.plot(its[x], its[y], marker="o", markersize=3, linewidth=1.3, linestyle=dashed, color=shade, label=name)
        if y == "gbit_s":
            axis.fill_between(its[x], its.low, its.high, color=shade, alpha=0.12, linewidth=0)


def scale_x(axis, values, x):
    values = sorted(set(values))
    if x == "bytes" or (len(values) > 2 and values[0] > 0 and values[-1] / values[0] >= 8):
        axis.set_xscale("log", base=2)
    axis.set_xticks(values)
    axis.xaxis.set_minor_locator(NullLocator())
    words = (lambda value, _: data.size_text(value)) if x == "bytes" else (lambda value, _: f"{value:g}")
    axis.xaxis.set_major_formatter(FuncFormatter(words))
    axis.tick_params(axis="x", labelrotation=45 if x == "bytes" else 0)


def panels(parts, x, y, labels, words, line="stack", log=False):
    """One drawing for each of `parts` (title: rows), a line for each stack; labels are those of x and y."""
    parts = {title: rows.dropna(subset=[x, y]) for title, rows in parts.items()}
    parts = {title: rows for title, rows in parts.items() if not rows.empty}
    if not parts:
        return ""
    names = data.stack_order([name for rows in parts.values() for name in rows[line]])
    figure, axes = grid_of(len(parts))
    for axis, (title, rows) in zip(axes, parts.items()):
        draw_lines(axis, rows, x, y, line, names)
        scale_x(axis, rows[x], x)
        if log:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(labels[0])
    axes[0].set_ylabel(labels[1])
    return finished(figure, axes[: len(parts)], words)


def bars(parts, x, y, labels, words, log=False):
    """As panels(), with bars side by side for each value of x (text)."""
    parts = {title: rows for title, rows in parts.items() if not rows.empty}
    if not parts:
        return ""
    names = data.stack_order([name for rows in parts.values() for name in rows["stack"]])
    figure, axes = grid_of(len(parts))
    for axis, (title, rows) in zip(axes, parts.items()):
        places = list(dict.fromkeys(rows[x]))
        for index, name in enumerate(names):
            its = rows[rows["stack"] == name].set_index(x)[y]
            at = [places.index(place) + (index - (len(names) - 1) / 2) * 0.8 / len(names) for place in its.index]
            axis.bar(at, its.values, width=0.8 / len(names), color=colour(name, names), label=name)
        axis.set_xticks(range(len(places)), places)
        if log:
            axis.set_yscale("log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(labels[0])
    axes[0].set_ylabel(labels[1])
    return finished(figure, axes[: len(parts)], words)


def timelines(parts, words):
    """One drawing for each of `parts` (title: rows of s, gbit_s, stack, break_s and mend_s): speed by time, the break shaded."""
    names = data.stack_order([name for rows in parts.values() for name in rows["stack"]])
    figure, axes = grid_of(len(parts))
    for axis, (title, rows) in zip(axes, parts.items()):
        for name in names:
            its = rows[rows["stack"] == name]
            axis.plot(its.s, its.gbit_s, linewidth=1, color=colour(name, names), label=name)
        axis.axvspan(rows.break_s.median(), rows.mend_s.median(), color="0.85", linewidth=0)
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("seconds")
    axes[0].set_ylabel("Gbit/s")
    return finished(figure, axes[: len(parts)], words)


def finished(figure, axes, words):
    """One legend beneath all drawings."""
    found = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        found.update(zip(names, handles))
    figure.tight_layout()
    figure.legend(found.values(), found.keys(), loc="upper center", ncol=min(8, len(found)), bbox_to_anchor=(0.5, 0), frameon=False)
    return embedded(figure, words)
