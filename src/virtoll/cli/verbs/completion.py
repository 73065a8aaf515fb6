"""`virtoll completion`: a shell's script."""

from __future__ import annotations

import argparse

from virtoll.cli import shells
from virtoll.cli.parser import make_parser


def do(arguments: argparse.Namespace) -> int:
    """Print it."""
    print(shells.completion(make_parser(), arguments.shell))
    return 0
