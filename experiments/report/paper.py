# SPDX-License-Identifier: MIT
"""S: the modes of the AZ-SDP paper, what it saw in each, and what our rows say."""
from experiments import data, sources, stacks
from experiments.report import html, pictures

# mode: (x of its picture, words for x, the column shown, words for it)
SPEED = ("gbit_s", "Gbit/s")
AXES = {
    "ping-pong": ("bytes", "message", "p50_us", "half a round trip, µs"),
    "stream": ("bytes", "message", *SPEED),
    "overlap": ("compute_us", "computation, µs", *SPEED),
    "touch": ("window", "window", *SPEED),
    "hot-spot": ("bytes", "message", "mean_us", "mean latency, µs"),
    "multi-stream": ("threads", "streams", *SPEED),
    "multi-client": ("bytes", "message", *SPEED),
    "skew": ("delay_us", "receiver late by, µs", *SPEED),
    "unaligned": ("offset_bytes", "offset, bytes", *SPEED),
}
LOG = {"ping-pong", "stream", "hot-spot", "multi-client"}
# What stands for the paper's stacks: its own where they are measured, else what comes nearest on TCP.
ZERO_COPY = ["azsdp", "zerocopy", "zerocopy, kept on"]
BUFFERED = ["bsdp", "copy", stacks.PLAIN]


def parts_of(mode, rows):
    """The drawings of a mode: one for each size, where x is something else."""
    if AXES[mode][0] == "bytes":
        return {f"{mode}, {threads:.0f} clients" if threads == threads else mode: its
                for threads, its in rows.groupby("threads", dropna=False)}
    return {f"{mode}, {data.size_text(size)}": its for size, its in rows.groupby("bytes")}


def first_of(names, by_stack):
    return next((name for name in names if name in by_stack.index), None)


def point_words(words, here):
    """The fastest stack of a point, and zero-copy against buffered."""
    by_stack = here.set_index("stack").gbit_s
    fastest = by_stack.drop(stacks.CONTROL, errors="ignore").idxmax()
    zero, buffered = first_of(ZERO_COPY, by_stack), first_of(BUFFERED, by_stack)
    text = f"{words}: fastest {fastest}"
    if zero and buffered:
        text += f", {zero} {by_stack[zero] / by_stack[buffered]:.2f} × {buffered}"
    return text


def seen(mode, rows):
    """What our rows say, point by point."""
    x = AXES[mode][0]
    lines = []
    for _, here in rows.groupby(data.POINT, dropna=False, sort=False):
        row = here.iloc[0]
        words = data.size_text(row["bytes"])
        if x != "bytes":
            words += f" {AXES[mode][1]} {row[x]:g}"
        elif row["threads"] == row["threads"]:
            words += f" from {row['threads']:.0f}"
        lines.append(point_words(words, here))
    return lines


def block_words(rows):
    """Block-on-write against copy-on-write at the same guard."""
    lines = []
    for (size, delay), here in rows.groupby(["bytes", "delay_us"]):
        by_stack = here.set_index("stack").gbit_s
        for path, guard in (("azsdp", ""), ("zerocopy", ", uffd"), ("zerocopy", ", mprotect")):
            pair = [f"{path} {kind}{guard}" for kind in ("block-on-write", "copy-on-write")]
            if set(pair) <= set(by_stack.index):
                lines.append(f"{data.size_text(size)}, receiver late by {delay:.0f} µs, {path}{guard}: block-on-write "
                             f"{by_stack[pair[0]] / by_stack[pair[1]]:.2f} × copy-on-write")
    return lines


def hybrid_words(rows):
    """Zero-copy of the whole pages of an unaligned buffer against the aligned one and against plain TCP."""
    kept = rows[rows["stack"] == stacks.ZEROCOPY_KEPT[0].name]
    lines = []
    for size, here in kept.groupby("bytes"):
        speed = here.set_index("offset_bytes")
        for offset in speed.index:
            if offset and 0 in speed.index:
                lines.append(f"{data.size_text(size)}, offset {offset:.0f}: {speed.gbit_s[offset] / speed.gbit_s[0]:.2f} × the aligned "
                             f"buffer, {speed.ratio[offset]:.2f} × plain TCP")
    return lines


def mode_block(mode, rows):
    x, x_words, y, y_words = AXES[mode]
    words = {"skew": block_words, "unaligned": hybrid_words}.get(mode, lambda its: seen(mode, its))(rows)
    picture = pictures.panels(parts_of(mode, rows), x, y, (x_words, y_words), f"{mode}: {y_words}", log=mode in LOG)
    return "".join([html.heading(4, mode), html.paragraph(f"The paper: {sources.PAPER[mode]}."), picture, html.items(words),
                    details(mode, rows, y, y_words)])


def details(mode, rows, y, y_words):
    """The medians of a mode as a table."""
    names = data.stack_order(rows["stack"])
    lines = []
    for _, here in rows.groupby(data.POINT, dropna=False, sort=False):
        by_stack = here.set_index("stack")[y]
        lines.append([data.title(here.iloc[0]).split(" ", 3)[3], *(float(by_stack.get(name, float("nan"))) for name in names)])
    return html.table([f"{mode}, {y_words}", *names], lines)


def section(its):
    rows = its.points[its.points.experiment == "S"]
    missing = [name for name in ("bsdp", "zsdp", "azsdp") if name not in stacks.path_names()]
    parts = [html.paragraph("Skewed receivers and unaligned buffers are the paper's inner comparisons; both keep zero-copy on where it "
                            "does not pay, so that it can be seen.")]
    if missing:
        parts.append(html.paragraph(f"This version has no path {', '.join(missing)}; what is nearest on TCP stands for them: copy for the "
                                    "buffered stack, zerocopy for the asynchronous zero-copy one."))
    for network in rows.network.unique():
        here = rows[rows.network == network]
        parts.append(html.heading(3, network))
        parts += [mode_block(mode, here[here["mode"] == mode]) for mode in AXES if (here["mode"] == mode).any()]
    return "".join(parts) + html.paragraph(sources.BALAJI, "note")


