"""What `virtoll compare` tells, and in which form."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from virtoll.analysis.changes import Change
from virtoll.cli import common
from virtoll.report import change_forms as forms
from virtoll.report.changes import Compared, compare, confirmed
from virtoll.report.numbers import interval
from virtoll.run.unstyled import plain

_STYLES = {"worse": "red", "better": "green", "unsure": "yellow", "missing": "dim"}
_MOST_LINES = 12  # of what differs


def tell(arguments: argparse.Namespace, notes: Sequence[str] = (), lacking: Sequence[str] = ()) -> int:
    """Compare two runs, or one's configurations, and tell of it, of ``notes``, and of what B is ``lacking`` besides; 5
    or 6 where a threshold was given and B is worse, or none can tell.
    """
    asked: dict[str, Any] = {
        "threshold": arguments.fail_over,
        "names": arguments.metrics or (),
        "by_condition": arguments.by_condition,
    }
    if arguments.after is None:
        compared = confirmed(arguments.before, **asked)
    else:
        compared = compare(arguments.before, arguments.after, **asked)
    compared = replace(compared, notes=(*notes, *compared.notes), lacking=(*lacking, *compared.lacking))
    if arguments.markdown:
        forms.write(arguments.markdown, forms.markdown(compared).encode())
    if arguments.junit:
        forms.write(arguments.junit, forms.junit(compared))
    if arguments.json:
        common.print_json(forms.as_json(compared))
    else:
        common.print_shown(lambda console: _show(compared, console))
    return forms.exit_code(compared)


def _show(compared: Compared, console: Console) -> None:
    console.print(plain(forms.sentence(compared), "bold"), end="\n\n")
    for title in dict.fromkeys(change.matched.metric.title for change in compared.changes):
        rows = [change for change in compared.changes if change.matched.metric.title == title]
        console.print(_table(title, rows, compared))
    for each in compared.natives:
        title = ", ".join(filter(None, (each.metric.title, each.condition)))
        console.print(plain(f"native itself, {title}: B / A {interval(each.ratio)} (shown, not judged)", "dim"))
    told = forms.remarks(compared)
    for line in told[:_MOST_LINES]:
        console.print("[yellow]note[/]", end=": ")
        console.print(plain(line))
    if len(told) > _MOST_LINES:
        console.print(f"and {len(told) - _MOST_LINES} more: --json has all")


def _table(title: str, rows: Sequence[Change], compared: Compared) -> Table:
    table = Table(title=plain(title), title_justify="left", title_style="bold", box=None, header_style="dim")
    for head in ("arm", "B against A", "to native in A, in B"):
        table.add_column(head, overflow="fold")
    for change in rows:
        matched, least = change.matched, forms.least(change)
        told = (change.words, f"{least} could be shown" if least else "", forms.gate_words(change, compared))
        table.add_row(
            plain("\n".join(filter(None, (matched.arm.label, matched.condition, forms.few(change))))),
            plain("\n".join(filter(None, told)), _STYLES.get(change.kind, "")),
            plain(f"{interval(change.before)}\n{interval(change.after)}"),
        )
    return table
