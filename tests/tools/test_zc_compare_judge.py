# SPDX-License-Identifier: MIT
"""What zc compare makes of runs whose figures are known: verdicts and the conclusion, which has to agree with them."""
import json
import random

import pytest


def path_of(comparison, name):
    return next(path for path in comparison["paths"] if path["path"] == name)


def known(figures, higher=True, *, source="-", runs_more=None):
    """A comparison whose figures are known, None for a run that failed; more of each run by path."""
    paths = []
    for name, values in figures.items():
        runs = [{"round": number, "order": 1, "ok": value is not None} | ({"failure": "?"} if value is None else {"value": value} | (runs_more or {}).get(name, {}))
                for number, value in enumerate(values, 1)]
        paths.append({"path": name, "explanation": "-", "runs": runs})
    texts = {key: "-" for key in ("name", "server", "client", "unit", "metric", "cpu_source", "preload")}
    return texts | {"bytes_source": source} | {"higher_is_better": higher, "repeat": max(map(len, figures.values())), "environment": {}, "paths": paths}


def merged(zc, directory, comparisons, arguments=("--json", "-")):
    file = directory / "known.json"
    file.write_text(json.dumps({"format": "zc-compare-1", "comparisons": comparisons}))
    done = zc("compare", "--merge", file, *arguments)
    return json.loads(done.stdout)["comparisons"] if "--json" in arguments else done.stdout


def judged(zc, directory, *arguments, **keywords):
    """What zc compare makes of one."""
    (got,) = merged(zc, directory, [known(*arguments, **keywords)])
    return got


BEYOND = "beyond the spread of the runs"


@pytest.mark.parametrize("figures, winner, conclusion", [
    # The best median, bsdp's, has a wide spread: that hides no other path that is better.
    ({"tcp": [18, 19, 20, 21, 21.5], "bsdp": [13, 14, 24.5, 24.6, 24.7], "auto": [22.3, 22.5, 22.7, 23, 23.2]}, None,
     f"No single winner: auto is better than tcp (1.14 times), but not than bsdp {BEYOND}."),
    ({"tcp": [10, 10.5, 11, 11.5, 12], "bsdp": [20, 20.5, 21, 21.5, 22], "zsdp": [21, 21.5, 22, 22.5, 23], "copy": [9, 9.5, 10, 10.5, 11]}, None,
     f"No single winner: zsdp is better than tcp (2.00 times), but not than bsdp {BEYOND}."),
    ({"tcp": [10, 10.5, 11, 11.5, 12], "bsdp": [20, 20.5, 21, 21.5, 22]}, "bsdp", "Winner: bsdp, 1.91 times tcp."),
    ({"tcp": [10, 10.5, 11, 11.5, 12], "bsdp": [5, 5.5, 6, 6.5, 7]}, "tcp", "Winner: tcp."),
    ({"tcp": [10, 10.5, 11, 11.5, 12], "bsdp": [11, 11.5, 12, 12.5, 13]}, None, f"No winner: nothing is better or worse than tcp {BEYOND}."),
    ({"tcp": [10, 10.5, 11, 11.5, 12], "bsdp": [11, 11.5, 12, 12.5, 13], "sg": [1, 1.5, 2, 2.5, 3]}, None,
     f"No winner: nothing is better than tcp {BEYOND}; worse: sg."),
    ({"tcp": [10, None, 11, 11.5, 12, 12.5], "bsdp": [11, 11.5, 12, 12.5, 13], "sg": [10, 10.5, 11, 11.5, 12]}, None,
     f"No single winner: bsdp has the best median, but is not better than sg {BEYOND}."),
    ({"tcp": [10, None, 11, 11.5, 12, 12.5], "bsdp": [11, 11.5, 12, 12.5, 13]}, "bsdp", "Winner: bsdp."),
    ({"tcp": [10, 11, 12, 13], "bsdp": [20, 21, 22, 23]}, None, "No winner: 5 runs at least are needed to tell."),
])
def test_conclusion_says_what_the_rows_say(zc, tmp_path, figures, winner, conclusion):
    got = judged(zc, tmp_path, figures)
    assert (got["winner"], got["conclusion"]) == (winner, conclusion)


def drifting(slower, rounds=60):
    """A machine that drifts tenfold while a path is a sixth slower in so many of the rounds, and else quicker."""
    tcp = [100 + 900 * (number % 10) / 9 for number in range(rounds)]
    return {"tcp": tcp, "auto": [value * (1.17 if number < slower else 0.95) for number, value in enumerate(tcp)]}


@pytest.mark.parametrize("slower, rounds, verdict", [
    (47, 60, "-14.5 %, 47/60 rounds"), (42, 60, "-14.5 %, 42/60 rounds"), (41, 60, "within the spread"),
    (9, 9, "-14.5 %, 9/9 rounds"), (8, 9, "within the spread"), (8, 8, "within the spread"),
])
def test_paths_are_judged_by_rounds_too(zc, tmp_path, slower, rounds, verdict):
    got = judged(zc, tmp_path, drifting(slower, rounds), higher=False)
    auto = path_of(got, "auto")
    assert (auto["rounds_worse"], auto["rounds_better"]) == (slower, rounds - slower)
    assert auto["verdict"].split(", ")[1:] == verdict.split(", ")[1:]
    assert (auto["verdict"] == "within the spread") == (verdict == "within the spread")
    assert got["winner"] == (None if verdict == "within the spread" else "tcp")
    assert "chance" in got["rule"]


