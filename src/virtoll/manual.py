"""The manual: the pages of docs/, which travel in the wheel (setup.py), or lie in the checkout."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from rich.console import Console

from virtoll.errors import Problem, StudyError
from virtoll.study.values import nearest

_IN_WHEEL = Path(__file__).parent / "docs"
_IN_CHECKOUT = Path(__file__).parents[2] / "docs"
_WIDEST = 100  # columns that a page takes on a terminal


def topics() -> dict[str, str]:
    """Every page by its topic (``run-directory`` for RUN_DIRECTORY.md), with its heading."""
    found = {}
    for topic, path in sorted(_pages().items()):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[topic] = first.removeprefix("# ")
    return found


def page(topic: str) -> str:
    """A page as it is written, in Markdown. StudyError where there is none of that name."""
    path = _pages().get(topic)
    if path is None:
        remedy = f"`virtoll help` lists them: {', '.join(sorted(_pages()))}"
        raise StudyError([Problem(f"the manual has no page {topic!r}{nearest(topic, _pages())}", remedy=remedy)])
    return path.read_text(encoding="utf-8")


def show(topic: str, console: Console) -> None:
    """Print a page: laid out and by a pager where a person reads along, and as it is written elsewhere."""
    text = page(topic)
    if not console.is_interactive:
        print(text, end="")
        return
    from rich.markdown import Markdown  # slow to import, and hardly ever asked for

    os.environ.setdefault("LESS", "FRX")  # as git does it: a page that fits stays on the screen, styles are shown
    with console.pager(styles=True):
        console.print(Markdown(text), width=min(console.width, _WIDEST))


@cache
def _pages() -> dict[str, Path]:
    directory = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT
    return {path.stem.lower().replace("_", "-"): path for path in directory.glob("*.md")}
