# SPDX-License-Identifier: MIT
"""
The stacks that a point is run on: plain TCP without the preload, and each path with it.

The paths come from common/paths.def, so a path that is added there is measured here.
"""
import dataclasses
import re

from experiments.environment import ROOT

PLAIN = "tcp"
CONTROL = "tcp-again"  # plain TCP a second time in each round: what two medians of the same thing differ by
PATHS_FILE = ROOT / "common" / "paths.def"
SETTINGS_FILE = ROOT / "common" / "settings.def"


@dataclasses.dataclass(frozen=True)
class Stack:
    name: str
    path: str = PLAIN
    settings: tuple = ()  # of (name, value): further settings of the library

    @property
    def is_preloaded(self):
        return self.path != PLAIN

    def environment(self, library):
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
