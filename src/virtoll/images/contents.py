"""What an image holds, as a list kept beside it, and whether it still does.

The list has a line for each path: kind and mode, owner, size, time of change, where a link leads. Looking at that of
ten thousand files takes some 50 ms at the start of a run; digesting their 300 MB would take a second or more. It finds
what was added, removed, cut off or written over, by a stray program or while the cache could be written to by others.
That nobody forges a file's time as well is left to the cache's being root's alone (`virtoll.hosts.private`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from virtoll.errors import HostError
from virtoll.images.base import CONTENTS


def note(entry: Path, tree: str) -> None:
    """Write the list of the finished ``entry``/tree into the entry."""
    (entry / CONTENTS).write_text(_listed(entry / tree), encoding="ascii")


def verify(entry: Path, tree: str) -> None:
    """HostError, with a path that differs, where ``entry``/tree is not what it was when it was noted."""
    try:
        noted = (entry / CONTENTS).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise _changed(entry, "the list of its contents is missing or damaged") from None
    found = _listed(entry / tree)
    if noted != found:
        before, now = noted.splitlines(), found.splitlines()
        differing = set(before).symmetric_difference(now)
        path = max((line.split(" ", 1)[0] for line in differing), key=len, default="its order")
        raise _changed(entry, f"{len(differing)} lines of its list differ, one is that of {path}")


def _changed(entry: Path, what: str) -> HostError:
    return HostError(
        f"this image is not as it was built: {what}",
        where=str(entry),
        remedy=f"find out who wrote there; then rm -r {entry}, and the next run builds it anew",
    )


def _listed(root: Path) -> str:
    return "".join(f"{line}\n" for line in _lines(str(root)))


def _lines(root: str) -> Iterator[str]:
    todo = [(root, ".")]  # no recursion: how deep a tree is, is its maker's choice
    while todo:
        path, shown = todo.pop()
        state = os.lstat(path)
        yield _line(shown, state, path)
        if stat.S_ISDIR(state.st_mode):
            names = sorted(os.listdir(path), reverse=True)  # noqa: PTH208
            todo += [(f"{path}/{name}", f"{shown}/{name}") for name in names]


def _line(shown: str, state: os.stat_result, path: str) -> str:
    size = 0 if stat.S_ISDIR(state.st_mode) else state.st_size
    target = ascii(os.readlink(path)) if stat.S_ISLNK(state.st_mode) else "-"  # noqa: PTH115
    name = ascii(shown).replace(" ", "\\x20")
    return f"{name} {state.st_mode:o} {state.st_uid}:{state.st_gid} {size} {state.st_rdev} {state.st_mtime_ns} {target}"
