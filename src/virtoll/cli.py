"""The command line: verbs and their errors. What a verb does lives elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from virtoll import __version__
from virtoll.analysis.capacity import Grid
from virtoll.catalogue import SEAMS, refused, registered_of
from virtoll.errors import HostError, Problem, VirtollError
from virtoll.hosts import interrupts
from virtoll.hosts.ledger import state_directory
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import beside_nobody
from virtoll.plain import printable
from virtoll.run import doctor
from virtoll.run.conduct import Request, available_studies, run_study
from virtoll.run.single import ProbeRequest, run_probe
from virtoll.run.stage import alone
from virtoll.units import parse_duration_ns

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point; exits with the code that errors.py gives each outcome."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.verb is _probe:
        arguments.settings = _pairs(parser, rest)
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    interrupts.install()
    try:
        code = arguments.verb(arguments)
        sys.stdout.flush()  # here, where a reader that has gone is noticed
        sys.exit(code)
    except VirtollError as error:
        _end(error.exit_code, f"virtoll: {error}")
    except KeyboardInterrupt:
        _end(_INTERRUPTED, "\nvirtoll: interrupted; everything it made is undone")
    except BrokenPipeError:
        if arguments.verb in (_list, _plan) or getattr(arguments, "dry_run", False):  # `virtoll list ... | head`
            _end(0)
        _end(_INTERRUPTED, "virtoll: nobody reads its output any more; everything it made is undone")


def _end(code: int, told: str = "") -> NoReturn:
    """Exit with ``code``, also where nobody reads any more what is still to be written."""
    with suppress(OSError):
        print(printable(told), end="\n" if told else "", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes at its end, and complains
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="virtoll", description="What does virtualization cost your service?")
    parser.add_argument("--version", action="version", version=f"virtoll {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verb = verbs.add_parser("doctor", help="what this machine can offer, and what mends what is missing")
    verb.set_defaults(verb=_doctor)

    verb = verbs.add_parser("list", help="what a study file may name")
    verb.add_argument("what", choices=[*SEAMS, "studies"])
    verb.set_defaults(verb=_list)

    verb = verbs.add_parser("run", help="run a study, or go on with one")
    verb.add_argument("study", help="a ready-made study (`virtoll list studies`), a study file, or a run directory")
    verb.add_argument("--quick", action="store_true", help="the study's own [quick] variant: minutes, wider intervals")
    verb.add_argument("--platforms", type=_names, metavar="A,B", help="only these, beside native")
    verb.add_argument("--blocks", type=int, metavar="N", help="number of blocks (at least 2)")
    verb.add_argument("--budget", type=_duration_s, metavar="TIME", help='as many blocks as fit, e.g. "30m"')
    verb.add_argument("--seed", type=int, metavar="N", help="seed of the order (drawn and recorded when not given)")
    verb.add_argument("--dry-run", action="store_true", help="print the plan and its time, change nothing")
    verb.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME-TIME)")
    verb.add_argument("--cross-check", action="store_true", help="also measure native with the outside instruments")
    verb.add_argument("--json", action="store_true", help="progress as JSON lines")
    verb.set_defaults(verb=_run)

    verb = verbs.add_parser(
        "probe",
        help="run one micro benchmark in one instance, here and now",
        usage="virtoll probe NAME [--platform P] [--network MODE] [--memory SIZE] [--vcpus N] [--json] [--KEY VALUE]",
        epilog="KEY VALUE are the probe's settings as a study file has them: --order 2000, --time 2s",
    )
    verb.add_argument("name", help="a probe (`virtoll list probes`)")
    verb.add_argument("--platform", default="native", help="where to run it (default: native)")
    verb.add_argument("--network", default="", help="network mode (default: the platform's own)")
    verb.add_argument("--memory", default="", metavar="SIZE", help="the instance's memory: 2GiB")
    verb.add_argument("--vcpus", type=int, metavar="N", help="the instance's vCPUs")
    verb.add_argument("--json", action="store_true", help="the figures as JSON")
    verb.set_defaults(verb=_probe)

    verb = verbs.add_parser("report", help="build a run's report again: page, tables and figures")
    verb.add_argument("run", type=Path, metavar="RUNDIR")
    verb.set_defaults(verb=_report)

    verb = verbs.add_parser("plan", help="how many experiments a testbed of sliced nodes holds at once")
    verb.add_argument("what", choices=["testbed"])
    for name, default, what in (
        ("nodes", 400, "nodes of the grid"),
        ("interfaces", 2, "radio interfaces of a node"),
        ("channels", 12, "orthogonal channels"),
        ("slices", 2, "slices of a node"),
    ):
        verb.add_argument(f"--{name}", type=_count, default=default, metavar="N", help=f"{what} (default: {default})")
    verb.add_argument("--nodes-per-experiment", type=_counts, metavar="N,N", help="sizes of experiments in the table")
    out = Path("runs/testbed-plan")
    verb.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"for figure and table (default: {out})")
    verb.set_defaults(verb=_plan)

    verb = verbs.add_parser("clean", help="remove what a killed virtoll left on this machine, and nothing else")
    verb.set_defaults(verb=_clean)
    return parser


def _pairs(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, str]:
    """The settings of a probe: ``--order 2000`` or ``--order=2000``, named as in a study file."""
    pairs: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            parser.error(f"{word!r} belongs to no setting: write --KEY VALUE")
        pairs[key.replace("-", "_")] = value if equals else next(rest, "")
    return pairs


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(word) for word in text.split(",")]


def _duration_s(text: str) -> float:
    try:
        return parse_duration_ns(text) / 1e9
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _require_root() -> None:
    if os.geteuid() != 0:
        raise HostError(
            "virtoll makes namespaces, cgroups and instances, and only root may",
            where=LocalHost.where,
            remedy="run it with sudo",
        )


def _tell_refused(problems: Iterable[Problem]) -> None:
    """Plugins that are left out; whoever names one in a study is told that there is none of that name."""
    for problem in problems:
        print(printable(f"virtoll: {problem}"), file=sys.stderr)


def _doctor(_arguments: argparse.Namespace) -> int:
    _require_root()
    _tell_refused(refused())
    with alone(LocalHost()) as removed:
        for line in removed:
            print(printable(f"a killed run had left, and it was removed: {line}"))
        return 0 if doctor.show(LocalHost(), Console()) else HostError.exit_code


def _list(arguments: argparse.Namespace) -> int:
    if arguments.what == "studies":
        found = available_studies()
    else:
        registered = registered_of(arguments.what)
        found = {name: cls.summary for name, cls in registered.classes.items()}
        _tell_refused(registered.refused)
    width = max(map(len, found))
    for name, summary in found.items():
        print(f"{name:<{width}}  {summary}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.dry_run:
        _require_root()
    _tell_refused(refused())
    return run_study(
        Request(
            study=arguments.study,
            quick=arguments.quick,
            platforms=arguments.platforms,
            blocks=arguments.blocks,
            budget_s=arguments.budget,
            seed=arguments.seed,
            dry_run=arguments.dry_run,
            out=arguments.out,
            as_json=arguments.json,
            cross_check=arguments.cross_check,
        )
    )


def _probe(arguments: argparse.Namespace) -> int:
    _require_root()
    _tell_refused(refused())
    return run_probe(
        ProbeRequest(
            probe=arguments.name,
            settings=arguments.settings,
            platform=arguments.platform,
            network=arguments.network,
            memory=arguments.memory,
            vcpus=arguments.vcpus,
            as_json=arguments.json,
        )
    )


def _report(arguments: argparse.Namespace) -> int:
    from virtoll.report.build import build_report  # charts are slow to import, and the other verbs need none

    with beside_nobody(state_directory()):
        print(build_report(arguments.run))
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from virtoll.report import plan  # charts are slow to import, and the other verbs need none

    grid = Grid(arguments.nodes, arguments.interfaces, arguments.channels, arguments.slices)
    sizes = arguments.nodes_per_experiment or plan.usual_sizes(grid)
    print(plan.plain(plan.capacity_table(grid, sizes)))
    for path in plan.write_plan(grid, sizes, arguments.out):
        print(path)
    return 0


def _clean(_arguments: argparse.Namespace) -> int:
    _require_root()
    with alone(LocalHost()) as removed:  # a run that begins meanwhile is told who is at work
        for line in removed:
            print(printable(f"removed {line}"))
    print("nothing was left" if not removed else f"{len(removed)} removed")
    return 0
