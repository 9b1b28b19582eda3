# SPDX-License-Identifier: MIT
"""
The stacks that a point is run on: plain TCP without the preload, and each path with it; between the lab's hosts also rdma-core's
preload for rsockets.

The paths come from common/paths.def, so a path that is added there is measured here.
"""
import dataclasses
import pathlib
import re

from experiments.environment import ROOT

PLAIN = "tcp"
CONTROL = "tcp-again"  # plain TCP a second time in each round: what two medians of the same thing differ by
RSOCKETS = "rsockets"
RSOCKETS_LIBRARY = "librspreload.so.1"
PATHS_FILE = ROOT / "common" / "paths.def"
SETTINGS_FILE = ROOT / "common" / "settings.def"


@dataclasses.dataclass(frozen=True)
class Stack:
    name: str
    path: str = PLAIN
    settings: tuple = ()  # of (name, value): further settings of the library
    seconds: float = 0  # a run takes so long at least

    @property
    def is_preloaded(self):
        """By zc's library, that is."""
        return self.path not in (PLAIN, RSOCKETS)

    def environment(self, library):
        if self.path == RSOCKETS:
            return {"LD_PRELOAD": str(rsockets_library())}
        if not self.is_preloaded:
            return {}
        return {"LD_PRELOAD": str(library), "ZC_PATH": self.path, **dict(self.settings)}

    def settings_text(self):
        return " ".join(f"{name}={value}" for name, value in self.settings)


def path_names():
    """tcp first, then the paths in the order of the list."""
    names = re.findall(r'^ZC_PATH\(\w+, "([^"]+)"', PATHS_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    return [PLAIN] + [name for name in names if name != PLAIN]


def ring_bytes():
    """The size of a lane's ring as the library has it unless it is told otherwise."""
    return int(re.search(r'"ZC_RING_BYTES", (\d+)', SETTINGS_FILE.read_text(encoding="utf-8")).group(1))


def usual(names):
    """A stack for each path, and the control where plain TCP is among them."""
    stacks = [Stack(name, name) for name in names]
    if PLAIN in names:
        stacks.append(Stack(CONTROL))
    return stacks


# Between hosts: auto uses RDMA when it is told to, and a connection begins with it, so that no run is half TCP.
BY_RDMA = (("ZC_TRANSPORT", "verbs"), ("ZC_RDMA_WAIT_MS", "5000"))
FREE = "auto by itself"  # and as it is without settings: it compares RDMA with TCP
FREE_S = 12  # which it does not begin with; TCP, to which that is compared, has the same time
NO_ENGINE = ("copy", "sg", "zerocopy")


def rsockets_library():
    """Where rdma-core's preload is (Debian's librdmacm1), or None."""
    found = (file for where in ("lib*", "lib*/*") for file in sorted(pathlib.Path("/usr").glob(f"{where}/rsocket/{RSOCKETS_LIBRARY}")))
    return next(found, None)


def between_hosts(stacks):
    """The same stacks as they are run over RDMA, auto as it is by itself, and rsockets."""
    stacks = list(stacks)
    with_rdma = [dataclasses.replace(stack, settings=BY_RDMA) if stack.is_preloaded and stack.path not in NO_ENGINE else stack
                 for stack in stacks]
    free = [Stack(FREE, stack.path, seconds=FREE_S) for stack in stacks if stack.path == "auto"]
    if free:
        with_rdma = [dataclasses.replace(stack, seconds=FREE_S) if stack.name == PLAIN else stack for stack in with_rdma]
    return [*with_rdma, *free, Stack(RSOCKETS, RSOCKETS)]


KEPT = ("ZC_ZEROCOPY_KEEP", "yes")

# What the paper compares within its own stack: waiting for a sent buffer against copying it, on both kinds of guard. ZC_BLOCK_US
# bounds the wait; its largest value comes closest to the paper's unbounded one, which promise 3 forbids. Between them is its default.
SKEWED = [
    Stack(f"azsdp {name}", "azsdp", (("ZC_BLOCK_US", block),)) for name, block in (("copy-on-write", "0"), ("block-on-write", "1000"))
] + [
    Stack(f"zerocopy {name}, {guard}", "zerocopy", (KEPT, ("ZC_GUARD", guard), ("ZC_BLOCK_US", block)))
    for guard in ("uffd", "mprotect")
    for name, block in (("copy-on-write", "0"), ("block-on-write", "1000"))
]
ZEROCOPY_KEPT = [Stack("zerocopy, kept on", "zerocopy", (KEPT,))]
