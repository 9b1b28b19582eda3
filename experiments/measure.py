# SPDX-License-Identifier: MIT
"""Goes through everything that is to be measured, skips what the results folder has already, and tells how far it is."""
import contextlib
import fcntl
import os
import pathlib
import shutil
import sys
import time

from experiments import apps, connects, costs, environment, failover, limits, matrix, network, perf, results, runner, stacks
from experiments.errors import Failure

RUNS = "runs.csv"
COSTS = "costs.csv"
APPS = "apps.csv"
LIMITS = "limits.csv"
FAILOVER = "failover.csv"
CONNECTS = "connects.csv"


class Progress:
    """One line on a terminal that is written over; elsewhere one line for each thing done, now and then."""

    def __init__(self, total, done):
        self.total, self.done, self.begun, self.fresh = total, done, time.monotonic(), 0
        self.terminal = sys.stderr.isatty()
        self.told = 0.0

    def step(self, what):
        self.done += 1
        self.fresh += 1
        now = time.monotonic()
        if not self.terminal and now - self.told < 10 and self.done != self.total:
            return
        self.told = now
        left = (now - self.begun) / self.fresh * (self.total - self.done)
        text = f"{self.done}/{self.total}, {left / 60:.0f} min left: {what}"
        print(f"\r\033[K{text}" if self.terminal else text, end="" if self.terminal else "\n", file=sys.stderr, flush=True)

    def end(self):
        if self.terminal and self.fresh:
            print(file=sys.stderr)


