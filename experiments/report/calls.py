# SPDX-License-Identifier: MIT
"""C: what single calls cost."""
from experiments import data, sources
from experiments.report import html, pictures

GUARD_STEPS = ["protect", "send_zerocopy", "notice", "release", "send_copy", "fault_done", "fault_copy"]


def medians(rows, keys):
    return rows.groupby(keys, dropna=False, sort=False).value.median().reset_index()


def stack_table(costs, measure, what, words):
    """A row for each subject, a column for each stack."""
    rows = costs[(costs.measure == measure) & (costs.what == what)]
    if rows.empty:
        return ""
    names = data.stack_order(rows["stack"])
    lines = []
    for (subject, size, burst), here in rows.groupby(["subject", "bytes", "burst"], dropna=False, sort=False):
        label = subject + (f", {data.size_text(size)}" if size == size else "") + (f", bursts of {burst:.0f}" if burst == burst else "")
        by_stack = here.groupby("stack").value.median()
        lines.append([label, *(float(by_stack.get(name, float("nan"))) for name in names)])
    return html.table([words, *names], lines)


def guard_table(costs):
    rows = costs[costs.measure == "guard"]
    if rows.empty:
        return ""
    lines = []
    for (guard, threads, size), here in rows.groupby(["subject", "threads", "bytes"]):
        by_step = here.groupby("what").value.median() / 1000
        lines.append([f"{guard}, {threads:.0f} threads, {data.size_text(size)}",
                      *(float(by_step.get(step, float("nan"))) for step in GUARD_STEPS)])
    faults = rows[rows.what.isin(["fault_done", "fault_copy"])].value / 1000
    words = (f"A fault costs {faults.min():.1f} to {faults.max():.1f} µs here, with the copy of the page and without; the paper: about "
             f"{sources.FAULT_US} µs. {sources.ALLOCATION}")
    return html.table(["guard, µs", *GUARD_STEPS], lines) + html.paragraph(words)


def guard_drawing(costs):
    rows = costs[costs.measure == "guard"]
    if rows.empty:
        return ""
    found = medians(rows, ["subject", "threads", "bytes", "what"]).assign(us=lambda its: its.value / 1000)
    parts = {f"{guard}, {threads:.0f} threads": its for (guard, threads), its in found.groupby(["subject", "threads"])}
    return pictures.panels(parts, "bytes", "us", ("bytes guarded", "µs"), "steps of a guarded send", line="what", log=True)


def start_words(costs):
    rows = costs[costs.measure == "start"]
    if rows.empty:
        return ""
    by_kind = rows.groupby("what").value.median()
    return html.paragraph(f"A program that does nothing, from start to end: {by_kind['plain']:.3f} ms without, "
                          f"{by_kind['preloaded']:.3f} ms with the library.")


def section(its):
    costs = its.costs
    return "".join([
        html.paragraph("The cheapest call of each family, with the library and without; instructions by callgrind, which no other load "
                       "disturbs."),
        stack_table(costs, "call", "call", "ns a call"),
        stack_table(costs, "instructions", "call", "instructions a call"),
        stack_table(costs, "ping-pong", "p50", "64-byte ping-pong, µs"),
        html.heading(3, "Starting a process"), start_words(costs),
        html.heading(3, "Starting a send"), stack_table(costs, "send", "p50", "ns of the sending call, median"),
        html.heading(3, "The guard and each step of a zero-copy send"), guard_drawing(costs), guard_table(costs),
    ])
