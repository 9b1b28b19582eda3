# SPDX-License-Identifier: MIT
"""zc compare: rounds over every path with real servers and clients, what it prints and writes, and what it makes of failures."""
import contextlib
import csv
import html.parser
import io
import json
import os
import pathlib
import pty
import select
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys

import pytest
from conftest import PATHS, clean_environment

TINY = f"{shlex.quote(sys.executable)} -S {pathlib.Path(__file__).parent / 'programs' / 'tiny.py'}"
SERVER = f"{TINY} serve {{port}}"
CLIENT = f"{TINY} ask {{port}} 100000"
FOREVER = "tail -f /dev/null"
ALL = ["tcp", *(name for name in PATHS if name != "tcp")]
# Of five rounds. sg: better beyond doubt; copy: its spread overlaps tcp's; auto: worse.
FIGURES = {"tcp": [100, 110, 90, 101, 99], "copy": [95, 120, 105, 106, 104], "sg": [150, 140, 160, 149, 151], "auto": [50, 60, 40, 51, 49]}
AWKWARD = "<b>one & \"two\"</b>"


@pytest.fixture
def compare(zc, tmp_path):
    """Runs zc compare with TMPDIR in a directory of the test; nothing may be left there."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(*arguments, server=SERVER, client=CLIENT, paths="tcp,copy", repeat=1, warmup=0, **keywords):
        return zc("compare", "--server", server, "--client", client, "--paths", paths, "--repeat", repeat, "--warmup",
                  warmup, *arguments, TMPDIR=str(temporary), **keywords)

    yield run
    assert not list(temporary.iterdir())


def measured(compare, *arguments, **keywords):
    """Runs a comparison that has to succeed, and returns what it wrote as JSON."""
    done = compare(*arguments, "--json", "-", **keywords)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return json.loads(done.stdout)["comparisons"][0]


def path_of(comparison, name):
    return next(path for path in comparison["paths"] if path["path"] == name)


def failure_of(compare, *arguments, **keywords):
    """Runs a comparison of one path that has to fail, and returns what it says of that."""
    done = compare(*arguments, **{"paths": "tcp"} | keywords)
    assert done.returncode == 1, done.stdout
    lines = done.stdout[done.stdout.index("FAILED: "):].splitlines()
    assert "FAILED (1 of 1)" in done.stdout and "No path ran without failures." in done.stdout
    return "\n".join(lines)


def playing(directory, figures):
    """A client that tells of each path the next of its figures, after a real exchange."""
    cases = " ".join(f"{name}) set -- {' '.join(map(str, list_))};;" for name, list_ in figures.items())
    counter = f"{directory}/count.{{path}}"
    return (f"{CLIENT} && case {{path}} in {cases} esac && echo >>{counter} && "
            f"shift $(($(wc -l <{counter}) - 1)) && echo figure $1")


@pytest.fixture(scope="module")
def outcome(zc, tmp_path_factory):
    """One comparison with all of its outputs: the figures are known, all else is measured."""
    directory = tmp_path_factory.mktemp("outcome")
    files = {kind: directory / f"out.{kind}" for kind in ("json", "csv", "html")}
    done = zc("compare", "--name", AWKWARD, "--server", SERVER, "--client", playing(directory, FIGURES), "--paths",
              ",".join(FIGURES), "--repeat", 5, "--warmup", 0, "--metric", "^figure ([0-9.]+)", "--unit", "pieces/s",
              "--bytes", "^moved ([0-9]+) bytes", "--note", "weather=fair", *options(files))
    assert (done.returncode, done.stderr) == (0, "")
    comparison = json.loads(files["json"].read_text())["comparisons"][0]
    return done.stdout, comparison, files


def options(files):
    return [word for kind, file in files.items() for word in (f"--{kind}", file)]


# What it prints and writes


def test_table(outcome):
    text = outcome[0]
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()[:1] and line.split()[0] in FIGURES}
    assert text.startswith(f"{AWKWARD}\n  pieces/s, higher is better; 5 runs of each path, interleaved\n")
    assert text.count("\n  tcp ") == 2  # its row, and its explanation
    assert f"\n  Winner: sg, {150 / 100:.2f} times tcp.\n" in text
    found = {line.split()[0]: line for line in text.splitlines()[3:8]}
    assert set(found) == {"path", *FIGURES} and set(rows) == set(FIGURES)
    for name, said in {"tcp": "baseline", "copy": "within the spread", "sg": "+50.0 %", "auto": "-50.0 %"}.items():
        median, low, high = statistics.median(FIGURES[name]), min(FIGURES[name]), max(FIGURES[name])
        words = [show(median), show(low), "-", show(high), *said.split()]
        assert found[name].split()[1:1 + len(words)] == words
    assert found["auto"].index("-50.0 %") == found["path"].index("better than tcp by")


def show(value):
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def test_json_holds_runs_and_what_is_made_of_them(outcome):
    comparison = outcome[1]
    assert comparison["name"] == AWKWARD
    assert comparison["winner"] == "sg"
    assert comparison["unit"] == "pieces/s" and comparison["higher_is_better"] is True
    assert comparison["environment"]["weather"] == "fair"
    assert comparison["environment"]["kernel"].startswith(f"Linux {os.uname().release}")
    assert [path["path"] for path in comparison["paths"]] == list(FIGURES)
    for path in comparison["paths"]:
        figures = FIGURES[path["path"]]
        assert [run["value"] for run in path["runs"]] == figures
        assert path["value"]["median"] == statistics.median(figures)
        assert (path["value"]["min"], path["value"]["max"]) == (min(figures), max(figures))
        assert path["change"] == pytest.approx(statistics.median(figures) / 100 - 1)
        for run in path["runs"]:
            assert run["ok"] and run["bytes"] == 200_000
            assert run["wall_s"] > 0 and run["cpu_server_s"] > 0 and run["cpu_client_s"] > 0
        per_gb = [(run["cpu_server_s"] + run["cpu_client_s"]) / 2e-4 for run in path["runs"]]
        assert path["cpu_s_per_gb"]["median"] == pytest.approx(statistics.median(per_gb))
    assert "statistics" not in path_of(comparison, "tcp")
    # Both ends sent all of it, in five runs, by the path that was asked for or by copying.
    for name in ("copy", "sg"):
        paths = path_of(comparison, name)["statistics"]["paths"]
        assert sum(path["bytes"] for path in paths.values()) == 5 * 200_000
        assert set(paths) <= {"copy", name}


def test_csv_has_a_row_for_each_run(outcome):
    _, comparison, files = outcome
    rows = list(csv.DictReader(io.StringIO(files["csv"].read_text(), newline="")))
    expected = [(path["path"], run) for path in comparison["paths"] for run in path["runs"]]
    assert len(rows) == len(expected) == 20
    for row, (path, run) in zip(rows, expected):
        assert (row["name"], row["path"], row["status"], row["weather"]) == (AWKWARD, path, "ok", "fair")
        assert (int(row["round"]), int(row["order"])) == (run["round"], run["order"])
        for key in ("value", "wall_s", "cpu_server_s", "cpu_client_s", "bytes"):
            assert float(row[key]) == pytest.approx(run[key])


class Page(html.parser.HTMLParser):
    """The text of a page by tag, and everything that it refers to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.references, self.tags = [], {}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for key, value in attrs if key in ("href", "src", "xlink:href", "data", "action")]
        if tag not in ("meta", "line", "rect", "circle", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("line", "rect", "circle", "path"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_html_is_one_whole_file(outcome):
    _, comparison, files = outcome
    text = files["html"].read_text()
    page = Page(text)
    assert not page.open
    assert page.references == [] and "url(" not in text and "@import" not in text and "script" not in page.tags
    assert page.tags.count("svg") == 2
    assert page.texts["h2"] == [AWKWARD] and AWKWARD in page.texts["title"]
    assert comparison["conclusion"] in page.texts["b"]
    cells = page.texts["td"]
    for name, figures in FIGURES.items():
        assert show(statistics.median(figures)) in cells and name in cells
    assert "fair" in cells


def test_results_are_merged(outcome, zc, tmp_path):
    _, comparison, files = outcome
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"format": "zc-compare-1", "comparisons": [comparison | {"name": "the other one"}]}))
    done = zc("compare", "--merge", files["json"], other, "--html", tmp_path / "both.html", "--csv", tmp_path / "both.csv")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["what", "path", "median", "spread", "ratio", "CPU", "s/GB"]
    rows = [line[34:].split() for line in lines[2:] if line[36:44].strip() in FIGURES]
    assert [row[0] for row in rows] == 2 * list(FIGURES)
    for row, said in zip(rows, 2 * [["baseline"], ["1.05", "="], ["1.50", "+"], ["0.50", "-"]]):
        assert row[1:5] == [show(statistics.median(FIGURES[row[0]])), show(min(FIGURES[row[0]])), "-",
                            show(max(FIGURES[row[0]]))]
        assert row[5:5 + len(said)] == said
        assert (row[-1] == "winner") == (row[0] == "sg")
    assert done.stdout.count("\nthe other one ") == 1
    page = Page((tmp_path / "both.html").read_text())
    assert page.references == ["#c0", "#c1"]
    assert page.texts["h2"] == [AWKWARD, "the other one"]
    assert len((tmp_path / "both.csv").read_text().splitlines()) == 1 + 2 * 20
    again = zc("compare", "--merge", files["json"], other, "--json", "-")
    assert json.loads(again.stdout)["comparisons"] == [comparison, comparison | {"name": "the other one"}]


