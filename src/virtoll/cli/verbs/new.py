"""`virtoll new`: a study file to begin from."""

from __future__ import annotations

import argparse

from virtoll.run import beginning


def do(arguments: argparse.Namespace) -> int:
    """Write it."""
    path = beginning.begin(arguments.name, like=arguments.like)
    print(f"{path} is written; change it, then `virtoll check {path}` and `virtoll run {path} --quick`")
    return 0
