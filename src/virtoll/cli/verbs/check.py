"""`virtoll check`: whether a study is right, and what it would run."""

from __future__ import annotations

import argparse

from virtoll.catalogue import refused
from virtoll.cli import common
from virtoll.errors import HostError, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.run import beginning


def do(arguments: argparse.Namespace) -> int:
    """Say it; 2 where it is wrong, 3 where this machine has too few CPUs for it."""
    common.tell_refused(refused())
    checked = beginning.check(arguments.study, LocalHost())
    if arguments.json:
        common.print_json(beginning.as_json(checked))
        return checked.code
    if checked.code == HostError.exit_code:
        raise HostError("\n".join(map(str, checked.problems)))
    if not checked.is_right:
        raise StudyError(checked.problems)
    print(printable(beginning.as_text(checked)))
    return 0
