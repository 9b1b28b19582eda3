# SPDX-License-Identifier: MIT
"""The two ways in which a command ends early, each with its exit status."""


class Failure(Exception):
    """What can't be done here and now: exit status 1."""


class Usage(Exception):
    """What was not asked for rightly: exit status 2."""
