# SPDX-License-Identifier: MIT
"""
A results folder: environment.json, and CSV files with one row for each run.

A row is appended by one write and reaches the disk before the next run begins, so an interruption loses at most the run that it met;
a torn last line is cut off when the folder is opened again. Every row names the commit it was measured at, and a folder takes rows
of one fingerprint only (environment.py).
"""
import csv
import io
import json
import os
import pathlib

from experiments import environment
from experiments.errors import Failure

ENVIRONMENT = "environment.json"
PROVENANCE = ["time", "commit", "changes", "build_type", "profile"]


def write_whole(path, text):
    """Writes a file that is there completely or not at all."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    data = text if isinstance(text, bytes) else text.encode()
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Failure(f"{path} can't be written: {error.strerror}") from error


class Table:
    """One CSV file. Rows are dicts of text; `key` names the columns by which a run is known again."""

    def __init__(self, path, columns, key):
        self.path = pathlib.Path(path)
        self.columns = PROVENANCE + columns
        self.key = key
        self.rows = []
        self.file = None
        if self.path.exists():
            self.rows = self._read()

    def _read(self):
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        rows = csv.DictReader(io.StringIO(whole.decode()))
        if whole and rows.fieldnames != self.columns:
            raise Failure(f"{self.path}: its columns are not those of this version; give another --results folder")
        if len(whole) != len(data):
            os.truncate(self.path, len(whole))
        return list(rows)

    def key_of(self, row):
        return tuple(str(row.get(name, "")) for name in self.key)

    def done(self):
        """The keys of the runs that need not be repeated."""
        return {self.key_of(row) for row in self.rows if row["status"] == "ok"}

    def append(self, rows):
        """Adds the rows of one run: all of them are in the file afterwards, or none."""
        if self.file is None:
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, restval="", lineterminator="\n")
        if os.fstat(self.file).st_size == 0:
            writer.writeheader()
        texts = [{name: "" if row.get(name) is None else str(row[name]) for name in self.columns} for row in rows]
        writer.writerows(texts)
        data = out.getvalue().encode()
        if os.write(self.file, data) != len(data):
            raise Failure(f"{self.path}: no room on the disk")
        os.fsync(self.file)
        self.rows += texts


def check_rows(table, here):
    """Refuses a CSV with rows of another commit, whatever the folder's environment says."""
    for row in table.rows:
        there = {name: row[name] for name in PROVENANCE if name in environment.FINGERPRINT}
        differing = environment.differences({**here, **there}, here)
        if differing:
            raise Failure(refusal(table.path, differing))


def refusal(path, differing):
    return (
        f"{path} has results of another origin, and they are not mixed:\n  "
        + "\n  ".join(differing)
        + "\nGive another --results folder, or --restart to move the old one aside."
    )


def read_environment(folder):
    try:
        return json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Failure(f"{folder / ENVIRONMENT} can't be read: {error}") from error


def open_folder(folder, here):
    """Makes the folder, or takes it up again where it fits. Returns the environment that its figures carry."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{folder} can't be made: {error.strerror}") from error
    there = read_environment(folder)
    if there is None:
        if any(folder.glob("*.csv")):
            raise Failure(f"{folder} has a CSV but no {ENVIRONMENT}: whose figures they are is not known; give another --results folder")
        write_whole(folder / ENVIRONMENT, json.dumps(here, indent=2) + "\n")
        return here
    differing = environment.differences(there, here)
    if differing:
        raise Failure(refusal(folder, differing))
    return there


def move_aside(folder):
    """Gives an old folder another name."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside
