"""What becomes a performer on a machine that has nothing of virtoll yet: its own Python is given this text (-c).

The standard library only. The tree comes on stdin, a tar of so many bytes and this sha256; orders come behind it, so
not a byte more is read. The directory that it is laid out in is in a ledger of this machine's, and that on its disk,
before it is made, locked by this process for as long as it lives (`virtoll.hosts.ledger`): whoever is next here removes
what a killed one, or a power cut, left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import select
import shutil
import stat
import sys
import tarfile
from pathlib import Path

_SILENCE_S = 60.0
_CACHE = "/var/cache/virtoll"


class _Tree:
    """The tar, as a file that is read once."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Some of what is still to come."""
        if not self._left:
            return b""
        if not select.select([0], [], [], _SILENCE_S)[0]:
            raise OSError(0, f"nothing came for {_SILENCE_S:g} s")
        piece = os.read(0, min(size, self._left))
        if not piece:
            raise OSError(0, "what performs did not come whole")
        self._left -= len(piece)
        self.sha256.update(piece)
        return piece


def main(version: str, digest: str, size: str, *performing: str) -> None:
    """Take it in, and become it. Says why, and ends, where that cannot be."""
    if os.geteuid() != 0:
        sys.exit("virtoll: we are not root here, and only root makes namespaces, cgroups and instances")
    if f"{sys.version_info.major}.{sys.version_info.minor} {os.uname().machine}" != version:
        sys.exit(f"virtoll: this is Python {sys.version.split()[0]} on {os.uname().machine}, and not {version}")
    before = os.umask(0o077)
    state = Path(os.path.realpath(os.environ.get("VIRTOLL_STATE") or "/var/lib/virtoll"))
    name = f"performer-{secrets.token_hex(4)}"
    directory, ledger = state / name, state / "ledger" / f"{name}.jsonl"
    try:
        _expect_ours_alone(state)
        file = _announced(ledger, directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            ledger.unlink()
        sys.exit(f"virtoll: {state} cannot be used: {error.strerror}")
    try:
        python = _laid_out(directory, _Tree(int(size)), digest)
        os.umask(before)
        os.set_inheritable(file, True)
        cache = _CACHE if Path(_CACHE).is_dir() else str(directory / "cache")
        words = [str(directory), str(ledger), str(file), digest, *performing]
        argv = [python, "-I", "-B", "-m", "virtoll.run.performing", *words]
        os.execve(python, argv, {"VIRTOLL_CACHE": cache, **os.environ})
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():  # else whoever cleans here next finds it by its ledger
            ledger.unlink(missing_ok=True)
        if isinstance(error, OSError | tarfile.TarError):
            sys.exit(f"virtoll: {getattr(error, 'strerror', None) or error} ({directory})")
        raise


def _expect_ours_alone(state: Path) -> None:
    """OSError where somebody else could put something else in its place: what lies there is run as root."""
    for step in (state, *state.parents):
        try:
            found = step.lstat()
        except FileNotFoundError:
            continue
        others = found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if found.st_gid or _has_acl(step) else 0))
        if found.st_uid != 0 or (others and (step == state or not found.st_mode & stat.S_ISVTX)):
            raise OSError(0, f"somebody else may write to {step}")


def _has_acl(step: Path) -> bool:
    """Its group's bits are then what anybody may have whom the ACL names."""
    try:
        return "system.posix_acl_access" in os.listxattr(step)
    except OSError:  # this file system has none
        return False


def _announced(ledger: Path, directory: Path) -> int:
    """The ledger, open and locked, in which the directory stands."""
    ledger.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(ledger, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), ledger.stat()):
                break
        os.close(file)  # who cleans here took the empty file away, before it was locked
    # proc_pid_stat(5): field 22, when this process began.
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lines = ({"owner": os.getpid(), "started": started}, {"entry": 1, "kind": "directory", "name": str(directory)})
    told = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    if os.write(file, told) != len(told):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)
    for above in list(ledger.parents)[:3]:  # which may all be new; of a read-only file system none is
        names = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(names)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):
                raise
        finally:
            os.close(names)
    return file


def _laid_out(directory: Path, tree: _Tree, digest: str) -> str:
    """The tree as a virtual environment; its Python. Nothing of it is run before its digest is right."""
    place = directory / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    place.mkdir(parents=True)
    with tarfile.open(fileobj=tree, mode="r|") as archive:  # type: ignore[call-overload]
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(place)
    while tree.read(1024**2):
        pass
    if tree.sha256.hexdigest() != digest:
        raise OSError(0, f"what came has the digest {tree.sha256.hexdigest()}, and not {digest}")
    real = Path(os.path.realpath(sys.executable))
    (directory / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    (directory / "bin").mkdir()
    (directory / "bin/python").symlink_to(real)
    return str(directory / "bin/python")


if __name__ == "__main__":
    main(*sys.argv[1:])
