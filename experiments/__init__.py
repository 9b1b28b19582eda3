# SPDX-License-Identifier: MIT
"""The experiments: a matrix of runs of the bundled tools over every path, raw rows in a CSV, pictures and a report."""