def test_every_path_with_a_bundled_tool(compare, build):
    tool = build / "apps/tools/zc-msg"
    comparison = measured(
        compare, "--preset", "zc", paths=",".join(ALL), server=f"{tool} server --port {{port}}",
        client=f"{tool} client --host 127.0.0.1 --port {{port}} --variant fields --field-bytes 4K --threads 2 "
               "--messages 100 --nodelay --verify --json -")
    assert [path["path"] for path in comparison["paths"]] == ALL
    assert comparison["unit"] == "Gbit/s"
    for path in comparison["paths"]:
        (run,) = path["runs"]
        assert run["ok"] and run["value"] > 0 and run["bytes"] >= 2 * 100 * 8 * 4096
        assert path["verdict"] in ("baseline", "too few runs to tell")
    assert path_of(comparison, "copy")["statistics"]["paths"]["copy"]["bytes"] >= 2 * 100 * 8 * 4096


# How it runs


def test_order_moves_on_with_each_round(compare, tmp_path):
    log = tmp_path / "log"
    comparison = measured(compare, paths="tcp,copy,sg", repeat=4, warmup=2, server=f"echo {{path}} >>{log}; exec {SERVER}")
    rounds = [["tcp", "copy", "sg"], ["copy", "sg", "tcp"], ["sg", "tcp", "copy"], ["tcp", "copy", "sg"]]
    assert log.read_text().split() == sum(rounds, ["tcp", "tcp"])
    for path in comparison["paths"]:
        assert [run["round"] for run in path["runs"]] == [1, 2, 3, 4]
        assert [run["order"] for run in path["runs"]] == [order.index(path["path"]) + 1 for order in rounds]


