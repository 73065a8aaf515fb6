"""`virtoll export`: what a run's instances used, for Zabbix."""

from __future__ import annotations

import argparse
import sys

from virtoll.analysis.load import read_run
from virtoll.plain import printable
from virtoll.report import zabbix


def do(arguments: argparse.Namespace) -> int:
    """Print its values, and on stderr how to send them."""
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
