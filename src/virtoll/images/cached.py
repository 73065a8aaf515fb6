"""Cache entries: made once, whole or not at all, by one process at a time; a power loss changes nothing of that."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from virtoll.files import durable
from virtoll.hosts import private
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.lock import locks

_DISK_S = 600.0  # to free gigabytes on a slow disk


def cached(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, made first if it is not there: ``make`` fills a neighbour that is then renamed to ``path``.

    Other processes that want the same entry wait for the maker. What a killed maker left is removed by the next
    one, or by `remove_forsaken`. ``make`` decides whether the entry is a file or a directory.
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
                with suppress(OSError):  # which would hide why it failed; and the next one removes it
                    remove(partial)  # a failed build must not keep the disk full
                raise
    return path


def remove_forsaken(host: Host) -> list[str]:
    """Remove what killed makers left in the cache: that whose lock nobody holds. A line for each; HostError where one
    resists.
    """
    removed: list[str] = []
    cache = cache_directory()
    for partial in sorted([*cache.glob("*/.*.partial"), *cache.glob("*/*/.*.partial")]):
        lock = partial.with_name(f"{partial.name.removesuffix('partial')}lock")
        if lock.is_file() and not lock.is_symlink():
            with lock.open("r+") as file:
                if locks(file.fileno()):
                    host.run(["rm", "-rf", "--one-file-system", "--", str(partial)], timeout_s=_DISK_S)
                    removed.append(f"what a killed virtoll was making: {partial}")
    return removed


def remove(path: Path) -> None:
    """Remove a file or a directory tree; nothing there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
