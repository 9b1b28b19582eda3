# SPDX-License-Identifier: MIT
"""The command line of scripts/experiments."""
import argparse
import pathlib
import signal
import sys

from experiments import apps, environment, lab, matrix, network, stacks
from experiments.errors import Failure, Usage


def listed(what, allowed):
    """A type for argparse: names separated by commas, each one of `allowed`."""
    def parse(text):
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"there is no {what} '{name}'; there are: {', '.join(allowed)}")
        if not names:
            raise argparse.ArgumentTypeError(f"no {what} is named; there are: {', '.join(allowed)}")
        return [name for name in allowed if name in names]
    return parse


def positive(text):
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 to 1000")
    return int(text)


def add_run(commands):
    profiles = "; ".join(f"{profile.name}: {profile.help}" for profile in matrix.PROFILES.values())
    parser = commands.add_parser("run", help="measure; takes up again what was interrupted")
    paths, experiments = stacks.path_names(), list(matrix.EXPERIMENTS)
    parser.add_argument("--profile", choices=list(matrix.PROFILES), default="quick", help=profiles)
    parser.add_argument("--results", type=pathlib.Path, metavar="DIR", help="folder for the rows (default: results/PROFILE)")
    parser.add_argument("--build", metavar="PRESET|DIR", default="release", help="build that is measured (default: release)")
    parser.add_argument("--experiments", type=listed("experiment", experiments), default=experiments, metavar="LIST",
                        help="; ".join(f"{name}: {what}" for name, what in matrix.EXPERIMENTS.items()))
    parser.add_argument("--networks", type=listed("network", network.NETWORKS), metavar="LIST",
                        help=f"{', '.join(network.NETWORKS)} (default: the profile's own)")
    parser.add_argument("--paths", type=listed("path", paths), default=paths, metavar="LIST", help=", ".join(paths))
    parser.add_argument("--only", action="append", default=[], metavar="TEXT",
                        help="of M, W, S and A only points with TEXT in their title (e.g. 'S loopback ping-pong'); may be given again")
    parser.add_argument("--repeats", type=positive, metavar="N", help="rounds, instead of the profile's own number")
    parser.add_argument("--restart", action="store_true", help="begin anew; the old results are kept under another name")
    parser.add_argument("--list", action="store_true", help="only say what would be run")


def add_outputs(commands):
    for name, what, default in (("report", "make the HTML report of a results folder", "DIR/report.html"),
                                ("figures", "write docs/figures.md from a results folder", "docs/figures.md")):
        parser = commands.add_parser(name, help=what)
        parser.add_argument("results", type=pathlib.Path, metavar="DIR", help="a results folder")
        parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help=f"default: {default}")
        if name == "report":
            parser.add_argument("--rdma", type=pathlib.Path, metavar="DIR", help="a results folder of the profile rdma, for a section in it")


def parser_of():
    parser = argparse.ArgumentParser(prog="scripts/experiments", description="Measures every path with the bundled tools.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="run|report|figures")
    add_run(commands)
    add_outputs(commands)
    return parser


def list_runs(options):
    profile = matrix.PROFILES[options.profile]
    found = matrix.points(profile, options.experiments, options.networks, stacks.usual(options.paths))
    found = [point for point in found if all(text in point.title() for text in options.only)]
    repeats = options.repeats or profile.repeats
    if "A" in options.experiments:
        files = {"exchange": "exchange"}
        for app in apps.apps(files, pathlib.Path("scratch"), profile, options.paths, options.networks):
            if all(text in app.title() for text in options.only):
                print(f"{app.title()} on {', '.join(app.paths)}")
    for point in found:
        print(f"{point.title()} on {', '.join(stack.name for stack in point.stacks)}")
    print(f"{len(found)} points, {sum(len(point.stacks) for point in found) * (repeats + 1)} runs")
    return 0


def run(options, arguments):
    if options.networks is None:
        options.networks = matrix.PROFILES[options.profile].networks
    if options.list:
        return list_runs(options)
    if options.results is None:
        options.results = environment.ROOT / "results" / options.profile
    options.results = options.results.resolve()
    from experiments import measure
    if not lab.is_needed(options.networks):
        return measure.run(options)
    environment.needed(environment.build_folder(options.build))
    measure.restart(options)
    return lab.run([word for word in arguments if word != "--restart"], options.results)


def dispatch(options, arguments):
    # Imported where needed: `run` works without pandas and matplotlib.
    if options.command == "run":
        return run(options, arguments)
    if options.command == "report":
        from experiments import report
        return report.write(options.results, options.output or options.results / "report.html", options.rdma)
    from experiments import figures
    return figures.write(options.results, options.output or environment.ROOT / "docs" / "figures.md")


def main(arguments):
    # An end by SIGTERM cleans up as an end by Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parser_of().parse_args(arguments)
    try:
        return dispatch(options, arguments)
    except KeyboardInterrupt:
        print("\nexperiments: interrupted; the same command takes it up again", file=sys.stderr)
        return 130
    except Usage as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2
    except Failure as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"experiments: {error.name} is missing: scripts/deps experiments installs it", file=sys.stderr)
        return 1
