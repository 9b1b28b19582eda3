# SPDX-License-Identifier: MIT
"""What zc compare makes of runs whose figures are known: verdicts and the conclusion, which has to agree with them."""
import json

import pytest


def path_of(comparison, name):
    return next(path for path in comparison["paths"] if path["path"] == name)


def judged(zc, directory, figures, higher=True):
    """What zc compare makes of runs whose figures are known, None for one that failed."""
    paths = []
    for name, values in figures.items():
        runs = [{"round": number, "order": 1, "ok": value is not None} | ({"failure": "?"} if value is None else {"value": value})
                for number, value in enumerate(values, 1)]
        paths.append({"path": name, "explanation": "-", "runs": runs})
    texts = {key: "-" for key in ("name", "server", "client", "unit", "metric", "bytes_source", "cpu_source", "preload")}
    comparison = texts | {"higher_is_better": higher, "repeat": max(map(len, figures.values())), "environment": {}, "paths": paths}
    file = directory / "known.json"
    file.write_text(json.dumps({"format": "zc-compare-1", "comparisons": [comparison]}))
    return json.loads(zc("compare", "--merge", file, "--json", "-").stdout)["comparisons"][0]


BEYOND = "beyond the spread of the runs"


@pytest.mark.parametrize("figures, winner, conclusion", [
    # The best median, bsdp's, has a wide spread: that hides no other path that is better.
    ({"tcp": [18, 20, 21.5], "bsdp": [13, 24.5, 24.6], "auto": [22.3, 22.7, 23.2]}, None,
     f"No single winner: auto is better than tcp (1.14 times), but not than bsdp {BEYOND}."),
    ({"tcp": [10, 11, 12], "bsdp": [20, 21, 22], "zsdp": [21, 22, 23], "copy": [9, 10, 11]}, None,
     f"No single winner: zsdp is better than tcp (2.00 times), but not than bsdp {BEYOND}."),
    ({"tcp": [10, 11, 12], "bsdp": [20, 21, 22]}, "bsdp", "Winner: bsdp, 1.91 times tcp."),
    ({"tcp": [10, 11, 12], "bsdp": [5, 6, 7]}, "tcp", "Winner: tcp."),
    ({"tcp": [10, 11, 12], "bsdp": [11, 12, 13]}, None, f"No winner: nothing is better or worse than tcp {BEYOND}."),
    ({"tcp": [10, 11, 12], "bsdp": [11, 12, 13], "sg": [1, 2, 3]}, None,
     f"No winner: nothing is better than tcp {BEYOND}; worse: sg."),
    ({"tcp": [10, None, 12], "bsdp": [11, 12, 13], "sg": [10, 11, 12]}, None,
     f"No single winner: bsdp has the best median, but is not better than sg {BEYOND}."),
    ({"tcp": [10, None, 12], "bsdp": [11, 12, 13]}, "bsdp", "Winner: bsdp."),
    ({"tcp": [10, 11], "bsdp": [20, 21]}, None, "No winner: 3 runs at least are needed to tell."),
])
def test_conclusion_says_what_the_rows_say(zc, tmp_path, figures, winner, conclusion):
    got = judged(zc, tmp_path, figures)
    assert (got["winner"], got["conclusion"]) == (winner, conclusion)


def drifting(slower, rounds=60):
    """A machine that drifts by half while a path is a sixth slower in so many of the rounds, and else quicker."""
    tcp = [100 + 50 * (number % 10) / 9 for number in range(rounds)]
    return {"tcp": tcp, "auto": [value * (1.17 if number < slower else 0.95) for number, value in enumerate(tcp)]}


@pytest.mark.parametrize("slower, rounds, verdict", [
    (47, 60, "-14.5 %, 47/60 rounds"), (41, 60, "-14.5 %, 41/60 rounds"), (40, 60, "within the spread"),
    (8, 8, "-14.5 %, 8/8 rounds"), (7, 8, "within the spread"), (7, 7, "within the spread"),
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
