# SPDX-License-Identifier: MIT
"""
Where the two ends of a connection are: on loopback, or in two network namespaces joined by a veth pair.

The namespaces have no names: each is held by a process that reads a pipe from this one, so they vanish with it, however it ends.
"""
import os
import subprocess

from experiments.errors import Failure

NETWORKS = ["loopback", "veth"]
ADDRESSES = ["192.0.2.1", "192.0.2.2"]  # RFC 5737: no other network's, and seen by the two ends only


class Loopback:
    name = "loopback"
    server_address = "127.0.0.1"

    def inside(self, end, command):
        return command

    def close(self):
        pass


class Veth:
    name = "veth"
    server_address = ADDRESSES[0]

    def __init__(self):
        self.holders = []
        try:
            for _ in ADDRESSES:
                self.holders.append(self._hold())
            self._join()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise Failure(f"network namespaces can't be made: {getattr(error, 'stderr', None) or error}") from error

    def _hold(self):
        # cat says when it stands in its own namespace, and ends with the pipe.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo there; exec cat >/dev/null"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        if holder.stdout.readline() != "there\n":
            raise OSError(holder.stderr.read().strip() or "unshare failed")
        return holder

    def _join(self):
        pids = [holder.pid for holder in self.holders]
        self._do(0, "ip", "link", "add", "zc0", "type", "veth", "peer", "name", "zc1", "netns", str(pids[1]))
        for end, address in enumerate(ADDRESSES):
            self._do(end, "ip", "address", "add", f"{address}/30", "dev", f"zc{end}")
            self._do(end, "ip", "link", "set", f"zc{end}", "up")
            self._do(end, "ip", "link", "set", "lo", "up")

    def _do(self, end, *command):
        subprocess.run(self.inside(end, list(command)), check=True, capture_output=True, text=True)

    def inside(self, end, command):
        """The command as it runs at one end: 0 the server's, 1 the client's."""
        return ["nsenter", f"--net=/proc/{self.holders[end].pid}/ns/net", "--", *command]

    def close(self):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()
            holder.stdout.close()
            holder.stderr.close()
        self.holders = []


def why_no_veth():
    """Why network namespaces are not to be had, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root: only loopback is measured"
    try:
        Veth().close()
    except Failure as failure:
        return f"{failure}: only loopback is measured"
    return None


def make(name):
    return {"loopback": Loopback, "veth": Veth}[name]()
