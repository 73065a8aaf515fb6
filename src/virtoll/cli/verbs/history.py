"""`virtoll history`: every run under a folder, over time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from virtoll.cli import common
from virtoll.plain import printable
from virtoll.report import history_forms as forms
from virtoll.report import zabbix
from virtoll.report.change_forms import write
from virtoll.report.history import History, history
from virtoll.report.history_page import write_page
from virtoll.report.numbers import interval
from virtoll.run.unstyled import plain

_MOST_LINES = 12  # of what was left out


def do(arguments: argparse.Namespace) -> int:
    """Read a folder's runs, write the page and what else was asked for."""
    told = history(arguments.folder, arguments.metrics or ())
    for path, form in (
        (arguments.csv, forms.as_csv),
        (arguments.parquet, forms.as_parquet),
        (arguments.openmetrics, forms.as_openmetrics),
    ):
        if path is not None:
            write(path, form(told))
    if arguments.zabbix is not None:
        _for_zabbix(told, arguments.zabbix)
    page = write_page(told, arguments.out)
    if arguments.json:
        common.print_json({**forms.as_json(told), "page": str(page)})
    else:
        common.print_shown(lambda console: _show(told, console))
        print(page)
    return 0


def _for_zabbix(told: History, path: Path) -> None:
    """Write it, and say on stderr how to send it."""
    found = forms.for_zabbix(told)
    write(path, found.file)
    for line in zabbix.how(len(found.lines), found.hosts, found.keys, str(path)):
        print(printable(f"virtoll: {line}"), file=sys.stderr)


def _show(told: History, console: Console) -> None:
    """A table a series, an arm a line."""
    for at, sentence in enumerate(forms.sentences(told)):
        console.print(plain(sentence, "" if at else "bold"))
    for each in told.series:
        table = Table(title=plain(f"\n{each.title}"), title_justify="left", box=None, header_style="dim")
        for head in ("arm", "to native", "runs", "first", "last"):
            table.add_column(head, overflow="fold")
        for line in each.lines:
            ends = [interval(line.points[at].ratio) for at in (0, -1)]
            words = (line.arm.label, line.metric.title, f"{len(line.points)}", *ends)
            table.add_row(*(plain(word) for word in words))
        console.print(table)
        for sentence in forms.without(each):
            console.print(plain(sentence))
    for path, why in told.left_out[:_MOST_LINES]:
        console.print("[yellow]left out[/]", end=": ")
        console.print(plain(f"{path}: {why.splitlines()[0]}"))
    if len(told.left_out) > _MOST_LINES:
        console.print(f"and {len(told.left_out) - _MOST_LINES} more: --json has all")
