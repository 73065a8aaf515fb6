"""Text from outside on a terminal of rich's: as it is, without markup, without control characters."""

from __future__ import annotations

from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """``text`` as rich shall print it. A guest's, a file's or a command's words are no markup, and no escape codes."""
    return Text("".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text), style=style)
