"""Cache entries: made once, whole or not at all, by one process at a time; a power loss changes nothing of that."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from virtoll.files import durable
from virtoll.hosts import private


def cached(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, made first if it is not there: ``make`` fills a neighbour that is then renamed to ``path``.

    Other processes that want the same entry wait for the maker. What a killed maker left is removed by the next
    one. ``make`` decides whether the entry is a file or a directory.
    """
    if path.exists():
        return path
    private.make(path.parent)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = path.with_name(f".{path.name}.partial")
            remove(partial)
            try:
                make(partial)
                durable.rename_tree(partial, path)
            except BaseException:
                remove(partial)  # a failed build must not keep the disk full
                raise
    return path


def remove(path: Path) -> None:
    """Remove a file or a directory tree; nothing there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
