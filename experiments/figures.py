# SPDX-License-Identifier: MIT
"""docs/figures.md: the goals and the medians of a results folder, as plain tables."""
from experiments import data, environment, figures_engine, figures_rdma, goals, results, stacks

WARNING = "**The profile `smoke` only shows that everything works: its runs are too short for their figures to mean anything.**\n"


def table(head, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def goal_table(listed):
    head = "| goal | wanted | measured | | why |\n| --- | --- | ---: | --- | --- |\n"
    return head + "".join(
        f"| {goal.name} | {goal.wanted} | {goal.measured} | {goal.verdict()} | {goal.why} |\n" for goal in listed)


def number(value, digits=3):
    """As many digits as say something."""
    if value != value:
        return "—"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def matrix_tables(its):
    """A table for each experiment and network: Gbit/s of plain TCP, and each path against it."""
    for (experiment, network), rows in its.points.groupby(["experiment", "network"], sort=False):
        usual = [name for name in data.stack_order(rows["stack"]) if name in stacks.path_names() + [stacks.CONTROL]]
        head = ["", "tcp, Gbit/s", "spread"] + [name for name in usual if name != stacks.PLAIN]
        cells = [matrix_row(point, usual) for _, point in rows.groupby(data.POINT, dropna=False, sort=False)]
        yield experiment, network, table(head, [cell for cell in cells if cell])


def matrix_row(point, usual):
    by_stack = {row["stack"]: row for _, row in point.iterrows()}
    plain = by_stack.get(stacks.PLAIN)
    if plain is None:
        return None
    words = data.title(plain).split(" ", 2)[2]
    spread = (plain["high"] - plain["low"]) / plain["gbit_s"]
    ratios = [f"{by_stack[name]['ratio']:.2f}" if name in by_stack else "—" for name in usual if name != stacks.PLAIN]
    return [words, number(plain["gbit_s"]), f"{spread:.0%}", *ratios]


def costs_table(its):
    """Medians of section C over its repeats."""
    keys = ["measure", "subject", "bytes", "burst", "threads", "stack", "what", "unit"]
    found = its.costs[its.costs.measure != "where"].groupby(keys, dropna=False, sort=False).value.median().reset_index()
    rows = []
    for _, row in found.iterrows():
        words = [f"{row['measure']}: {row['subject']}"]
        words += [data.size_text(row["bytes"])] if row["bytes"] == row["bytes"] else []
        words += [f"bursts of {row['burst']:.0f}"] if row["burst"] == row["burst"] else []
        words += [f"threads {row['threads']:.0f}"] if row["threads"] == row["threads"] else []
        rows.append([", ".join(words), row["stack"], row["what"], number(row["value"], 4), row["unit"]])
    return table(["", "stack", "what", "median", "unit"], rows)


def text_of(its):
    rounds = its.points.runs.max() if len(its.points) else 0
    parts = [
        "# Figures\n",
        "Made by `scripts/experiments figures`; not to be edited by hand. How to measure anew: `scripts/experiments run --profile engine "
        "&& scripts/experiments figures results/engine`, on a machine that has nothing else to do; then `scripts/experiments report "
        "results/engine` for pictures beside the sources' own tables. The profile `full` has the whole matrix, "
        "and the profile `rdma` is the section of that name.\n",
        f"{environment.caption(its.environment)}. Profile `{its.environment['profile']}`, {rounds:.0f} rounds, {len(its.runs)} runs in all, "
        f"load {its.environment['load_at_start']:.1f} when it began.\n",
    ]
    if its.environment["profile"] == "smoke":
        parts.append(WARNING)
    if len(its.failed):
        parts.append(f"{len(its.failed)} runs failed; they are not in the tables.\n")
    parts += ["## Goals\n", goal_table(goals.all_goals(its)), *figures_engine.apps_section(its, table), *figures_engine.steps_section(its, table)]
    parts += ["## The matrix\n", MATRIX_WORDS] if len(its.points) else []
    names = {"M": "Messages of eight fields", "W": "Many writes, writev, one write", "S": "Modes of the AZ-SDP paper"}
    for experiment, network, text in matrix_tables(its):
        parts += [f"### {names[experiment]}, {network}\n", text]
    parts += figures_engine.paper_section(its, table) + figures_engine.inner_section(its, table)
    if len(its.costs):
        parts += [*figures_engine.where_section(its, table), "## What single calls cost\n", costs_table(its)]
    return "\n".join(parts)


MATRIX_WORDS = (
    "The first column of figures is the median of plain TCP without zc; `spread` is its greatest less its least run, in parts of the "
    "median. The others are speeds against plain TCP in the same rounds: above 1 is faster. `tcp-again` is plain TCP run a second "
    "time in each round: what two medians of the same thing differ by on this machine.\n"
)


def write(folder, output):
    """Each profile has its own part of the document: what the folder is not about stays as it was."""
    its = data.load(folder)
    before, rdma = figures_rdma.split(output.read_text(encoding="utf-8")) if output.exists() else ("# Figures\n", "")
    if figures_rdma.is_rdma(its):
        rdma = figures_rdma.section(its, table, goal_table)
    else:
        before = text_of(its)
    results.write_whole(output, before + (f"\n{rdma}" if rdma else ""))
    print(f"{output}: {len(its.points)} medians of {len(its.runs)} runs")
    return 0