def test_rounds_that_one_path_has_not_run_are_no_pairs(zc, tmp_path):
    figures = drifting(9, 9)
    figures["tcp"][3] = None
    got = judged(zc, tmp_path, figures, higher=False)
    assert path_of(got, "auto")["rounds_worse"] == 8


@pytest.mark.parametrize("runs, most", [(5, 0), (6, 2), (7, 4), (8, 7)])
@pytest.mark.parametrize("higher", [True, False])
def test_paths_are_judged_by_the_ranks_of_their_runs(zc, tmp_path, runs, most, higher):
    """How many of all pairs of runs may say the opposite: what tables of Mann and Whitney's test have, at a hundredth, of both sides."""
    for opposite, told in ((most, True), (most + 1, False)):
        # One or two runs of tcp are above that many of the other's.
        above = [100 + min(opposite, runs) - 0.5, 100 + max(opposite - runs, 0) - 0.5]
        got = judged(zc, tmp_path, {"tcp": [*range(runs - 2), *above], "copy": [100 + number for number in range(runs)]}, higher)
        assert (path_of(got, "copy")["verdict"] != "within the spread") is told, opposite


@pytest.mark.parametrize("rounds", [5, 8, 9, 10, 12, 20, 25])
def test_chance_seldom_makes_a_verdict(zc, tmp_path, rounds):
    dice = random.Random(rounds)
    names = ("tcp", "copy", "sg", "zerocopy", "bsdp", "zsdp", "azsdp", "auto")
    tables = [known({name: [round(dice.gauss(100, 10), 3) for _ in range(rounds)] for name in names}) for _ in range(250)]
    verdicts = [path["verdict"] for got in merged(zc, tmp_path, tables) for path in got["paths"] if path["path"] != "tcp"]
    false = sum(verdict != "within the spread" for verdict in verdicts)
    assert false < 0.015 * len(verdicts)


def moved(least, most, cpu, told=None):
    """What a run has moved, and the CPU seconds of both ends."""
    return {"payload_min": least, "payload_max": most, "cpu_server_s": cpu / 2, "cpu_client_s": cpu / 2, "bytes": told}


KNOWN = {"tcp": [10, 10.5, 11, 11.5, 12], "bsdp": [20, 20.5, 21, 21.5, 22], "copy": [10, 10.5, 11, 11.5, 12]}


@pytest.mark.parametrize("tcp, copy, per_gb", [
    # What passed the interfaces of tcp, headers off, agrees with what the library counts: one GB for all.
    ((0.9e9, 1.1e9), 1e9, {"tcp": 3, "bsdp": 1, "copy": 3}), ((1.02e9, 1.03e9), 1.02e9, {"tcp": 3 / 1.01, "bsdp": 1 / 1.01, "copy": 3 / 1.01}),
    # A client that runs for a time moves another amount on each path; other programs' traffic counts on tcp.
    ((0.2e9, 0.3e9), 1e9, None), ((1.2e9, 1.3e9), 1e9, None), ((0.9e9, 1.1e9), 0.5e9, None),
    # Somebody was out of the library's reach, or the file is of an older zc.
    ((0.9e9, 1.1e9), None, None), ((None, None), 1e9, None),
])
def test_cpu_is_divided_by_the_same_on_all_paths(zc, tmp_path, tcp, copy, per_gb):
    more = {"tcp": moved(*tcp, 3), "bsdp": moved(1e9, 1e9, 1), "copy": moved(copy, copy, 3)}
    paths = judged(zc, tmp_path, KNOWN, runs_more=more)["paths"]
    got = {path["path"]: path["cpu_s_per_gb"] and path["cpu_s_per_gb"]["median"] for path in paths}
    assert got == (pytest.approx(per_gb) if per_gb else dict.fromkeys(KNOWN))
    assert [path["cpu_s"]["median"] for path in paths] == [3, 1, 3]
    table = merged(zc, tmp_path, [known(KNOWN, runs_more=more)], arguments=()).split("ratio: ")[0]
    assert table.count(" a run") == (0 if per_gb else 3)


def test_cpu_is_divided_by_each_runs_own_bytes_where_the_client_tells_them(zc, tmp_path):
    more = {"tcp": moved(None, None, 3, 1e9), "bsdp": moved(None, None, 3, 3e9), "copy": moved(None, None, 3, 1e9)}
    got = judged(zc, tmp_path, KNOWN, source="as told by the client", runs_more=more)
    assert {path["path"]: path["cpu_s_per_gb"]["median"] for path in got["paths"]} == {"tcp": 3, "bsdp": 1, "copy": 3}
