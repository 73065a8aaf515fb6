"""Where virtoll's programs are looked for: the PATH, and behind it the directories of the administrator's programs.

A user's PATH lacks those, and root's too who came by `su`; mkfs.ext4, runc and dockerd lie there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from virtoll.errors import HostError

Stamp = tuple[int, int]
_FURTHER = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_PROFILES = Path("/sys/kernel/security/apparmor/profiles")


def search_path() -> str:
    """The PATH that programs are looked for in, and that those which are started get."""
    told = [directory for directory in os.environ.get("PATH", os.defpath).split(os.pathsep) if directory]
    return os.pathsep.join([*told, *(directory for directory in _FURTHER if directory not in told)])


def find(program: str) -> str | None:
    """The path of a program; None where it is not installed."""
    return shutil.which(program, path=search_path())


def stamp(program: str) -> Stamp | None:
    """What changes when a program on this machine is replaced; None where it is not installed."""
    path = find(program)
    if path is None:
        return None
    there = Path(path).stat()
    return there.st_ino, there.st_mtime_ns


def digest(program: str) -> str:
    """sha256 of a program's file on this machine, hex: what an upgrade changes. HostError where it is not installed, or
    cannot be read.
    """
    path = find(program)
    if path is None:
        raise HostError(f"{program} is not installed", where="localhost", remedy="install it, as it was before")
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}", where="localhost") from error


def apparmor_strips(program: str) -> str:
    """The command that ends it where AppArmor takes all capabilities from what ``program`` starts, root's too; else "".

    So Ubuntu has it since 25.04 for bwrap, and with apparmor-profiles for unshare: in users' namespaces nobody is to be
    root of anything. The profile of what they start is called unpriv_PROGRAM.
    """
    try:
        loaded = _PROFILES.read_text(encoding="utf-8", errors="replace")
    except OSError:  # no AppArmor, or we are not root
        return ""
    found = re.search(rf"^(?:.*/)?unpriv_{re.escape(program)} \(enforce\)$", loaded, re.MULTILINE)
    return f"apparmor_parser -R /etc/apparmor.d/{program}-userns-restrict" if found else ""
