"""`virtoll man`: the manual page."""

from __future__ import annotations

import argparse

from virtoll.cli.man_page import man_page
from virtoll.cli.parser import make_parser


def do(_arguments: argparse.Namespace) -> int:
    """Print it."""
    print(man_page(make_parser()), end="")
    return 0
