# SPDX-License-Identifier: MIT
"""
What is run: the points of each profile. A point is one command line of a tool on one network; it is run on several stacks in turn.

M: messages of eight fields (zc-msg). W: many writes, writev, one write (zc-writes). S: the AZ-SDP paper's modes (zc-ttcp).
C, what single calls cost, is in costs.py; A, unmodified programs, in apps.py; L, what RDMA gives without zc, in limits.py; F, what a break
of RDMA costs, in failover.py; N, connections without a peer, in connects.py.
"""
import dataclasses

from experiments import network
from experiments import stacks as stack_module

EXPERIMENTS = {
    "M": "messages of eight fields",
    "W": "many writes, writev, one write",
    "S": "the modes of the AZ-SDP paper",
    "C": "what single calls cost",
    "A": "unmodified programs, by zc compare",
    "L": "what RDMA gives without zc: perftest and rstream",
    "F": "a transfer whose RDMA breaks and is mended",
    "N": "connecting from a host with RDMA where nobody answers by it",
}
TOOLS = {"M": "zc-msg", "W": "zc-writes", "S": "zc-ttcp"}
KIB, MIB = 1024, 1024 * 1024
FIELDS = 8
VARIANTS = ["flat", "fields", "iovec", "zerocopy"]
SHAPES = [(15, 100), (30, 50), (60, 25), (100, 15)]  # buffers × bytes, the source's

# The columns that tell points apart.
PARAMETERS = ["mode", "bytes", "threads", "compute_us", "window", "offset_bytes", "delay_us", "nbufs", "bufsize", "repetitions"]


@dataclasses.dataclass(frozen=True)
class Point:
    experiment: str
    network: str
    parameters: tuple  # of (column, value)
    stacks: tuple
    seconds: float

    def get(self, name):
        return dict(self.parameters).get(name)

    def row(self):
        return {"experiment": self.experiment, "network": self.network, **dict(self.parameters)}

    def title(self):
        shown = [f"{name}={value}" for name, value in self.parameters if name != "mode"]
        return " ".join([self.experiment, self.network, str(self.get("mode")), *shown])


@dataclasses.dataclass(frozen=True)
class Profile:
    name: str
    help: str
    seconds: float
    repeats: int
    messages: dict  # network: list of (sizes, threads), or (sizes, threads, variants)
    shapes: dict  # network: list of (nbufs, bufsize)
    repetitions: int
    paper: dict  # network: list of parameter dicts
    costs: dict
    apps: dict  # what their runs are to last; `names`: only those that begin so
    limits: dict = dataclasses.field(default_factory=dict)
    failover: bool = False
    connects: int = 0  # connections of one run

    @property
    def networks(self):
        """Where it has points, unless it is told otherwise."""
        return [name for name in network.NETWORKS if name in self.paper]


def paper_mode(mode, bytes_of, **lists):
    """Parameter dicts of a mode: each size with each value of at most one list."""
    if not lists:
        return [{"mode": mode, "bytes": size} for size in bytes_of]
    ((name, values),) = lists.items()
    return [{"mode": mode, "bytes": size, name: value} for size in bytes_of for value in values]


def paper_full():
    sizes = [64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]
    windows = [1, 2, 4, 8, 16, 32, 64]
    return [
        *paper_mode("ping-pong", sizes),
        *paper_mode("stream", sizes),
        *paper_mode("overlap", [64 * KIB, MIB], compute_us=[0, 20, 50, 100, 150, 200]),
        *paper_mode("touch", [64 * KIB, MIB], window=windows),
        *paper_mode("hot-spot", [64, KIB, 16 * KIB, 64 * KIB, 256 * KIB], threads=[6]),
        *paper_mode("hot-spot", [64 * KIB], threads=[1, 2, 3, 4]),
        *paper_mode("multi-stream", [64 * KIB], threads=[1, 2, 4, 8]),
        *paper_mode("multi-client", [64, KIB, 16 * KIB, 64 * KIB, 256 * KIB], threads=[6]),
        *paper_mode("skew", [64 * KIB, MIB], delay_us=[0, 100, 1000]),
        *paper_mode("unaligned", [64 * KIB, MIB], offset_bytes=[0, 1, 2048]),
    ]


