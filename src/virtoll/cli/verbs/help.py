"""`virtoll help`: the manual."""

from __future__ import annotations

import argparse

from rich.console import Console

from virtoll import manual
from virtoll.cli import common
from virtoll.cli.parser import make_parser, verbs_of


def do(arguments: argparse.Namespace) -> int:
    """Its pages, one of them, or what a verb takes."""
    parser = make_parser()
    verbs = verbs_of(parser)
    if arguments.topic is None:
        print("virtoll help TOPIC shows a page, virtoll help VERB what a verb takes.\n")
        common.print_columns(manual.topics())
    elif arguments.topic in verbs and arguments.topic not in manual.topics():
        verbs[arguments.topic].print_help()
    else:
        manual.show(arguments.topic, Console())
    return 0
