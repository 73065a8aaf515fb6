"""`virtoll compare`: what changed from one run to another."""

from __future__ import annotations

import argparse
import gc

from virtoll.cli import common
from virtoll.errors import Problem, StudyError
from virtoll.plain import typed
from virtoll.report.begin import helped_to_measure

_OF_AGAIN = ("blocks", "budget", "seed", "out")


def do(arguments: argparse.Namespace) -> int:
    """Compare two runs, or the configurations of one; 5 or 6 where a threshold was given and B is worse, or none can
    tell.
    """
    _expect_of_a_kind(arguments)
    if arguments.again:
        return _again(arguments)
    with helped_to_measure(*(path for path in (arguments.before, arguments.after) if path is not None)):
        from virtoll.cli.compared import tell

        return tell(arguments)


def _expect_of_a_kind(arguments: argparse.Namespace) -> None:
    given = [f"--{name}" for name in _OF_AGAIN if getattr(arguments, name) is not None]
    given += ["--dry-run"] * arguments.dry_run
    problems = []
    if given and not arguments.again:
        what = "that is of a run which measures both configurations again"
        problems.append(Problem(what, ", ".join(given), "virtoll compare RUN_A RUN_B --again"))
    if arguments.again and arguments.after is None:
        remedy = f"`virtoll run {typed(arguments.before)} --blocks N` goes on with one that was made so"
        problems.append(Problem("it takes two runs to measure their configurations again", "--again", remedy))
    if arguments.junit and arguments.fail_over is None:
        what = "a test passes or fails, and without a threshold nothing does"
        problems.append(Problem(what, "--junit", "give one: --fail-over 5%"))
    if problems:
        raise StudyError(problems)


def _again(arguments: argparse.Namespace) -> int:
    """A run, and then what it says; where that is nothing worse, the run's own code."""
    from virtoll.cli.compared import tell
    from virtoll.run.again import again
    from virtoll.run.request import Request

    if not arguments.dry_run:
        common.require_root()
    gc.enable()  # it is long, and comparing is not
    request = Request(
        study="",
        blocks=arguments.blocks,
        budget_s=arguments.budget,
        seed=arguments.seed,
        dry_run=arguments.dry_run,
        out=arguments.out,
        as_json=arguments.json and arguments.dry_run,
    )
    made = again(arguments.before, arguments.after, request, quiet=arguments.json)
    if arguments.dry_run:
        return made.code
    arguments.before, arguments.after = made.directory, None
    return tell(arguments, made.notes, made.lacking) or made.code