def paper_quick():
    return [
        *paper_mode("ping-pong", [64, 4 * KIB, 64 * KIB, MIB]),
        *paper_mode("stream", [64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]),
        *paper_mode("overlap", [64 * KIB, MIB], compute_us=[0, 50, 200]),
        *paper_mode("touch", [64 * KIB, MIB], window=[1, 4, 16]),
        *paper_mode("hot-spot", [64, 64 * KIB], threads=[6]),
        *paper_mode("multi-stream", [64 * KIB], threads=[1, 2, 4]),
        *paper_mode("multi-client", [KIB, 64 * KIB], threads=[6]),
        *paper_mode("skew", [64 * KIB, MIB], delay_us=[0, 1000]),
        *paper_mode("unaligned", [64 * KIB, MIB], offset_bytes=[0, 1]),
    ]


def paper_engine():
    """What the goals of the engine are about, and every mode of the paper at its main points."""
    return [
        *paper_mode("ping-pong", [64, 4 * KIB, 64 * KIB, MIB]),
        *paper_mode("stream", [64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]),
        *paper_mode("overlap", [64 * KIB, MIB], compute_us=[50, 200]),
        *paper_mode("touch", [64 * KIB, MIB], window=[1, 16]),
        *paper_mode("hot-spot", [64], threads=[6]),
        *paper_mode("multi-stream", [64 * KIB], threads=[2]),
        *paper_mode("multi-client", [64 * KIB], threads=[6]),
        *paper_mode("skew", [64 * KIB, MIB], delay_us=[1000]),
        *paper_mode("unaligned", [64 * KIB, MIB], offset_bytes=[0, 1]),
    ]


def paper_smoke():
    return [
        *paper_mode("ping-pong", [64]),
        *paper_mode("stream", [64 * KIB]),
        *paper_mode("overlap", [64 * KIB], compute_us=[50]),
        *paper_mode("touch", [64 * KIB], window=[1]),
        *paper_mode("hot-spot", [64], threads=[2]),
        *paper_mode("multi-stream", [64 * KIB], threads=[2]),
        *paper_mode("multi-client", [64 * KIB], threads=[2]),
        *paper_mode("skew", [64 * KIB], delay_us=[200]),
        *paper_mode("unaligned", [64 * KIB], offset_bytes=[1]),
    ]


def paper_rdma():
    """The pictures of the paper that are about the network. An emulated soft-RoCE takes milliseconds where a device takes microseconds."""
    return [
        *paper_mode("ping-pong", [64, 4 * KIB]),
        *paper_mode("stream", [KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]),
        *paper_mode("overlap", [64 * KIB, 256 * KIB], compute_us=[1000]),
        *paper_mode("hot-spot", [64], threads=[3]),
        *paper_mode("multi-stream", [64 * KIB], threads=[4]),
        *paper_mode("multi-client", [64 * KIB], threads=[3]),
    ]