@pytest.mark.parametrize("which", ["server", "client", "both"])
def test_preload(compare, tmp_path, build, which):
    log = tmp_path / "log"
    note = f"echo %s {{path}} $ZC_PATH ${{LD_PRELOAD##*/}} >>{log}; exec "
    measured(compare, "--preload", which, server=note % "server" + SERVER, client=note % "client" + CLIENT)
    roles = ["server", "client"]
    expected = [f"{role} tcp" for role in roles]
    expected += [f"{role} copy copy libzc.so" if which in (role, "both") else f"{role} copy" for role in roles]
    assert log.read_text().splitlines() == expected


def test_seconds_are_the_figure_without_another(compare):
    comparison = measured(compare, repeat=3)
    assert comparison["unit"] == "seconds" and comparison["higher_is_better"] is False
    for path in comparison["paths"]:
        assert [run["value"] for run in path["runs"]] == [run["wall_s"] for run in path["runs"]]


def test_lower_is_better(compare, tmp_path):
    comparison = measured(compare, "--metric", "figure ([0-9]+)", "--unit", "us", "--lower", repeat=5,
                          client=playing(tmp_path, {"tcp": [30, 31, 32, 33, 29], "copy": [10, 11, 12, 9, 13]}))
    assert comparison["winner"] == "copy"
    assert path_of(comparison, "copy")["change"] == pytest.approx(31 / 11 - 1)


