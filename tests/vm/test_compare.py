# SPDX-License-Identifier: MIT
"""zc compare --lab and scripts/experiments' profile rdma, from end to end, on a small part of what they can measure."""
import csv
import json
import re
import subprocess

from conftest import BUILD, ROOT, environment

MESSAGES = ["--variant", "flat", "--field-bytes", "4000", "--messages", "50", "--warmup", "5", "--nodelay", "--json", "-"]
SENT = 50 * 8 * 4000


def test_a_comparison_between_two_hosts(prepared, tmp_path):
    tool = BUILD / "apps/tools/zc-msg"
    done = subprocess.run(
        [BUILD / "apps/zc/zc", "compare", "--lab", "--paths", "tcp,auto", "--repeat", "1", "--warmup", "0", "--metric-json", "/gbit_s",
         "--server", f"{tool} server --bind {{address}} --port {{port}}",
         "--client", f"{tool} client --host {{address}} --port {{port}} {' '.join(MESSAGES)}", "--json", tmp_path / "told.json",
         "--csv", tmp_path / "told.csv"],
        env=environment() | {"ZC_TRANSPORT": "verbs", "ZC_RDMA_WAIT_MS": "5000"}, capture_output=True, text=True, check=False, timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (comparison,) = json.loads((tmp_path / "told.json").read_text())["comparisons"]
    tcp, auto = comparison["paths"]
    for path in (tcp, auto):
        # By either way, counted once on the link between the hosts, with headers.
        assert path["runs"][0]["ok"] and SENT < path["runs"][0]["bytes"] < 2 * SENT
    assert auto["statistics"]["rdma_meetings"] > 0
    assert auto["statistics"]["paths"]["bsdp"]["bytes"] > SENT / 2
    with open(tmp_path / "told.csv", newline="", encoding="utf-8") as file:
        assert {row["path"] for row in csv.DictReader(file)} == {"tcp", "auto"}


def experiments(*arguments, seconds=110):
    done = subprocess.run([ROOT / "scripts/experiments", *map(str, arguments)], env=environment() | {"EXPERIMENTS_LAB_S": str(seconds)},
                          capture_output=True, text=True, check=False, timeout=seconds + 20)
    if done.returncode == 124 and re.search(r"kernel: .*(lockup|rcu.*stall|rxe_requester)", done.stderr):
        raise GuestLost(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class GuestLost(Exception):
    """Its kernel spins in soft-RoCE (docs/lab.md)."""


def rows_of(file):
    with open(file, newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


def test_the_profile_rdma_measures_in_the_guest(prepared, tmp_path):
    folder = tmp_path / "results"
    run = ["run", "--profile", "rdma", "--build", f"{BUILD}/", "--experiments", "S", "--only", "S rdma ping-pong bytes=64",
           "--repeats", "1", "--paths", "tcp,bsdp", "--results", folder]
    try:
        experiments(*run)
    except GuestLost as lost:
        print(lost)
        experiments(*run)
    rows = {row["stack"]: row for row in rows_of(folder / "runs.csv") if row["kind"] == "measure"}
    assert set(rows) == {"tcp", "bsdp", "rsockets"}
    assert all(row["status"] == "ok" for name, row in rows.items() if name != "rsockets")
    assert int(rows["bsdp"]["rdma_packets"]) > 0 and int(rows["tcp"]["rdma_packets"]) == 0
    document = tmp_path / "figures.md"
    document.write_text("# Figures\n\nwhat was there\n\n## RDMA\n\nan old section\n")
    experiments("figures", folder, "--output", document)
    text = document.read_text()
    assert "what was there" in text and "an old section" not in text and "ping-pong of 64 B by auto against rsockets" in text
    experiments("report", folder, "--output", tmp_path / "report.html")
    assert "rsockets" in (tmp_path / "report.html").read_text()
