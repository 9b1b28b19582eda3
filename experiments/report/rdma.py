# SPDX-License-Identifier: MIT
"""RDMA: the paper's pictures between the lab's two hosts, beside rsockets and what the devices give without either."""
import pandas

from experiments import data, environment, failover, figures_rdma, goals, matrix, network, sources
from experiments.report import html, paper, pictures


def bare_rows(its, mode, y):
    """The bare tools as further lines of a mode's picture."""
    what = "latency" if mode in figures_rdma.LATENCY else "speed"
    rows = its.limits[its.limits.tool.isin(figures_rdma.BESIDE.get(mode, [])) & (its.limits.what == what)]
    if rows.empty:
        return rows
    groups = rows.groupby(["tool", "bytes"], sort=False).value
    found = groups.median().rename(y).reset_index().rename(columns={"tool": "stack"})
    return found.assign(low=groups.min().values, high=groups.max().values)


def mode_block(its, mode, rows):
    x, x_words, y, y_words = paper.AXES[mode]
    drawn = pandas.concat([rows, bare_rows(its, mode, y)]) if x == "bytes" else rows
    parts = {mode: drawn} if x == "bytes" else paper.parts_of(mode, rows)
    picture = pictures.panels(parts, x, y, (x_words, y_words), f"{mode}, RDMA: {y_words}", log=mode in paper.LOG)
    cost = rows.assign(machine=rows.machine_cpu_s / (rows.moved_bytes / 1e9))
    spent = pictures.panels({f"{mode}, processor time": cost}, x, "machine", (x_words, "s a GB, the whole machine"),
                            f"{mode}, RDMA: processor time", log=mode in paper.LOG)
    return "".join([html.heading(3, mode), html.paragraph(f"The paper: {sources.PAPER[mode]}."), picture, spent,
                    paper.details(mode, rows, y, y_words)])


def messages_block(rows):
    if rows.empty:
        return ""
    lines = rows.assign(words=[f"{mode}, {data.size_text(size)}" for mode, size in zip(rows["mode"], rows.bytes)])
    return html.heading(3, "Messages of eight fields") + pictures.bars(
        {"messages": lines}, "words", "gbit_s", ("variant", "Gbit/s"), "messages of eight fields, RDMA")


def failover_block(its):
    if its.failover.empty:
        return ""
    parts = {}
    for name, (words, *_) in failover.BREAKS.items():
        lines = []
        for _, row in its.failover[(its.failover["break"] == name) & (its.failover.repeat == 0)].iterrows():
            speeds = [float(kilobytes) * 8e-6 / row.sample_s for kilobytes in row.samples.split()]
            lines.append(pandas.DataFrame({"stack": row["stack"], "s": [(at + 1) * row.sample_s for at in range(len(speeds))],
                                           "gbit_s": speeds, "break_s": row.break_s, "mend_s": row.mend_s}))
        if lines:
            parts[words] = pandas.concat(lines)
    return "".join([html.heading(3, "When RDMA breaks"), html.paragraph(figures_rdma.FAILOVER_WORDS),
                    pictures.timelines(parts, "what comes at the receiver's interface while RDMA breaks and is mended"),
                    figures_rdma.failover_table(its, markdown)])


def markdown(head, rows):
    """What docs/figures.md shows as a table, here."""
    return html.table(head, [[str(cell) for cell in row] for row in rows], "text")


def section(its):
    points = its.points[its.points.network == network.Rdma.name]
    paper_points = points[points.experiment == "S"]
    parts = [html.paragraph(figures_rdma.WORDS.replace("`", "")), html.paragraph(environment.caption(its.environment) + ".", "note")]
    parts += [html.paragraph(figures_rdma.PENDING)] if figures_rdma.by_ring(its) else []
    parts += [html.heading(3, "Goals between hosts"), html.goals(goals.all_goals(its))]
    parts += [mode_block(its, mode, paper_points[paper_points["mode"] == mode]) for mode in paper.AXES
              if (paper_points["mode"] == mode).any()]
    parts.append(messages_block(points[points.experiment == "M"]))
    if len(its.limits):
        parts += [html.heading(3, "The devices without zc"), html.paragraph(figures_rdma.LIMITS_WORDS.replace("`", "")),
                  figures_rdma.limits_table(its, markdown)]
    if len(its.connects):
        parts += [html.heading(3, "Where nobody answers by RDMA"), html.paragraph(figures_rdma.CONNECTS_WORDS.replace("`", "")),
                  figures_rdma.connects_table(its, markdown)]
    parts.append(failover_block(its))
    if len(its.apps):
        from experiments.figures_engine import app_rows

        parts += [html.heading(3, "Unmodified programs"),
                  markdown(["", "path", "median", "× tcp", "middle half", "CPU", "calls", "switches"], list(app_rows(its)))]
    return "".join([*parts, html.heading(3, "What went how"), figures_rdma.outcome_table(its, markdown),
                    html.paragraph(sources.BALAJI, "note")])


TITLE = f"RDMA: {matrix.EXPERIMENTS['S']}, on soft-RoCE"