def test_figures_by_json_pointer(compare):
    text = '{"end": {"list/1": [{"rate": "2.5"}, {"rate": 1e3}], "moved": 4096}}'
    comparison = measured(compare, "--metric-json", "/end/list~11/1/rate", "--bytes-json", "/end/moved", "--unit", "r/s",
                          client=f"{CLIENT} >/dev/null; echo 'a line before'; echo {shlex.quote(text)}")
    for path in comparison["paths"]:
        assert (path["runs"][0]["value"], path["runs"][0]["bytes"]) == (1000.0, 4096)


def test_ready_by_what_the_server_prints(compare):
    measured(compare, "--ready", "line:^at your service on [0-9]+$", server=SERVER + " told")


def test_server_in_the_background(compare):
    measured(compare, server=f"{SERVER} background {os.getpid()}")
    assert not running(f"background {os.getpid()}")


def test_the_servers_address_is_this_host(compare):
    assert measured(compare, "--metric", "at 127.0.0.([0-9]+)", client=f"{CLIENT} && echo at {{address}}")["paths"][0]["runs"][0]["value"] == 1.0


@pytest.mark.parametrize("arguments, words", [
    ([], ["{address}", "client's", "10.9.0.2"]),
    (["--isolate"], ["--lab and --isolate"]),
])
def test_what_the_lab_can_not_do_is_told(compare, arguments, words):
    done = compare("--lab", *arguments, server=f"{SERVER} # {{address}}")
    assert done.returncode == 2 and all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("set_by_user", [None, "7"])
def test_short_runs_of_the_lab_wait_for_rdma(compare, tmp_path, set_by_user):
    """Inside the guest, as far as zc can tell."""
    more = {"ZC_RDMA_WAIT_MS": set_by_user} if set_by_user else {}
    log = tmp_path / "log"
    comparison = measured(compare, "--lab", paths="tcp,copy,bsdp,auto", client=f"echo {{path}} $ZC_RDMA_WAIT_MS >>{log} && {CLIENT} # {{address}}",
                          server=f"{SERVER} # {{address}}", LAB_WRITABLE=str(tmp_path), **more)
    waits = {"bsdp": set_by_user or "5000"} | (dict.fromkeys(["tcp", "copy", "auto"], set_by_user) if set_by_user else {})
    assert log.read_text().splitlines() == [f"{path} {waits[path]}" if path in waits else path for path in ("tcp", "copy", "bsdp", "auto")]
    for path in comparison["paths"]:
        assert ("set by --lab" in path["explanation"]) == (path["path"] == "bsdp" and not set_by_user)


