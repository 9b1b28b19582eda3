# SPDX-License-Identifier: MIT
"""scripts/experiments from end to end on a small part of its matrix: rows, resuming, refusals, docs/figures.md and the report."""
import collections
import csv
import html.parser
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = os.environ["ZC_BUILD"]
COMMAND = [ROOT / "scripts" / "experiments"]
PATHS = re.findall(r'^ZC_PATH\(\w+, "([^"]+)"', (ROOT / "common" / "paths.def").read_text(), re.MULTILINE)
SMALL = ["--profile", "smoke", "--build", BUILD, "--networks", "loopback", "--experiments", "W", "--only", "W loopback"]


def experiments(*arguments, status=0):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    return done


def rows_of(folder, name="runs.csv"):
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def key(row):
    return tuple(row[name] for name in ("experiment", "mode", "nbufs", "stack", "kind", "repeat"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """W on loopback on all paths, run once for all tests that only read."""
    folder = tmp_path_factory.mktemp("small") / "results"
    experiments("run", *SMALL, "--results", folder, "--repeats", "2")
    return folder


@pytest.fixture
def copy(small, tmp_path):
    return pathlib.Path(shutil.copytree(small, tmp_path / "copy"))


def test_every_path_is_measured_at_every_point(small):
    rows = rows_of(small)
    assert all(row["status"] == "ok" for row in rows)
    measured = collections.Counter((row["mode"], row["stack"]) for row in rows if row["kind"] == "measure")
    assert measured == {(mode, stack): 2 for mode in "123" for stack in [*PATHS, "tcp-again"]}
    assert {(row["stack"], row["verified"]) for row in rows if row["kind"] == "verify"} == {(path, "True") for path in PATHS}


def test_rows_tell_cost_origin_and_paths(small):
    there = json.loads((small / "environment.json").read_text())
    for row in rows_of(small):
        assert float(row["client_user_s"]) + float(row["client_system_s"]) > 0
        assert row["commit"] == there["commit"] and row["profile"] == "smoke"
        assert bool(row["path_bytes"]) == (row["stack"] not in ("tcp", "tcp-again"))
    sg = next(row for row in rows_of(small) if row["stack"] == "sg" and row["mode"] == "1")
    assert "sg=" in sg["path_bytes"]


def test_rounds_begin_with_another_stack_each(small):
    rounds = collections.defaultdict(list)
    for row in rows_of(small):
        if row["kind"] == "measure" and row["mode"] == "1":
            rounds[row["repeat"]].append(row["stack"])
    assert rounds["0"][0] != rounds["1"][0] and sorted(rounds["0"]) == sorted(rounds["1"])


def test_what_is_there_is_not_measured_again(copy):
    before = (copy / "runs.csv").read_bytes()
    assert experiments("run", *SMALL, "--results", copy, "--repeats", "2").stdout.startswith("0 measured")
    assert (copy / "runs.csv").read_bytes() == before


def test_an_interruption_is_taken_up_again(tmp_path, small):
    folder = tmp_path / "results"
    arguments = [*COMMAND, "run", *SMALL, "--results", folder, "--repeats", "2"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if re.match(r"\d+/\d+,", line):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130 and "takes it up again" in rest
    first = (folder / "runs.csv").read_bytes()
    wanted = sorted(map(key, rows_of(small)))
    assert 0 < len(rows_of(folder)) < len(wanted)
    with open(folder / "runs.csv", "ab") as file:
        file.write(b"2026-01-01T00:00:00Z,torn")
    experiments("run", *SMALL, "--results", folder, "--repeats", "2")
    assert (folder / "runs.csv").read_bytes().startswith(first)
    assert sorted(map(key, rows_of(folder))) == wanted


def refused(folder, *words):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    error = experiments("run", *SMALL, "--results", folder, status=1).stderr
    assert all(word in error for word in words), error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_results_of_another_commit_are_refused(copy):
    there = json.loads((copy / "environment.json").read_text())
    (copy / "environment.json").write_text(json.dumps({**there, "commit": "0" * 40}))
    refused(copy, "not mixed", "0" * 40, there["commit"], "--restart")


def test_a_row_of_another_commit_is_refused(copy):
    commit = json.loads((copy / "environment.json").read_text())["commit"]
    head, first, *others = (copy / "runs.csv").read_text().splitlines(keepends=True)
    (copy / "runs.csv").write_text("".join([head, first.replace(commit, "1" * 40), *others]))
    refused(copy, "not mixed", "1" * 40)
    assert "1" * 40 in experiments("figures", copy, "--output", copy / "figures.md", status=1).stderr
    assert not (copy / "figures.md").exists()


def test_restart_keeps_the_old_results(copy):
    (copy / "environment.json").write_text("{}")
    experiments("run", *SMALL, "--only", " 3 ", "--results", copy, "--restart", "--repeats", "1")
    assert {row["mode"] for row in rows_of(copy)} == {"3"}
    assert (copy.parent / "copy.old1" / "runs.csv").exists()


def median(rows, mode, stack, column):
    return statistics.median(
        float(row[column]) for row in rows if (row["mode"], row["stack"], row["kind"]) == (mode, stack, "measure"))


def goal(folder, words):
    """The cells of a goal's line: goal, wanted, measured, verdict, why."""
    output = folder / "figures.md"
    experiments("figures", folder, "--output", output)
    (line,) = [line for line in output.read_text().splitlines() if line.startswith(f"| {words}")]
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_figures_are_those_of_the_rows(copy):
    rows = rows_of(copy)
    ratio = median(rows, "3", "tcp", "us") / median(rows, "1", "sg", "us")
    _, _, measured, verdict, _ = goal(copy, "type 1 under sg against type 3 without")
    assert measured == f"{ratio:.2f}"
    assert verdict == ("met" if ratio >= 1 else "missed")
    assert goal(copy, "start-up")[3] == "not measured"


def test_a_slow_path_misses_its_goal(copy):
    rows = rows_of(copy)
    for row in rows:
        if row["stack"] == "auto":
            row["gbit_s"] = str(float(row["gbit_s"]) / (100 if row["mode"] == "2" else 1))
    with open(copy / "runs.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _, _, measured, verdict, why = goal(copy, "auto against plain TCP")
    assert verdict == "missed" and float(measured) < 0.1 and "type 2" in why


class Page(html.parser.HTMLParser):
    """What a page shows and what it refers to."""

    def __init__(self, text):
        super().__init__()
        self.references, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.references += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_the_report_is_one_file_with_everything_in_it(small, tmp_path):
    output = tmp_path / "report.html"
    experiments("report", small, "--output", output)
    page = Page(output.read_text())
    assert all(reference.startswith(("#", "data:image/svg+xml;base64,")) for reference in page.references)
    assert any(reference.startswith("data:") for reference in page.references)
    theirs = page.texts.index("theirs")
    assert page.texts[theirs - 1] == "15×100"
    assert set(PATHS) <= set(page.texts)


@pytest.mark.parametrize("what, mode", [("M", "iovec bytes=1024"), ("S", "ping-pong"), ("S", "multi-client")])
def test_tools_run_on_all_networks_of_the_machine(tmp_path, what, mode):
    network = "loopback,veth" if os.geteuid() == 0 else "loopback"
    experiments("run", "--profile", "smoke", "--build", BUILD, "--networks", network, "--paths", "tcp,auto", "--experiments", what,
                "--only", mode, "--results", tmp_path / "results")
    rows = rows_of(tmp_path / "results")
    assert rows and all(row["status"] == "ok" and float(row["gbit_s"]) > 0 for row in rows)


def test_costs_of_calls(tmp_path):
    folder = tmp_path / "results"
    experiments("run", "--profile", "smoke", "--build", BUILD, "--paths", "tcp,copy,bsdp", "--experiments", "C", "--results", folder)
    rows = rows_of(folder, "costs.csv")
    wanted = {"call", "ping-pong", "bare copies", "start", "send", "guard", "step"} | ({"instructions"} if shutil.which("valgrind") else set())
    assert {row["measure"] for row in rows if row["status"] == "ok"} - {"where"} == wanted
    assert goal(folder, "start-up")[3] in ("met", "missed")
    where_time_goes_adds_up(folder, [row for row in rows if row["measure"] == "where"])


def where_time_goes_adds_up(folder, rows):
    """Where perf can sample: of each message no more than a core's time at each end, in the figures too."""
    experiments("figures", folder, "--output", folder / "figures.md")
    assert ("## Where the time of a message goes" in (folder / "figures.md").read_text()) is bool(rows)
    assert {row["subject"] for row in rows} == ({"stream"} if rows else set())
    for _, row in itertools.groupby(rows, lambda row: (row["bytes"], row["repeat"])):
        found = {one["what"]: float(one["value"]) for one in row}
        for end in ("client", "server"):
            parts = [value for what, value in found.items() if what.startswith(end)]
            assert len(parts) == 4 and 0 < sum(parts) < 1.5 * found["message"]


APP = ["run", "--profile", "smoke", "--build", BUILD, "--experiments", "A", "--only", "A loopback ping-pong 64 B, blocking", "--repeats", "2"]


def test_programs_are_measured_in_pairs_and_once_only(tmp_path):
    folder = tmp_path / "results"
    experiments(*APP, "--results", folder)
    rows = rows_of(folder, "apps.csv")
    name = "ping-pong 64 B, blocking"
    runs = collections.Counter((row["path"], row["kind"], row["repeat"]) for row in rows if row["name"] == name and row["status"] == "ok")
    assert runs == {(path, kind, str(repeat)): 1 for path in ("tcp", "auto") for kind, repeat in
                    (("verify", 0), ("measure", 0), ("measure", 1))}
    order = {(row["path"], row["repeat"]): row["order"] for row in rows if row["name"] == name and row["kind"] == "measure"}
    assert order["tcp", "0"] != order["tcp", "1"]
    assert all(float(row["value"]) > 0 and int(row["operations"]) > 0 for row in rows)
    assert experiments(*APP, "--results", folder).stdout.startswith("0 measured")
    for path, verdict in (("auto", "missed"), ("tcp", "met")):
        change_apps(folder, path, "1000000", rows)
        found = goal(folder, f"{name} | at least")
        assert found[3] == verdict and "2 pairs" in found[4]


def change_apps(folder, path, value, rows):
    """A path whose half round trips take so long."""
    with open(folder / "apps.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows([{**row, "value": value if row["path"] == path and row["kind"] == "measure" else row["value"]} for row in rows])


def test_the_papers_inner_comparisons_run_on_all_paths(tmp_path):
    folder = tmp_path / "results"
    experiments("run", "--profile", "smoke", "--build", BUILD, "--networks", "loopback", "--experiments", "S", "--only", "skew",
                "--results", folder)
    there = {row["stack"] for row in rows_of(folder) if row["status"] == "ok"}
    assert set(PATHS) | {"azsdp copy-on-write", "azsdp block-on-write"} <= there
    experiments("figures", folder, "--output", folder / "figures.md")
    (head,) = [line for line in (folder / "figures.md").read_text().splitlines() if "azsdp block-on-write |" in line]
    assert {cell.strip() for cell in head.split("|")} >= there - {"tcp", "tcp-again"}


@pytest.mark.parametrize("arguments, status, words", [
    (["--paths", "tcp,teleport"], 2, ["teleport", *PATHS]),
    (["--experiments", "Q"], 2, ["'Q'", "M, W, S, C"]),
    (["--repeats", "0"], 2, ["'0'", "1 to 1000"]),
    (["--profile", "slow"], 2, ["slow", "smoke"]),
    (["--only", "no such point"], 1, ["no point fits"]),
    (["--build", "nowhere"], 1, ["build/nowhere", "is missing"]),
])
def test_what_can_not_be_is_told(tmp_path, arguments, status, words):
    folder = tmp_path / "results"
    error = experiments("run", "--build", BUILD, "--results", folder, *arguments, status=status).stderr
    assert all(word in error for word in words), error
    assert not (folder / "runs.csv").exists()


def test_a_folder_without_results_is_told(tmp_path):
    for command in ("figures", "report"):
        error = experiments(command, tmp_path, "--output", tmp_path / "out", status=1).stderr
        assert "not a results folder" in error and not (tmp_path / "out").exists()