PROFILES = {
    "smoke": Profile(
        "smoke", "a minute: whether everything works; its figures mean nothing", 0.03, 1,
        {"loopback": [([KIB, 64 * KIB], [1])], "veth": [([64 * KIB], [1])]},
        {"loopback": [(15, 100)], "veth": [(15, 100)]}, 300,
        {"loopback": paper_smoke(), "veth": paper_mode("stream", [64 * KIB])},
        {"calls": 2000, "rounds": 3, "repeats": 2, "starts": 10, "instructions": 500, "guard_rounds": 5, "guard_bytes": [64 * KIB],
         "sends": [(64, 1)], "send_rounds": 50, "seconds": 0.03, "steps": 2, "step_rounds": 3, "step_bytes": [64 * KIB]},
        {"names": ("ping-pong 64 B, blocking", "redis GET 100 B, 1 client", "nginx, 1 KB"), "seconds": 0.03, "requests": 1000},
    ),
    "engine": Profile(
        "engine", "under half an hour, nine rounds: what docs/figures.md is made of; every goal, at the points that it names", 0.1, 9,
        {"loopback": [([KIB, 64 * KIB, MIB], [1])]},
        {"loopback": [SHAPES[0], SHAPES[3]]}, 3000,
        {"loopback": paper_engine(), "veth": paper_mode("stream", [64 * KIB])},
        {"calls": 100000, "rounds": 9, "repeats": 9, "starts": 200, "instructions": 20000, "guard_rounds": 200,
         "guard_bytes": [64 * KIB, 256 * KIB, MIB, 4 * MIB], "sends": [(64, 1), (4 * KIB, 1), (64 * KIB, 1), (256 * KIB, 1), (MIB, 1)],
         "send_rounds": 500, "seconds": 0.1, "steps": 9, "step_rounds": 9, "step_bytes": [64 * KIB, 256 * KIB, MIB, 4 * MIB]},
        {"names": None, "seconds": 0.3, "requests": 40000},
    ),
    "quick": Profile(
        "quick", "a quarter of an hour: the main points of every experiment", 0.15, 4,
        {"loopback": [([KIB, 4 * KIB, 64 * KIB, MIB], [1, 4]), ([64 * KIB], [2, 8])], "veth": [([KIB, 64 * KIB, MIB], [1])]},
        {"loopback": SHAPES, "veth": [SHAPES[0], SHAPES[3]]}, 5000,
        {"loopback": paper_quick(),
         "veth": [*paper_mode("ping-pong", [64]), *paper_mode("stream", [KIB, 64 * KIB, MIB])]},
        {"calls": 100000, "rounds": 9, "repeats": 9, "starts": 500, "instructions": 20000, "guard_rounds": 300,
         "guard_bytes": [16 * KIB, 64 * KIB, 256 * KIB, MIB], "sends": [(64, 1), (64, 8), (4 * KIB, 1), (64 * KIB, 1), (MIB, 1)],
         "send_rounds": 1000, "seconds": 0.5, "steps": 4, "step_rounds": 9, "step_bytes": [64 * KIB, MIB]},
        {},
    ),
    "rdma": Profile(
        "rdma", "about an hour, three rounds; a third of it with --repeats 1: soft-RoCE between the two hosts of scripts/lab's guest, which it starts", 1, 3,
        {"rdma": [([64 * KIB], [1], ["flat", "iovec"])]}, {}, 0, {"rdma": paper_rdma()}, {},
        {"names": ("redis GET 100 B, 1 client", "nginx", "iperf3"), "seconds": 0.3, "requests": 1000},
        {"speeds": [KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB], "latencies": [64, 4 * KIB], "bytes": 128 * MIB, "messages": 1000, "exchanges": 200},
        failover=True, connects=200,
    ),
    "full": Profile(
        "full", "about five hours: the whole matrix", 0.5, 9,
        {network: [([64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB], [1, 2, 4, 8])] for network in ("loopback", "veth")},
        {"loopback": SHAPES, "veth": SHAPES}, 20000,
        {"loopback": paper_full(), "veth": paper_full()},
        {"calls": 200000, "rounds": 15, "repeats": 15, "starts": 500, "instructions": 100000, "guard_rounds": 1000,
         "guard_bytes": [16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB],
         "sends": [(64, 1), (64, 8), (KIB, 1), (4 * KIB, 1), (16 * KIB, 1), (64 * KIB, 1), (256 * KIB, 1), (MIB, 1)],
         "send_rounds": 3000, "seconds": 2, "steps": 9, "step_rounds": 15, "step_bytes": [16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]},
        {"names": None, "seconds": 2, "requests": 200000},
    ),
}