def test_a_zc_without_the_labs_scripts_names_them(compare, build, tmp_path):
    installed = tmp_path / "usr" / "bin" / "zc"
    installed.parent.mkdir(parents=True)
    shutil.copy(build / "apps/zc/zc", installed)
    command = [installed, "compare", "--lab", "--server", f"{SERVER} # {{address}}", "--client", f"{CLIENT} # {{address}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=clean_environment())
    assert done.returncode == 1 and "scripts/lab: No such file" in done.stderr and "not installed" in done.stderr


def skip_without_isolation():
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace may be made here (it takes CAP_SYS_ADMIN)")


def test_isolated_bytes_are_those_of_the_run(compare):
    skip_without_isolation()
    comparison = measured(compare, "--isolate", paths="tcp,sg")
    for path in comparison["paths"]:
        # With headers and perhaps something sent again; of other programs there may be gigabytes.
        assert 200_000 < path["runs"][0]["bytes"] < 400_000


def test_bytes_beside_the_interfaces_count(compare, build):
    skip_without_isolation()
    tool, sent = build / "apps/tools/zc-msg", 200 * 8 * 10000
    comparison = measured(
        compare, "--isolate", "--metric-json", "/gbit_s", paths="tcp,bsdp",
        server=f"{tool} server --bind 127.0.0.1 --port {{port}}",
        client=f"{tool} client --host 127.0.0.1 --port {{port}} --variant flat --field-bytes 10000 --messages 200 "
               "--warmup 0 --nodelay --json -",
    )
    for path in comparison["paths"]:
        assert sent < path["runs"][0]["bytes"] < 1.5 * sent
        # The divisor is neither of these, but what both programs send, the same for both paths.
        run, (payload, other) = path["runs"][0], (path_of(comparison, "bsdp")["runs"][0][f"payload_{end}"] for end in ("min", "max"))
        assert sent < payload == other < 1.2 * sent
        assert path["cpu_s_per_gb"]["median"] == pytest.approx((run["cpu_server_s"] + run["cpu_client_s"]) / payload * 1e9)
    assert path_of(comparison, "bsdp")["statistics"]["paths"]["bsdp"]["bytes"] > sent / 2


def test_programs_out_of_reach_are_told(compare):
    done = compare(server="unset LD_PRELOAD; exec " + SERVER, client="unset LD_PRELOAD; exec " + CLIENT)
    assert done.returncode == 0
    assert "libzc.so saw no TCP connection" in done.stdout


def test_progress_on_a_terminal_alone(compare, tmp_path, zc, build):
    command = [build / "apps/zc/zc", "compare", "--server", SERVER, "--client", CLIENT, "--paths", "tcp,copy", "--repeat",
               "1", "--warmup", "1"]
    for more, wanted in [([], True), (["--quiet"], False)]:
        ours, theirs = pty.openpty()
        done = subprocess.run([*command, *more], stderr=theirs, stdout=subprocess.PIPE, check=True, timeout=60,
                              env=clean_environment())
        os.close(theirs)
        said = os.read(ours, 65536) if select.select([ours], [], [], 0)[0] and wanted else b""
        os.close(ours)
        assert (b"[1/3] tcp (warm-up)" in said and b"[3/3] copy" in said) == wanted
        assert b"[1/3]" not in done.stdout


# Verification


def test_verification_with_the_server_still_there(compare, tmp_path):
    log = tmp_path / "log"
    measured(compare, "--verify", f"{TINY} ask {{port}} 70000 && cat {{output}} >>{log}")
    assert log.read_text() == 2 * "moved 200000 bytes\n"


def test_failed_verification_fails_the_run(compare):
    said = failure_of(compare, "--verify", "echo it is all wrong >&2; false")
    assert "verification ended with exit status 1:" in said and "it is all wrong" in said


# Failures


def test_failing_server(compare):
    said = failure_of(compare, server="echo no such luck >&2; exit 3; : {port}")
    assert "server ended with exit status 3:" in said and "no such luck" in said


def test_server_that_ends_before_it_is_ready(compare):
    assert "server ended before it was ready" in failure_of(compare, server="true {port}")


def test_server_that_is_never_ready(compare):
    said = failure_of(compare, "--timeout", 1, server=f"echo thinking; {FOREVER}; : {{port}}")
    assert "server was not ready within 1 s (--timeout, --ready):" in said and "thinking" in said


def test_server_that_dies_under_the_client(compare):
    said = failure_of(compare, server=f"{SERVER} & echo $! >{{dir}}/pid; wait $!; kill -KILL $$",
                      client=f"{CLIENT} && kill -KILL $(cat {{dir}}/pid) && {FOREVER}")
    assert "server was killed by signal 9" in said


def test_port_in_use(compare):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failure_of(compare, "--ready", f"port:{port}", server=FOREVER, client="true")
    assert f"server: port {port} is in use already" in said


def test_failing_client(compare):
    said = failure_of(compare, client="echo last words; exit 7")
    assert "client ended with exit status 7:" in said and "last words" in said


def test_client_without_end(compare):
    assert "client did not end within 3 s (--timeout)" in failure_of(compare, "--timeout", 3, client=FOREVER)


@pytest.mark.parametrize("option, text, said", [
    ("--metric", "figure ([0-9]+)", "nothing in the client's output matches 'figure ([0-9]+)'"),
    ("--metric", "moved 200000 (bytes)", "'bytes' is no number"), ("--metric", "moved (200000 b)", "'200000 b' is no number"),
    ("--metric", "moved (2000)", "'moved (2000)' matches only the beginning of a number, '2000' of '200000'"),
    ("--metric-json", "/rate", "the client printed no JSON"),
])
def test_client_without_the_figure(compare, option, text, said):
    assert said in failure_of(compare, option, text)


def test_client_whose_json_lacks_the_figure(compare):
    assert "there is no /rate in the client's JSON" in failure_of(compare, "--metric-json", "/rate", client="echo '{}'")


def test_failure_of_one_path_leaves_the_others(compare, tmp_path):
    out = tmp_path / "out.json"
    done = compare("--json", out, paths="tcp,copy,sg", repeat=4, client=f"{CLIENT} && [ {{path}} != copy ]")
    assert done.returncode == 1
    comparison = json.loads(out.read_text())["comparisons"][0]
    counts = {path["path"]: (len(path["runs"]), path["failures"]) for path in comparison["paths"]}
    # After two failures a path's remaining rounds are left out.
    assert counts == {"tcp": (4, 0), "copy": (2, 2), "sg": (4, 0)}
    assert path_of(comparison, "copy")["verdict"] == "FAILED (2 of 2)"
    assert comparison["winner"] != "copy"
    assert done.stdout.count("FAILED: copy, round ") == 2


@pytest.mark.parametrize("arguments, said", [
    (["--server", "no-such-server {port}", "--client", "true"], "--server: there is no program 'no-such-server'"),
    (["--server", SERVER, "--client", "no-such-client"], "--client: there is no program 'no-such-client'"),
    (["--server", SERVER, "--client", "true", "--json", "/no/such/directory/out"], "--json: /no/such/directory/out"),
    (["--merge", "/no/such/file"], "/no/such/file: No such file"),
])
def test_what_is_missing_is_told_at_once(zc, arguments, said):
    done = zc("compare", *arguments)
    assert done.returncode == 1 and said in done.stderr and done.stdout == ""


@pytest.mark.parametrize("text, said", [
    ("{", "line 1"),
    ("{}", "is no result of zc compare --json"),
    ('{"format": "zc-compare-1", "comparisons": [{}]}', "comparison 1 is not complete"),
])
def test_damaged_results_are_refused(zc, tmp_path, text, said):
    file = tmp_path / "file.json"
    file.write_text(text)
    done = zc("compare", "--merge", file)
    assert done.returncode == 1 and str(file) in done.stderr and said in done.stderr


BOTH = ["--server", SERVER, "--client", CLIENT]


@pytest.mark.parametrize("arguments, said", [
    ([], "--server 'COMMAND' is missing"),
    (["--server", SERVER], "--client 'COMMAND' is missing"),
    (["--server", "true", "--client", "true"], "--ready port:NUMBER or --ready line:EXPRESSION"),
    ([*BOTH, "--paths", "tcp,warp"], "there is no path 'warp'; paths are " + ", ".join(PATHS)),
    ([*BOTH, "--paths", "tcp,tcp"], "'tcp' stands there twice"),
    ([*BOTH, "--repeat", "0"], "--repeat: '0'; allowed is a number from 1 to 1000"),
    ([*BOTH, "--warmup", "-1"], "--warmup: '-1'; allowed is a number from 0 to 1000"),
    ([*BOTH, "--timeout", "soon"], "--timeout: 'soon'"),
    ([*BOTH, "--ready", "port:0"], "ports from 1 to 65535"),
    ([*BOTH, "--ready", "smoke"], "allowed are port:NUMBER, port:{port} and line:EXPRESSION"),
    ([*BOTH, "--metric", "[0-9]+"], "needs exactly one group"),
    ([*BOTH, "--metric", "(["], "is no extended regular expression"),
    ([*BOTH, "--metric-json", "rate"], "'rate' is no JSON pointer"),
    ([*BOTH, "--unit", "r/s"], "--unit goes with --metric or --metric-json"),
    ([*BOTH, "--preset", "ab"], "presets are redis-benchmark, wrk, iperf3"),
    ([*BOTH, "--preload", "none"], "allowed are server, client and both"),
    ([*BOTH, "--note", "weather"], "allowed is NAME=TEXT"),
    ([*BOTH, "more"], "'more' belongs to no option"),
    ([*BOTH, "--merge", "file"], "--merge shows results that are there"),
    (["--merge"], "--merge needs FILEs"),
    ([*BOTH, "--nonsense"], "--nonsense"),
    ([*BOTH, "--json", ""], "--json: the name of a file is missing"),
])
def test_bad_options(zc, arguments, said):
    done = zc("compare", *arguments)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""


def test_a_closed_standard_output(build):
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", build / "apps/zc/zc", "compare", *BOTH], capture_output=True,
                          text=True, check=False, timeout=60, env=clean_environment())
    assert done.returncode == 1 and "standard output is closed" in done.stderr


