# SPDX-License-Identifier: MIT
"""The report: one HTML file with everything in it, made from a results folder."""
import pandas

from experiments import data, environment, figures_rdma, goals, matrix, results
from experiments.errors import Failure
from experiments.report import calls, html, messages, paper, rdma, writes

SECTIONS = {"M": messages, "W": writes, "S": paper, "C": calls}


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


def sections_of(its):
    """A section for each experiment; what is between hosts has one of its own."""
    if figures_rdma.is_rdma(its):
        return [("rdma", rdma.TITLE, rdma.section(its))]
    there = set(its.points.experiment) | ({"C"} if len(its.costs) else set())
    return [("goals", "Goals", html.goals(goals.all_goals(its)))] + [
        (name, f"{name}: {matrix.EXPERIMENTS[name]}", module.section(its)) for name, module in SECTIONS.items() if name in there]


def text_of(its, between_hosts):
    sections = [("overview", "Overview", overview(its)), *sections_of(its)]
    sections += [("rdma", rdma.TITLE, rdma.section(between_hosts))] if between_hosts else []
    sections += [("failed", "Failed runs", failed_markup(its)), ("environment", "Environment", environment_markup(its))]
    return html.page("zc: the experiments", sections)


def write(folder, output, rdma_folder=None):
    its = data.load(folder)
    between_hosts = data.load(rdma_folder) if rdma_folder else None
    if between_hosts and not figures_rdma.is_rdma(between_hosts):
        raise Failure(f"{rdma_folder} is no results folder of the profile rdma")
    results.write_whole(output, text_of(its, between_hosts))
    print(f"{output}: {len(its.points)} medians of {len(its.runs)} runs")
    return 0
