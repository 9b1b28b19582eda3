# SPDX-License-Identifier: MIT
"""Programs that are started, waited for with a limit, and never left behind."""
import os
import selectors
import signal
import subprocess
import time


class ProgramFailed(Exception):
    """A program ended otherwise than it should; the text says how."""


def clean_environment(more):
    """The environment without the settings of whoever runs the experiments."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ZC_") and name != "LD_PRELOAD"}
    return kept | {"LC_ALL": "C"} | more


def with_environment(more, command):
    """The command with variables that only it has, not the programs in front of it (nsenter, perf)."""
    return ["env", *(f"{name}={value}" for name, value in more.items()), *command] if more else command


class Program:
    """A running program. It gets SIGTERM when this process dies, in whatever way."""

    def __init__(self, command, errors, stdout=subprocess.DEVNULL):
        self.name = os.path.basename(command[0])
        self.errors = errors
        with open(errors, "wb") as stderr:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", *command],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=clean_environment({}),
            )

    def first_line(self, timeout):
        """What it prints first."""
        end = time.monotonic() + timeout
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in data:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise ProgramFailed(f"says nothing within {timeout:.0f} s")
                more = os.read(self.process.stdout.fileno(), 4096)
                if not more:
                    self.wait(timeout)
                    raise ProgramFailed("ended before it listened")
                data += more
        return data.split(b"\n", 1)[0].decode()

    def wait(self, timeout):
        """Waits for its end, which has to be a good one."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"has not ended within {timeout:.0f} s") from None
        if status:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            raise ProgramFailed(f"{how}: {self.last_words()}")

    def last_words(self):
        with open(self.errors, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return "; ".join(lines[-3:]) or "nothing on standard error"

    def end(self):
        """Makes sure that it is gone."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def output(command, errors, timeout):
    """Runs a program to its end. Returns its standard output."""
    program = Program(command, errors, subprocess.PIPE)
    try:
        text, _ = program.process.communicate(timeout=timeout)
        program.wait(timeout)
        return text.decode()
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"has not ended within {timeout:.0f} s") from None
    finally:
        program.end()
