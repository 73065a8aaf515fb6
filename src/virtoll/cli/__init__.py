"""The command line: verbs and their errors. What a verb does lives elsewhere."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from virtoll import manual
from virtoll.analysis.capacity import Grid
from virtoll.analysis.load import read_run
from virtoll.catalogue import refused, registered_of
from virtoll.cli import shells
from virtoll.cli.compare import compare
from virtoll.cli.history import history
from virtoll.cli.parser import LISTED, make_parser, settings_of
from virtoll.errors import INTERRUPTED, HostError, Problem, StudyError, VirtollError
from virtoll.hosts import interrupts, tuning
from virtoll.hosts.ledger import clean, state_directory
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import beside_nobody, exclusive
from virtoll.hosts.tuning import KNOBS, Knob
from virtoll.plain import printable
from virtoll.registry import Registered
from virtoll.report import zabbix
from virtoll.run import beginning, doctor, machine, tune
from virtoll.run.audit import audit_study
from virtoll.run.calibrating import CALIBRATION, calibrate
from virtoll.run.conduct import Request, read, run_study
from virtoll.run.named import available_studies
from virtoll.run.single import ProbeRequest, run_probe
from virtoll.run.stage import alone
from virtoll.run.target import refuse_beside, run_target

_PRINTS_ONLY = (
    "list",
    "check",
    "history",
    "export",
    "plan",
    "help",
    "completion",
    "man",
)  # a reader that goes away has seen enough


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point; exits with the code that errors.py gives each outcome."""
    parser = make_parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.verb == "probe":
        arguments.settings = settings_of(parser, rest)
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    interrupts.install()
    try:
        code = _VERBS[arguments.verb](arguments)
        sys.stdout.flush()  # here, where a reader that has gone is noticed
        sys.exit(code)
    except VirtollError as error:
        _end(error.exit_code, f"virtoll: {error}")
    except KeyboardInterrupt:
        _end(INTERRUPTED, "\nvirtoll: interrupted; everything it made is undone")
    except BrokenPipeError:
        if arguments.verb in _PRINTS_ONLY or getattr(arguments, "dry_run", False):  # `virtoll list ... | head`
            _end(0)
        _end(INTERRUPTED, "virtoll: nobody reads its output any more; everything it made is undone")


def _end(code: int, told: str = "") -> NoReturn:
    """Exit with ``code``, also where nobody reads any more what is still to be written."""
    with suppress(OSError):
        print(printable(told), end="\n" if told else "", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes at its end, and complains
    sys.exit(code)


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


def _as_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def _doctor(arguments: argparse.Namespace) -> int:
    _require_root()
    _tell_refused(refused())
    with alone(LocalHost()) as removed:
        if not arguments.json:
            for line in removed:
                print(printable(f"a killed run had left, and it was removed: {line}"))
        if arguments.machine:
            return _machine(removed, as_json=arguments.json)
        offer = doctor.examine(LocalHost())
        if arguments.json:
            _as_json({**doctor.as_json(offer), "removed": removed})
        else:
            doctor.show(offer, Console())
        return 0 if offer.is_ready else HostError.exit_code


def _machine(removed: list[str], *, as_json: bool) -> int:
    findings = machine.examine(Path("/"), machine.measure())
    tuned = tuning.in_force(tuning.directory())
    if as_json:
        _as_json({**machine.as_json(findings, tuned), "removed": removed})
    else:
        machine.show(findings, tuned, Console())
    return 0


def _list(arguments: argparse.Namespace) -> int:
    problems: Iterable[Problem] = ()
    if arguments.what is None:
        found = dict(LISTED)
    elif arguments.what == "studies":
        found = available_studies()
    else:
        registered = _sections() if arguments.what == "sections" else registered_of(arguments.what)
        found = {name: cls.summary for name, cls in registered.classes.items()}
        problems = registered.refused
    _tell_refused(problems)
    if arguments.json:
        entries = [{"name": name, "summary": summary} for name, summary in found.items()]
        _as_json({"list": arguments.what or "lists", "entries": entries, "refused": [asdict(one) for one in problems]})
    else:
        _columns(found)
    return 0


def _sections() -> Registered:
    from virtoll.report.sections.base import registered_sections  # charts are slow to import; other lists need none

    return registered_sections()


def _columns(found: Mapping[str, str]) -> None:
    width = max(map(len, found))
    for name, summary in found.items():
        print(printable(f"{name:<{width}}  {summary}"))


def _new(arguments: argparse.Namespace) -> int:
    path = beginning.begin(arguments.name)
    print(f"{path} is written; change it, then `virtoll check {path}` and `virtoll run {path} --quick`")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    _tell_refused(refused())
    checked = beginning.check(arguments.study, LocalHost())
    if arguments.json:
        _as_json(beginning.as_json(checked))
        return 0 if checked.is_right else StudyError.exit_code
    if not checked.is_right:
        raise StudyError(checked.problems)
    print(printable(beginning.as_text(checked)))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.dry_run:
        _require_root()
    _tell_refused(refused())
    if arguments.target is not None:
        refuse_beside({name: getattr(arguments, name) for name in _OF_ARMS})
        study, _ = read(Request(study=arguments.study, quick=arguments.quick))
        return run_target(study, arguments.target, as_json=arguments.json)
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
            explain=arguments.explain,
            decide=arguments.decide,
            precision=arguments.precision,
        )
    )


