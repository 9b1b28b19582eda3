# SPDX-License-Identifier: MIT
"""
The figures of the documents that the experiments come from, each with its citation. They are theirs, from their machines: the
report sets them beside ours, and nothing is computed from both.
"""
KIB, MIB = 1024, 1024 * 1024

JAIN = "R. Jain: PA02 — Network I/O Primitives: Final Report. https://github.com/Rjain1002/GRS_PA02"
PARDASANI = "R. Pardasani: PA02 — Analysis of Network I/O primitives using perf. https://github.com/rahul25035/GRS_PA02"
YESHWANTH = ("A. Yeshwanth: Performance Analysis of Socket Data Transfer Mechanisms (Two-Copy vs. One-Copy vs. Zero-Copy), "
             "7 February 2026. https://github.com/agithe25059/GRS_Assignments")
BROWN = "A. Brown: Socket Programming — Client.cpp & Server.cpp Documentation, CSS 503, 2 June 2025"
BALAJI = ("P. Balaji, S. Bhagvat, H.-W. Jin, D. K. Panda: Asynchronous Zero-copy Communication for Synchronous Sockets in the "
          "Sockets Direct Protocol (SDP) over InfiniBand. CAC workshop, IPDPS 2006")

# JAIN, tables 1 and 2, loopback: (threads, message bytes): Gbit/s of flat (A1), iovec (A2), zerocopy (A3).
MESSAGES = {
    (1, KIB): (7.3510, 5.7079, 1.7577),
    (1, 4 * KIB): (20.2203, 17.4305, 5.8493),
    (1, 64 * KIB): (36.4870, 41.5983, 29.5257),
    (1, MIB): (42.7131, 49.1505, 39.5473),
    (4, KIB): (14.8363, 12.8595, 4.1272),
    (4, 4 * KIB): (39.4902, 33.8931, 14.4344),
    (4, 64 * KIB): (49.5895, 46.5879, 45.7253),
    (4, MIB): (18.2788, 28.7142, 26.2782),
}
MESSAGE_VARIANTS = ["flat", "iovec", "zerocopy"]

# What the three documents answer; (question, who, answer).
MESSAGE_ANSWERS = [
    ("one-copy", JAIN, "around 1 KB (its own table 1: from 64 KB)"),
    ("one-copy", PARDASANI, "at all sizes from 64 B; its two-copy is a send for each field"),
    ("one-copy", YESHWANTH, "from 4 to 8 KB"),
    ("zero-copy", JAIN, "16 to 32 KB (its own tables: only at 1 MB with four threads)"),
    ("zero-copy", PARDASANI, "at all sizes; its two-copy is a send for each field, and it does not wait for completions"),
    ("zero-copy", YESHWANTH, "from 64 KB"),
    ("cache", JAIN, "L1 data"),
    ("cache", PARDASANI, "cache misses as a whole, less so the last level"),
    ("cache", YESHWANTH, "the last level: over 250 million misses with copies, about 101 million without, at 1 MB"),
    ("cycles", PARDASANI, "zero-copy needs the fewest"),
    ("cycles", YESHWANTH, "zero-copy about 7 a byte at 1 KB, 0.37 at 256 KB"),
]

# BROWN, averages of five runs of 20,000 repetitions over 10 Gbit/s: shape: µs, reads, Gbit/s of types 1, 2, 3.
WRITES = {
    (15, 100): {"us": (459085, 53270, 50636), "reads": (22291, 17675, 20061), "gbit_s": (0.52, 4.55, 4.76)},
    (30, 50): {"us": (865396, 63570, 51321), "reads": (24278, 20098, 20066), "gbit_s": (0.28, 3.81, 4.70)},
    (60, 25): {"us": (1696927, 74000, 47835), "reads": (28826, 20161, 20057), "gbit_s": (0.14, 3.25, 5.03)},
    (100, 15): {"us": (2785235, 96607, 52137), "reads": (32637, 20313, 20058), "gbit_s": (0.09, 2.49, 4.73)},
}
WRITE_REPETITIONS = 20000

# BALAJI, section 5: what its three stacks showed in each mode. Its figures are pictures, its numbers stand in the text.
PAPER = {
    "ping-pong": "zsdp and azsdp alike, both ahead of bsdp for large messages (figure 6a)",
    "stream": "small: bsdp best; medium: azsdp 35 % ahead of zsdp; large: both zero-copy stacks ahead of bsdp (figure 6b)",
    "overlap": "azsdp up to twice as fast at 64 KB; at 1 MB it does not drop up to 200 µs of computation (figure 7)",
    "touch": "small windows: azsdp behind zsdp, a page fault costs about 6 µs (figure 8)",
    "hot-spot": "azsdp well ahead, more so for large messages; six clients (figure 9)",
    "multi-stream": "one stream: azsdp ahead; from two streams on zsdp is as fast; 64 KB (figure 10a)",
    "multi-client": "azsdp well ahead of both; six clients (figure 10b)",
    "skew": "block-on-write waits for the receiver, copy-on-write does not (section 4.3)",
    "unaligned": "whole pages zero-copy and buffered ends are 5 to 10 % faster than aligning malloc (section 4.5)",
}
FAULT_US = 6  # BALAJI, section 5.1
ALLOCATION = "Allocating an aligned buffer for each message rose from 1.5 % to 45 % of starting a send, 4.8 µs (table 1)."