@contextlib.contextmanager
def locked(folder):
    """Two at once in one folder would measure each other."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"{folder} is in use by another run of the experiments") from None
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def networks_of(names):
    opened = {}
    try:
        for name in names:
            opened[name] = network.make(name)
        yield opened
    finally:
        for its in opened.values():
            its.close()


def usable_networks(wanted):
    """The networks that are to be had here; the rest is told."""
    absent = {}
    for name, why_not in (("veth", network.why_no_veth), ("rdma", network.why_no_rdma)):
        if name in wanted and (why := why_not()):
            absent[name] = why
            print(f"experiments: {why}", file=sys.stderr)
    names = [name for name in wanted if name not in absent]
    if not names:
        raise Failure("none of the wanted networks is to be had here")
    return names


def needed_programs(experiments, networks):
    """What the machine must have installed; the packages are in scripts/deps."""
    wanted = ["setpriv", "env"] + (["ip", "unshare", "nsenter"] if "veth" in networks else [])
    for name in wanted:
        if not shutil.which(name):
            raise Failure(f"the program '{name}' is missing: scripts/deps experiments installs what is needed")
    if "C" in experiments and (why := costs.why_no_callgrind()):
        print(f"experiments: {why}", file=sys.stderr)


def open_tables(folder, here):
    runs = results.Table(folder / RUNS, runner.COLUMNS, runner.KEY)
    calls = results.Table(folder / COSTS, costs.COLUMNS, costs.KEY)
    programs = results.Table(folder / APPS, apps.COLUMNS, apps.KEY)
    bare = results.Table(folder / LIMITS, limits.COLUMNS, limits.KEY)
    broken = results.Table(folder / FAILOVER, failover.COLUMNS, failover.KEY)
    lonely = results.Table(folder / CONNECTS, connects.COLUMNS, connects.KEY)
    for table in (runs, calls, programs, bare, broken, lonely):
        results.check_rows(table, here)
    return runs, calls, programs, bare, broken, lonely


class Session:
    """What one invocation measures."""

    def __init__(self, options, profile, files, networks, folder, here):
        self.options, self.profile, self.files, self.networks, self.folder = options, profile, files, networks, folder
        self.runs, self.calls, self.programs, self.bare, self.broken, self.lonely = open_tables(folder, here)
        self.provenance = {name: here[name] for name in results.PROVENANCE if name != "time"}
        self.failed, self.peers = [], []

    def _points(self):
        found = matrix.points(self.profile, self.options.experiments, self.networks, stacks.usual(self.options.paths))
        return [point for point in found if all(text in point.title() for text in self.options.only)]

    def _todo_runs(self):
        done = self.runs.done() | {self.runs.key_of(row) for row in self.runs.rows if row["stack"] == stacks.RSOCKETS}
        keyed = [(point, run, runner.row_key(point, run)) for point in self._points()
                 for run in runner.runs_of(point, self._repeats())]
        return len(keyed), [item for item in keyed if self.runs.key_of(item[2]) not in done]

    def _todo_costs(self, its_runner):
        if "C" not in self.options.experiments or self.options.only or not self.profile.costs:
            return 0, []
        done = self.calls.done()
        keyed = list(costs.Costs(its_runner, self.profile, self.options.paths).list())
        return len(keyed), [item for item in keyed if self.calls.key_of(item[0]) not in done]

    def _todo_apps(self, scratch):
        """The comparisons that are not there with all their runs; one that was interrupted is made anew, so that its pairs are pairs."""
        if "A" not in self.options.experiments:
            return 0, []
        wanted = [app for app in apps.apps(self.files, pathlib.Path(scratch), self.profile, self.options.paths,
                                           self.networks)
                  if all(text in app.title() for text in self.options.only)]
        for app in wanted:
            if name := apps.missing(app):
                print(f"experiments: {app.name} is left out: {name} is not installed (scripts/deps experiments)", file=sys.stderr)
        wanted = [app for app in wanted if not apps.missing(app)]
        done = self.programs.done()
        return len(wanted), [app for app in wanted if not done.issuperset(apps.keys(app, self._repeats()))]

    def _todo_limits(self):
        if "L" not in self.options.experiments or self.options.only or network.Rdma.name not in self.networks or not self.profile.limits:
            return 0, []
        keys = limits.keys(self.profile.limits, self._repeats())
        done = self.bare.done()
        return len(keys), [key for key in keys if self.bare.key_of(key) not in done]

    def _between_hosts(self, experiment, size, module, table):
        """Of an experiment that is made between the lab's hosts alone: how much there is to be done, and what is not done yet."""
        wanted = experiment in self.options.experiments and not self.options.only and network.Rdma.name in self.networks and size
        keys = module.keys(self._repeats()) if wanted else []
        keys = [key for key in keys if key["stack"].split(",")[0] in self.options.paths]
        done = table.done()
        return len(keys), [key for key in keys if table.key_of(key) not in done]

    def _repeats(self):
        return self.options.repeats or self.profile.repeats

    def measure(self):
        """Returns the number of things that this invocation has measured."""
        with runner.scratch_directory() as scratch, networks_of(self.networks) as opened:
            if network.Rdma.name in self.networks:
                self.files = environment.copied(self.files, pathlib.Path(scratch))
            events, why = perf.available(scratch)
            if why:
                print(f"experiments: {why}", file=sys.stderr)
            its_runner = runner.Runner(self.files, opened, events, scratch)
            all_runs, runs = self._todo_runs()
            all_costs, calls = self._todo_costs(its_runner)
            all_apps, programs = self._todo_apps(scratch)
            all_limits, bare = self._todo_limits()
            all_breaks, breaks = self._between_hosts("F", self.profile.failover, failover, self.broken)
            all_lonely, lonely = self._between_hosts("N", self.profile.connects, connects, self.lonely)
            total = all_runs + all_costs + all_apps + all_limits + all_breaks + all_lonely
            todo = len(runs) + len(calls) + len(programs) + len(bare) + len(breaks) + len(lonely)
            if not total:
                raise Failure("nothing is to be measured: no point fits the given choice")
            progress = Progress(total, total - todo)
            try:
                self._apps(apps.Comparisons(self.files, scratch), programs, progress)
                self._costs(calls, progress)
                self._runs(its_runner, runs, limits.Limits(self.profile.limits, scratch), bare, progress)
                self._one_by_one(connects.Connects(self.files, scratch, self.profile.connects), lonely, self.lonely, "N {peer}", progress)
                # Last of all: a break may leave a device deaf.
                self._one_by_one(failover.Failover(self.files, scratch), breaks, self.broken, "F {break}", progress)
            finally:
                progress.end()
        return todo

    def _runs(self, its_runner, todo, its_limits, bare, progress):
        """The runs in their order, the bare limits evenly between them: what the machine does meanwhile meets both alike."""
        places = [(index / len(todo), item) for index, item in enumerate(todo)]
        places += [(index / len(bare), (key,)) for index, key in enumerate(bare)]
        for _, item in sorted(places, key=lambda place: place[0]):
            if len(item) == 1:
                name = "L {tool} {what} bytes={bytes}".format(**item[0])
                self._keep(self.bare, [its_limits.run(item[0])], name)
            else:
                point, run, key = item
                name = f"{point.title()} on {run['stack'].name}"
                self._keep(self.runs, [{**key, **its_runner.run(point, run["stack"], run["kind"] == "verify")}], name)
            progress.step(name)

    def _apps(self, comparisons, todo, progress):
        for app in todo:
            self._keep(self.programs, comparisons.run(app, self._repeats()), app.title())
            progress.step(app.title())

    def _costs(self, todo, progress):
        for key, function in todo:
            name = f"C {key['measure']} {key['subject']} on {key['stack']}"
            self._keep(self.calls, costs.measure(key, function), name)
            progress.step(name)

    def _one_by_one(self, module, todo, table, words, progress):
        for key in todo:
            name = f"{words.format(**key)} on {key['stack']}"
            self._keep(table, [module.run(key)], name)
            progress.step(name)

    def _keep(self, table, rows, name):
        stamp = {"time": runner.now(), **self.provenance}
        table.append([{**stamp, **row} for row in rows])
        told = [f"{name}: {row['error']}" for row in rows if row["status"] != "ok"]
        # rsockets fails at much: that is a result, and neither tried again nor a failure of this command.
        (self.peers if rows[0].get("stack") == stacks.RSOCKETS else self.failed).extend(told)


def restart(options):
    if options.restart and options.results.exists():
        print(f"experiments: the old results are in {results.move_aside(options.results)}", file=sys.stderr)


def run(options):
    """The command `run`. Returns the exit status."""
    profile = matrix.PROFILES[options.profile]
    build = environment.build_folder(options.build)
    files = environment.needed(build)
    needed_programs(options.experiments, options.networks)
    networks = usable_networks(options.networks)
    restart(options)
    here = environment.gather(build, profile.name)
    results.open_folder(options.results, here)
    with locked(options.results):
        session = Session(options, profile, files, networks, options.results, here)
        measured = session.measure()
    print(f"{measured} measured, {len(session.failed)} failed; rows in {options.results}")
    for line in session.failed + session.peers:
        print(f"experiments: failed: {line}", file=sys.stderr)
    return 1 if session.failed else 0
