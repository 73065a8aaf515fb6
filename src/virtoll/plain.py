"""Text from outside on a terminal: as it is, without markup of rich's, without control characters."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    """``text`` with a mark for each control character and half surrogate: a terminal takes no orders from it."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def plain(text: str, style: str = "") -> Text:
    """``text`` as rich shall print it. A guest's, a file's or a command's words are no markup, and no escape codes."""
    return Text(printable(text), style=style)


def print_shown(show: Callable[[Console], None]) -> None:
    """Print what ``show`` puts on a console. BrokenPipeError where nobody reads it; rich by itself exits with 1."""
    console = Console()
    with console.capture() as shown:
        show(console)
    print(shown.get(), end="")
