# SPDX-License-Identifier: MIT
"""W: many writes, writev, one write; the source's table beside ours."""
from experiments import data, sources
from experiments.report import html, pictures

TYPES = ["1", "2", "3"]
NAMES = {"1": "type 1: a write per buffer", "2": "type 2: writev", "3": "type 3: one write"}


def with_shape(rows):
    return rows.assign(shape=[f"{row.nbufs:.0f}×{row.bufsize:.0f}" for row in rows.itertuples()],
                       us_each=rows.us / rows.repetitions)


def drawing(rows):
    parts = {NAMES[kind]: rows[rows["mode"] == kind] for kind in TYPES}
    return pictures.bars(parts, "shape", "us_each", ("buffers × bytes", "µs a repetition"), "time of a repetition", log=True)


def ours(rows, shape, stack, value):
    """Types 1, 2, 3 of one shape on one stack."""
    here = rows[(rows.nbufs == shape[0]) & (rows.bufsize == shape[1]) & (rows["stack"] == stack)]
    by_type = {row["mode"]: row for _, row in here.iterrows()}
    return [float(by_type[kind][value]) if kind in by_type else float("nan") for kind in TYPES]


def shape_rows(rows, shape, figures):
    words = f"{shape[0]}×{shape[1]}"
    theirs = [us / sources.WRITE_REPETITIONS for us in figures["us"]]
    reads = [count / sources.WRITE_REPETITIONS for count in figures["reads"]]
    yield "theirs", [words, "theirs", *theirs, *reads, *figures["gbit_s"]]
    here = rows[(rows.nbufs == shape[0]) & (rows.bufsize == shape[1])]
    for stack in data.stack_order(here["stack"]):
        per_read = [count / here.repetitions.iloc[0] for count in ours(rows, shape, stack, "peer_reads")]
        yield "", [words, stack, *ours(rows, shape, stack, "us_each"), *per_read, *ours(rows, shape, stack, "gbit_s")]


def table(rows):
    head = ["buffers × bytes", "stack", *(f"{what}, type {kind}" for what in ("µs", "reads", "Gbit/s") for kind in TYPES)]
    lines = [line for shape, figures in sources.WRITES.items() for line in shape_rows(rows, shape, figures)]
    return html.table(head, lines)


def section(its):
    rows = with_shape(its.points[its.points.experiment == "W"])
    parts = [html.paragraph("1500 bytes a repetition, written in three ways; the server reads them and tells how many reads that took. "
                            "The point here: under the preload the unmodified type 1 should run like type 3. Time and reads are for "
                            "one repetition, so that runs of different length can be set side by side.")]
    for network in rows.network.unique():
        here = rows[rows.network == network]
        parts += [html.heading(3, network), drawing(here), table(here)]
    return "".join(parts) + html.paragraph(sources.BROWN, "note")
