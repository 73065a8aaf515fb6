"""`virtoll new`: a study file to begin from."""

from __future__ import annotations

import argparse

from virtoll.plain import typed
from virtoll.run import beginning


def do(arguments: argparse.Namespace) -> int:
    """Write it."""
    path = beginning.begin(arguments.name, like=arguments.like)
    word = typed(path)
    print(f"{path} is written; change it, then `virtoll check {word}` and `virtoll run {word} --quick`")
    return 0
