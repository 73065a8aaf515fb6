"""Text from outside that rich prints: as it is, without markup, without control characters."""

from __future__ import annotations

from rich.text import Text

from virtoll.plain import printable


def plain(text: str, style: str = "") -> Text:
    """``text`` as rich shall print it. A guest's, a file's or a command's words are no markup, and no escape codes."""
    return Text(printable(text), style=style)