def message_points(profile, its_network):
    seen = []
    for sizes, threads, *variants in profile.messages.get(its_network, []):
        for size in sizes:
            for count in threads:
                for variant in variants[0] if variants else VARIANTS:
                    parameters = {"mode": variant, "bytes": size, "threads": count}
                    if parameters not in seen:
                        seen.append(parameters)
    return seen


def write_points(profile, its_network):
    return [
        {"mode": str(kind), "nbufs": nbufs, "bufsize": bufsize, "repetitions": profile.repetitions}
        for nbufs, bufsize in profile.shapes.get(its_network, [])
        for kind in (1, 2, 3)
    ]


def stacks_of(parameters, usual, its_network):
    """The inner comparisons of the paper have stacks of their own, beside the usual ones."""
    if its_network == network.Rdma.name:
        left_out = ("copy", "sg", stack_module.CONTROL)  # emulated, each run is a second
        return tuple(stack_module.between_hosts(stack for stack in usual if stack.name not in left_out))
    own = {"skew": stack_module.SKEWED, "unaligned": stack_module.ZEROCOPY_KEPT}.get(parameters["mode"], [])
    paths = [stack.path for stack in usual]
    return tuple([*usual, *(stack for stack in own if stack.path in paths)])


def points(profile, experiments, networks, usual):
    """All points of a profile, network by network."""
    makers = {"M": message_points, "W": write_points, "S": lambda its, its_network: its.paper.get(its_network, [])}
    return [
        Point(experiment, its_network, tuple(parameters.items()), stacks_of(parameters, usual, its_network), profile.seconds)
        for its_network in networks
        for experiment, make in makers.items()
        if experiment in experiments
        for parameters in make(profile, its_network)
    ]


def client_arguments(point, address, port, lasts):
    """The client's command line behind the name of the tool."""
    get = point.get
    seconds = ["--seconds", str(lasts)]
    if point.experiment == "M":
        # In several sends under Nagle's algorithm a message can take 40 ms: few of them warm up as well as many.
        few = get("mode") in ("fields", "zerocopy") or point.network == network.Rdma.name
        warmup = ["--warmup", "5"] if few else []
        return ["client", "--host", address, "--port", str(port), "--variant", get("mode"),
                "--field-bytes", str(get("bytes") // FIELDS), "--threads", str(get("threads")), *seconds, *warmup]
    if point.experiment == "W":
        return ["client", address, str(port), str(get("repetitions")), str(get("nbufs")), str(get("bufsize")), get("mode")]
    return ["--transmit", address, "--port", str(port), *paper_arguments(point), *seconds]


def paper_arguments(point):
    get, mode = point.get, point.get("mode")
    tool_mode = {"skew": "touch", "unaligned": "stream"}.get(mode, mode)
    arguments = ["--mode", tool_mode, "--bytes", str(get("bytes"))]
    if point.network == network.Rdma.name:  # where a hundred messages of 1 MB take longer than all that is measured
        arguments += ["--warmup", str(min(50, max(2, MIB // get("bytes"))))]
    if mode in ("hot-spot", "multi-client"):
        arguments += ["--clients", str(get("threads"))]
    if mode == "multi-stream":
        arguments += ["--threads", str(get("threads"))]
    if mode in ("ping-pong", "hot-spot"):  # as every latency test does; Nagle's algorithm is not its subject
        arguments += ["--nodelay"]
    for name, option in (("compute_us", "--compute-us"), ("window", "--window"), ("offset_bytes", "--offset-bytes"),
                         ("delay_us", "--receiver-delay-us")):
        if get(name) is not None:
            arguments += [option, str(get(name))]
    return arguments


def server_arguments(point, address):
    if point.experiment == "S":
        return ["--receive", "--port", "0", "--bind", address, "--sessions", "1"]
    return ["server", "--port", "0", "--bind", address, "--sessions", "1"]
