"""`virtoll export`: what a run's instances used, for Zabbix."""

from __future__ import annotations

import argparse
import sys

from virtoll.analysis.load import read_run
from virtoll.plain import printable
from virtoll.report import zabbix
from virtoll.report.findings import told_as_damage


def do(arguments: argparse.Namespace) -> int:
    """Print its values, and on stderr how to send them."""
    run, count = read_run(arguments.run), 0
    with told_as_damage(arguments.run):
        for line in zabbix.lines(run):
            print(line)
            count += 1
    for told in zabbix.how(count, zabbix.hosts(run).values(), zabbix.KEYS):
        print(printable(f"virtoll: {told}"), file=sys.stderr)
    return 0
