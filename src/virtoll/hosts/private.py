"""Directories that nobody but root (and whoever runs virtoll) may look into or write to.

What lies in virtoll's cache is run later, as root: who can write there, or can put another directory in its place, owns
the machine. And what lies there must not be reached either: an image holds setuid programs of its own and directories
that everybody may write to (/tmp). So the caches and the state are 0700, which is what keeps an image as it was built;
a list of its contents (`virtoll.images.contents`) then finds what was done to it before, or by accident.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from virtoll.errors import HostError

STATE, CACHE = Path("/var/lib/virtoll"), Path("/var/cache/virtoll")  # virtoll's own, where nothing else is named

_TOP = Path("/")
_MOST_LINKS = 40  # as the kernel has it


def trusted(directory: Path) -> Path:
    """``directory``, which need not exist. HostError where somebody else could write to it, or could replace it.

    Links are followed, and whoever owns one must be trusted as well. Changes nothing.
    """
    _expect_nobody_else(directory, sticky_will_do=not os.path.lexists(directory))
    return directory


def without_links(directory: Path) -> Path:
    """``directory`` by the kernel's name for it. HostError as of `trusted`, and where a link on the way leads nowhere.

    What it leads to may only not be mounted, and would be filled in on the disk below.
    """
    for step in (trusted(directory), *directory.parents):
        _expect_no_dead_end(step)
    return Path(os.path.realpath(directory))


def make(top: Path, *below: str) -> Path:
    """``top``/below, made where it is missing; each of them is 0700 afterwards. HostError as of `trusted`.

    A looser directory is tightened if nobody else loses by it: one that is empty (not right below /: /srv is empty
    until a server's files come), one that others cannot reach anyhow, or virtoll's own. Any other is refused; so is one
    that others could write to until now, unless it is empty.
    """
    path = top
    _make_one(top)
    for name in below:
        path = path / name
        _make_one(path)
    return path


def _make_one(path: Path) -> None:
    _expect_nobody_else(path.parent, sticky_will_do=True)
    if not os.path.lexists(path.parent):
        _make_one(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        _tighten(path)
    except OSError as error:
        raise HostError(
            f"cannot be made: {error.strerror}",
            where=str(path),
            remedy="run as root, and see that the disk has room; VIRTOLL_CACHE and VIRTOLL_STATE name other places",
        ) from error
    trusted(path)


def _tighten(path: Path) -> None:
    for step, state in _passed(path):  # before anything is changed
        _expect_owner(step, state)
    _expect_no_dead_end(path)
    state = path.stat()
    if not stat.S_ISDIR(state.st_mode):
        raise _refused(path, "it is no directory", f"mv {path} somewhere else")
    if state.st_mode & 0o077 == 0:
        return
    is_empty = not any(path.iterdir())
    if (mode := _others_write(path, state)) and not is_empty:
        what = f"others could write to it until now ({mode}), and it is not empty"
        raise _refused(path, what, f"see what is in it, remove it, and run virtoll again: rm -r {path}")
    is_spare = is_empty and path.parent != _TOP
    if not (is_spare or path in (STATE, CACHE) or _is_out_of_reach(path)):
        what = f"others {'may ' * is_empty}use it (mode {stat.S_IMODE(state.st_mode):04o})"
        what += ", and it must be root's alone" if is_empty else ", it is not empty, and must be root's alone"
        raise _refused(path, what, f"chmod 700 {path}, if all of it is virtoll's")
    path.chmod(0o700)


def _is_out_of_reach(path: Path) -> bool:
    """Whether a directory above lets nobody else pass already."""
    above = Path(os.path.realpath(path)).parents
    return any(not each.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for each in above)


def _expect_nobody_else(directory: Path, *, sticky_will_do: bool) -> None:
    """In a sticky directory (/tmp) others may write but replace nothing: it may be passed, and not be used itself."""
    last = Path(os.path.realpath(directory))  # which, unlike resolve(), bears a loop
    for step, state in _passed(directory):
        _expect_owner(step, state)
        passable = state.st_mode & stat.S_ISVTX and (sticky_will_do or step != last)
        if not stat.S_ISLNK(state.st_mode) and not passable and (mode := _others_write(step, state)):
            raise _refused(step, f"others may write to it ({mode})", f"chmod go-w {step}")


def _passed(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every directory and link on the way to ``path``, itself the last, as far as there is one."""
    todo = list(reversed(Path.cwd().joinpath(path).parts[1:]))
    at, links = Path("/"), 0
    yield at, at.lstat()
    while todo:
        name = todo.pop()
        if name == "..":
            at = at.parent
            continue
        step = at / name
        try:
            state = step.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot be looked at: {error.strerror}", where=str(step), remedy="run as root") from error
        yield step, state
        if not stat.S_ISLNK(state.st_mode):
            at = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise _refused(step, "too many symbolic links", "name the directory itself")
        target = step.readlink()
        if target.is_absolute():
            at = Path("/")
        todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _expect_owner(step: Path, state: os.stat_result) -> None:
    if state.st_uid not in (0, os.geteuid()):
        raise _refused(step, f"it belongs to user {state.st_uid}", f"chown root {step}, if nobody else needs it")


def _expect_no_dead_end(path: Path) -> None:
    if os.path.lexists(path) and not path.exists():
        raise _refused(path, "it is a link that leads nowhere", f"mount or make what it leads to, or rm {path}")


def _others_write(path: Path, state: os.stat_result) -> str:
    """By which mode others may write to ``path``, in words; "" where they may not. Of an ACL the group's bits are what
    the users and groups that it names may have at most (acl(5)), whoever's the group is.
    """
    mode = f"mode {stat.S_IMODE(state.st_mode):04o}"
    group_writes = state.st_mode & stat.S_IWGRP
    if state.st_mode & stat.S_IWOTH or (group_writes and state.st_gid != 0):
        return mode
    return f"{mode}, by its ACL" if group_writes and _has_acl(path) else ""


def _has_acl(path: Path) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:  # this file system has none
        return False


def _refused(path: Path, why: str, remedy: str) -> HostError:
    return HostError(
        f"is not safe to keep images and state in, or below: {why}",
        where=str(path),
        remedy=f"{remedy}; or let VIRTOLL_CACHE and VIRTOLL_STATE name a directory that only root can write to",
    )
