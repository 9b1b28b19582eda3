# SPDX-License-Identifier: MIT
"""M: messages of eight fields; the winners, the sizes at which copying stops to pay, and the three documents' own answers."""
from experiments import answers, data, matrix, sources, stacks
from experiments.report import html, pictures

QUESTIONS = {"one-copy": "One-copy beats two-copy", "zero-copy": "Zero-copy beats two-copy",
             "cache": "The cache level that gains most", "cycles": "Cycles a byte"}


def winners_table(its, network):
    head = ["threads, message", *(f"{name}, Gbit/s" for name in matrix.VARIANTS), "winner without zc", "fastest of all, with zc"]
    rows = [[f"{threads:.0f}, {data.size_text(size)}", *(row.get(name) for name in matrix.VARIANTS), winner, best]
            for threads, size, row, winner, best in answers.winners(its.points, network)]
    return html.table(head, rows)


def theirs_table(its, network):
    """The source's table, each of its rows above ours."""
    ours = answers.by_variant(its.points, network)
    rows = []
    for (threads, size), figures in sources.MESSAGES.items():
        words = f"{threads}, {data.size_text(size)}"
        rows.append(("theirs", [words, "theirs", *map(float, figures), winner_of(figures)]))
        if ours is not None and (threads, size) in ours.index:
            row = [float(ours.loc[(threads, size)].get(name, float("nan"))) for name in sources.MESSAGE_VARIANTS]
            rows.append([words, "ours", *row, winner_of(row)])
    head = ["threads, message", "whose", *(f"{name}, Gbit/s" for name in sources.MESSAGE_VARIANTS), "winner"]
    return html.table(head, rows)


def winner_of(figures):
    known = [(value, name) for value, name in zip(figures, sources.MESSAGE_VARIANTS) if value == value]
    return max(known)[1] if known else "—"


def cycles_words(its, network):
    rows = its.points[(its.points.experiment == "M") & (its.points.network == network) & (its.points["stack"] == stacks.PLAIN)]
    counted = answers.counted(rows, "cycles")
    cost = rows.assign(cost=answers.both_ends(rows, "cycles") if counted else rows.cpu_s_per_gb)
    table = cost.pivot_table(index="bytes", columns="mode", values="cost")
    unit = "cycles a byte" if counted else "ns of processor time a byte (no counters here)"
    return "; ".join(
        f"{data.size_text(size)}: " + ", ".join(f"{name} {html.number(value)}" for name, value in row.items())
        for size, row in table.iterrows()) + f" — {unit}, both ends"


def answers_table(its, network):
    rows = [("theirs", [QUESTIONS[question], who.split(":")[0], answer]) for question, who, answer in sources.MESSAGE_ANSWERS]
    for threads, one, zero in answers.crossings(its.points, network):
        for question, words in (("one-copy", one), ("zero-copy", zero)):
            if words:
                rows.append([QUESTIONS[question], f"ours, threads {threads:.0f}", words])
    rows.append([QUESTIONS["cache"], "ours", answers.cache_gains(its.points, network)])
    rows.append([QUESTIONS["cycles"], "ours", cycles_words(its, network)])
    order = list(QUESTIONS.values())
    rows.sort(key=lambda row: order.index((row[1] if isinstance(row, tuple) else row)[0]))
    return html.table(["question", "whose", "answer"], rows, "text")


def drawings(rows):
    few = rows[rows.threads == rows.threads.min()]
    parts = {name: few[few["mode"] == name] for name in matrix.VARIANTS}
    yield pictures.panels(parts, "bytes", "gbit_s", ("message", "Gbit/s"), "throughput by message size", log=True)
    middle = rows[rows.bytes == 64 * matrix.KIB]
    if middle.threads.nunique() > 1:
        by_threads = {f"{name}, 64 KB": middle[middle["mode"] == name] for name in matrix.VARIANTS}
        yield pictures.panels(by_threads, "threads", "mean_us", ("threads", "µs a message"), "latency by threads", log=True)
    yield pictures.panels(parts, "bytes", "cpu_s_per_gb", ("message", "processor ns a byte, both ends"), "cost by size", log=True)
    for event, words in (("cycles", "cycles a byte"), ("l1d_misses", "L1d misses a byte"), ("llc_misses", "LLC misses a byte")):
        if answers.counted(few, event):
            counted = {name: its.assign(counted=answers.both_ends(its, event)) for name, its in parts.items()}
            yield pictures.panels(counted, "bytes", "counted", ("message", words), words, log=True)


def section(its):
    rows = its.points[its.points.experiment == "M"]
    parts = [html.paragraph("A server answers each request with a message of eight separately allocated fields, one thread for each "
                            "connection. flat: copied into one buffer, one send; fields: a send for each; iovec: one sendmsg; "
                            "zerocopy: sendmsg with MSG_ZEROCOPY, whose completions are awaited before a buffer is reused.")]
    for network in rows.network.unique():
        here = rows[rows.network == network]
        parts += [html.heading(3, network), *drawings(here), html.heading(4, "Answers"), answers_table(its, network),
                  html.heading(4, "The winner for each size and thread count"), winners_table(its, network),
                  html.heading(4, "The source's table beside ours"), theirs_table(its, network), html.paragraph(sources.JAIN, "note")]
    parts.append(html.items([sources.PARDASANI, sources.YESHWANTH]))
    return "".join(parts)
