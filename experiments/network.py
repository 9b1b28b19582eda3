# SPDX-License-Identifier: MIT
"""
Where the two ends of a connection are: on loopback, in two network namespaces joined by a veth pair, or on the two hosts with
soft-RoCE devices that scripts/lab has in its guest (docs/lab.md).

The namespaces have no names: each is held by a process that reads a pipe from this one, so they vanish with it, however it ends.
"""
import os
import pathlib
import socket
import subprocess

from experiments.errors import Failure

NETWORKS = ["loopback", "veth", "rdma"]
ADDRESSES = ["192.0.2.1", "192.0.2.2"]  # RFC 5737: no other network's, and seen by the two ends only


class Loopback:
    name = "loopback"
    server_address = "127.0.0.1"

    def inside(self, end, command):
        return command

    def close(self):
        pass


class Rdma:
    """The lab's hosts: who connects to the server's address is on the other one."""
    name = "rdma"
    client_address, server_address = "10.9.0.1", "10.9.0.2"
    devices = ["rxe0", "rxe1"]  # the client's, the server's

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


class Spent:
    """What the machine has spent so far: packets of its RDMA devices, and processor time, the kernel's own included."""

    def __init__(self):
        self.packets = 0
        for counter in pathlib.Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/sent_pkts"):
            self.packets += int(counter.read_text(encoding="ascii"))
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, hard, soft, *_ = (int(word) for word in file.readline().split()[1:])
        self.cpu_s = (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")

    def since(self):
        now = Spent()
        return {"rdma_packets": now.packets - self.packets, "machine_cpu_s": round(now.cpu_s - self.cpu_s, 3)}


def why_no_rdma():
    """Why the lab's hosts are not to be had, or None."""
    missing = [name for name in Rdma.devices if not pathlib.Path("/sys/class/infiniband", name).exists()]
    if missing:
        return f"there is no RDMA device {missing[0]}: the network rdma is in scripts/lab's guest"
    with socket.socket() as probe:
        try:
            probe.bind((Rdma.server_address, 0))
        except OSError as error:
            return f"{Rdma.server_address}: {error.strerror}; the network rdma is in scripts/lab's guest"
    return None


def make(name):
    return {"loopback": Loopback, "veth": Veth, "rdma": Rdma}[name]()
