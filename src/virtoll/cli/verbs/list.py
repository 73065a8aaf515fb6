"""`virtoll list`: what there is to choose from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict

from virtoll.cli import common
from virtoll.cli.parser import LISTED
from virtoll.errors import Problem
from virtoll.registry import Registered


def do(arguments: argparse.Namespace) -> int:
    """Names and summaries."""
    problems: Iterable[Problem] = ()
    if arguments.what is None:
        found = dict(LISTED)
    elif arguments.what == "studies":
        from virtoll.run.named import available_studies

        found = available_studies()
    else:
        registered = _registered(arguments.what)
        found = {name: cls.summary for name, cls in registered.classes.items()}
        problems = registered.refused
    common.tell_refused(problems)
    if arguments.json:
        entries = [{"name": name, "summary": summary} for name, summary in found.items()]
        common.print_json(
            {"list": arguments.what or "lists", "entries": entries, "refused": [asdict(one) for one in problems]}
        )
    else:
        common.print_columns(found)
    return 0


def _registered(what: str) -> Registered:
    """Each list waits for its own parts: charts are slow to import, and so are all others together."""
    if what == "sections":
        from virtoll.report.sections.base import registered_sections

        return registered_sections()
    from virtoll.catalogue import registered_of

    return registered_of(what)
