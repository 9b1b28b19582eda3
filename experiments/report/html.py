# SPDX-License-Identifier: MIT
"""Pieces of a page. Everything that is told goes through text(), so nothing in a result can become markup."""
import html

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
th { background: #f3f4f6 } .text th, .text td, th:first-child, td:first-child { text-align: left }
tr.theirs td { color: #6b4e00; background: #fff9e8 }
.met { color: #116329 } .missed { color: #a40e26 } .note { color: #57606a; font-size: 13px }
img { max-width: 100%; height: auto } nav a { margin-right: 1rem }
"""


def text(value):
    return html.escape(str(value))


def number(value, digits=3):
    """As many digits as say something; a dash where nothing was measured."""
    if value is None or value != value:
        return "—"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def cell(value):
    return text(value if isinstance(value, str) else number(value))


def table(head, rows, kind=""):
    """Rows are lists, or (class, list); floats are shown as numbers."""
    lines = ["".join(f"<th>{text(name)}</th>" for name in head)]
    for row in rows:
        style, cells = row if isinstance(row, tuple) else ("", row)
        lines.append((style, "".join(f"<td>{cell(value)}</td>" for value in cells)))
    body = "".join(f'<tr class="{style}">{cells}</tr>\n' for style, cells in lines[1:])
    return f'<table class="{kind}"><thead><tr>{lines[0]}</tr></thead>\n<tbody>{body}</tbody></table>\n'


def goals(listed):
    rows = [(goal.verdict().replace(" ", "-"), [goal.name, goal.wanted, goal.measured, goal.verdict(), goal.why]) for goal in listed]
    return table(["goal", "wanted", "measured", "", "why"], rows, "text")


def heading(level, words, anchor=None):
    its = f' id="{text(anchor)}"' if anchor else ""
    return f"<h{level}{its}>{text(words)}</h{level}>\n"


def paragraph(words, kind=""):
    return f'<p class="{kind}">{text(words)}</p>\n'


def items(lines):
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>\n"


def page(title, sections):
    """One file without any reference to another; sections are (anchor, name, markup)."""
    links = "".join(f'<a href="#{anchor}">{text(name)}</a>' for anchor, name, _ in sections)
    body = "".join(heading(2, name, anchor) + markup for anchor, name, markup in sections)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
            f"<style>{STYLE}</style></head>\n<body><h1>{text(title)}</h1>\n<nav>{links}</nav>\n{body}</body></html>\n")