def test_a_refused_setting(zc):
    done = zc("compare", *BOTH, ZC_SG_HOLD_US="forever")
    assert done.returncode == 2 and "ZC_SG_HOLD_US" in done.stderr
    done = zc("compare", *BOTH, ZC_RULES=os.devnull)
    assert done.returncode == 2 and "ZC_RULES is set" in done.stderr


# The end of everything that was started


def running(marker):
    """The processes that have a text in their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid() and \
                    marker.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(entry.name))
    return found


def await_ends(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            assert select.select([fd], [], [], 30)[0], f"process {pid} is still there"
            os.close(fd)


def test_orphans_end_with_the_run(compare, tmp_path):
    stray = f"(setsid {FOREVER} -- {tmp_path} &)"
    measured(compare, server=f"{stray}; exec {SERVER}", client=f"{stray}; {CLIENT}", paths="tcp,copy")
    assert not running(str(tmp_path))


def test_a_server_that_ignores_sigterm_is_killed(compare):
    marker = f"stubborn {os.getpid()}"
    measured(compare, server=f"{SERVER} {marker}", paths="tcp")
    assert not running(marker)


@contextlib.contextmanager
def under_way(build, directory, out):
    """zc compare in the middle of a run, with its client and server there."""
    os.mkfifo(directory / "fifo")
    stray = f"(setsid {FOREVER} -- {directory} &)"
    process = subprocess.Popen(
        [build / "apps/zc/zc", "compare", "--server", f"{stray}; exec {SERVER} {directory}", "--client",
         f"{CLIENT} && echo {directory} >{directory}/fifo && exec {FOREVER} -- {directory}", "--json", out],
        env=clean_environment(TMPDIR=str(directory)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    fifo, end = os.open(directory / "fifo", os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(process.pid)
    with process:
        try:
            assert select.select([fifo, end], [], [], 30)[0] == [fifo], "the client did not come to its place"
            yield process
        finally:
            process.kill()
            os.close(fifo)
            os.close(end)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_puts_everything_away(build, tmp_path, number):
    with under_way(build, tmp_path, tmp_path / "out.json") as process:
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == -number
    assert "nothing was written" in said
    assert not running(str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["fifo"]


def test_killed_it_leaves_no_process(build, tmp_path):
    with under_way(build, tmp_path, tmp_path / "out.json") as process:
        started = running(str(tmp_path))
        assert len(started) >= 4
        process.kill()
        await_ends(started)
    assert not running(str(tmp_path))
    assert not (tmp_path / "out.json").exists()


def test_an_output_that_exists_is_replaced_when_all_is_there(compare, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("old")
    measured(compare, "--csv", out, client=f"[ $(cat {out}) = old ] && {CLIENT}")
    assert out.read_text().startswith("name,path,round,")
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("out")] == ["out.csv"]