# Options of a run that say something of arms, blocks or a run directory.
_OF_ARMS = (
    *("platforms", "blocks", "budget", "decide", "precision", "seed", "dry_run", "out", "cross_check", "explain"),
)


def _calibrate(arguments: argparse.Namespace) -> int:
    if not arguments.dry_run:
        _require_root()
    return calibrate(
        Request(
            study=CALIBRATION,
            quick=arguments.quick,
            blocks=arguments.blocks,
            seed=arguments.seed,
            dry_run=arguments.dry_run,
            out=arguments.out,
            as_json=arguments.json,
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


def _audit(arguments: argparse.Namespace) -> int:
    _require_root()
    _tell_refused(refused())
    return audit_study(
        Request(
            study=arguments.study,
            quick=arguments.quick,
            platforms=arguments.platforms,
            as_json=arguments.json,
        )
    )


def _report(arguments: argparse.Namespace) -> int:
    from virtoll.report.build import as_json, report_of  # charts are slow to import; the other verbs need none

    with beside_nobody(state_directory()):
        findings, page = report_of(arguments.run)
        if arguments.json:
            _as_json(as_json(findings, page))
        else:
            print(page)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    run, count = read_run(arguments.run), 0
    for line in zabbix.lines(run):
        print(line)
        count += 1
    named = ", ".join(f'"{name}"' for name in zabbix.hosts(run).values())
    keys = ", ".join(zabbix.KEYS)
    for told in (
        f"{count:,} values; `zabbix_sender -z SERVER -T -N -i FILE` sends them",
        f"to hosts that Zabbix knows as {named}, with trapper items {keys}",
    ):
        print(printable(f"virtoll: {told}"), file=sys.stderr)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from virtoll.report import plan  # charts are slow to import, and the other verbs need none

    grid = Grid(arguments.nodes, arguments.interfaces, arguments.channels, arguments.slices)
    sizes = arguments.nodes_per_experiment or plan.usual_sizes(grid)
    if not arguments.json:
        print(plan.plain(plan.capacity_table(grid, sizes)))
    files = plan.write_plan(grid, sizes, arguments.out)
    if arguments.json:
        _as_json({**plan.as_json(grid, sizes), "files": [str(path) for path in files]})
    else:
        print(*files, sep="\n")
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    return _tuned(arguments, lambda knobs, where: tune.tune(knobs, LocalHost(), where, dry_run=arguments.dry_run))


def _untune(arguments: argparse.Namespace) -> int:
    return _tuned(arguments, lambda knobs, where: tune.untune(knobs, LocalHost(), where))


def _tuned(arguments: argparse.Namespace, do: Callable[[list[Knob], Path], list[tune.Outcome]]) -> int:
    """Turn the knobs that are named, or all; 3 where one failed, or was asked for by name and cannot be turned here."""
    _require_root()
    knobs = [knob() for knob in KNOBS if not arguments.what or knob.name in arguments.what]
    with exclusive(state_directory()):  # not in the middle of somebody's measurement
        outcomes = do(knobs, tuning.directory())
    if arguments.json:
        _as_json(tune.as_json(outcomes))
    else:
        for outcome in outcomes:
            print(printable(str(outcome)))
    bad = ("failed", "cannot") if arguments.what else ("failed",)
    return HostError.exit_code if any(one.became in bad for one in outcomes) else 0


def _clean(_arguments: argparse.Namespace) -> int:
    _require_root()
    with alone(LocalHost()) as removed:  # a run that begins meanwhile is told who is at work
        try:
            removed.extend(clean(LocalHost(), tuning.directory()))
        finally:
            for line in removed:
                print(printable(f"removed {line}"))
    print("nothing was left" if not removed else f"{len(removed)} removed")
    return 0


def _help(arguments: argparse.Namespace) -> int:
    parser = make_parser()
    verbs = shells.verbs_of(parser)
    if arguments.topic is None:
        print("virtoll help TOPIC shows a page, virtoll help VERB what a verb takes.\n")
        _columns(manual.topics())
    elif arguments.topic in verbs and arguments.topic not in manual.topics():
        verbs[arguments.topic].print_help()
    else:
        manual.show(arguments.topic, Console())
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    print(shells.completion(make_parser(), arguments.shell))
    return 0


def _man(_arguments: argparse.Namespace) -> int:
    print(shells.man_page(make_parser()), end="")
    return 0


_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "doctor": _doctor,
    "list": _list,
    "new": _new,
    "check": _check,
    "run": _run,
    "calibrate": _calibrate,
    "probe": _probe,
    "audit": _audit,
    "report": _report,
    "compare": compare,
    "history": history,
    "export": _export,
    "plan": _plan,
    "tune": _tune,
    "untune": _untune,
    "clean": _clean,
    "help": _help,
    "completion": _completion,
    "man": _man,
}
