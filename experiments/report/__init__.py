# SPDX-License-Identifier: MIT
"""The report: one HTML file with everything in it, made from a results folder."""
import pandas

from experiments import data, environment, goals, matrix, results
from experiments.report import calls, html, messages, paper, writes

SECTIONS = {"M": messages, "W": writes, "S": paper, "C": calls}


def goals_markup(its):
    rows = [(goal.verdict().replace(" ", "-"), [goal.name, goal.wanted, goal.measured, goal.verdict(), goal.why])
            for goal in goals.all_goals(its)]
    return html.table(["goal", "wanted", "measured", "", "why"], rows, "text")


def environment_markup(its):
    return html.table(["", ""], [[name.replace("_", " "), str(value)] for name, value in its.environment.items()], "text")


def failed_markup(its):
    if not len(its.failed):
        return html.paragraph("No run failed, and every stack moved the bytes of every point unchanged."
                              if len(its.verified) else "No run failed.")
    keys = [name for name in ("experiment", "network", "mode", "measure", "subject", "bytes", "threads", "stack", "error")
            if name in its.failed]
    return html.table(keys, [["" if pandas.isna(row[key]) else str(row[key]) for key in keys] for _, row in its.failed.iterrows()], "text")


def overview(its):
    words = (f"{environment.caption(its.environment)}. {len(its.runs)} runs measured, {len(its.verified)} more with every byte verified. "
             "Figures are medians; shades are the least and the greatest run. Each point is run on all stacks in turn, in rounds, and "
             "plain TCP twice in each (tcp, tcp-again): what those two differ by is the noise.")
    smoke = "These figures mean nothing: the profile smoke only shows that everything works."
    return html.paragraph(words) + (html.paragraph(smoke, "missed") if its.environment["profile"] == "smoke" else "")


def text_of(its):
    sections = [("overview", "Overview", overview(its)), ("goals", "Goals", goals_markup(its))]
    there = set(its.points.experiment) | ({"C"} if len(its.costs) else set())
    sections += [(name, f"{name}: {matrix.EXPERIMENTS[name]}", module.section(its))
                 for name, module in SECTIONS.items() if name in there]
    sections += [("failed", "Failed runs", failed_markup(its)), ("environment", "Environment", environment_markup(its))]
    return html.page("zc: the experiments", sections)


def write(folder, output):
    its = data.load(folder)
    results.write_whole(output, text_of(its))
    print(f"{output}: {len(its.points)} medians of {len(its.runs)} runs")
    return 0
