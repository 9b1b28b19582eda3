# SPDX-License-Identifier: MIT
"""
The network rdma is in the guest of scripts/lab: a run that needs it, and is not there yet, is started anew in there. The results folder
is the directory that the guest shares with this machine.
"""
import os
import subprocess
import sys

from experiments import environment, network

TIMEOUT_S = 7200
TIMEOUT = "EXPERIMENTS_LAB_S"  # another number, for whoever knows that it takes less: the guest tells at its end what its kernel complained of
IN_GUEST = "LAB_WRITABLE"  # scripts/lab's own


def is_needed(networks):
    return network.Rdma.name in networks and IN_GUEST not in os.environ and network.why_no_rdma() is not None


def run(arguments, folder):
    """Runs scripts/experiments with these arguments in the guest. Returns the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [environment.ROOT / "scripts" / "lab", "--writable", folder, "--timeout", os.environ.get(TIMEOUT, TIMEOUT_S), "--",
               environment.ROOT / "scripts" / "experiments", *arguments, "--results", folder]
    print("experiments: the network rdma is in the guest that scripts/lab starts now", file=sys.stderr)
    with subprocess.Popen(list(map(str, command))) as lab:
        try:
            return lab.wait()
        except KeyboardInterrupt:
            lab.terminate()
            raise
