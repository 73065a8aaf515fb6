"""The static native binaries that travel with the package (src/virtoll/native/, filled by `make`)."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from virtoll.errors import HostError, Problem

_DIRECTORY = Path(__file__).parent / "native"


def binary(name: str) -> Path:
    """Path of ``virtoll-agent``, ``virtoll-load`` or ``virtoll-confer``; HostError when it is not built."""
    path = _DIRECTORY / name
    if not path.is_file():
        raise HostError(f"{name} is not built", where=str(path), remedy="run `make` in the checkout")
    return path


def missing(name: str) -> list[Problem]:
    """What keeps one who needs this binary from being ready; empty when nothing."""
    try:
        binary(name)
    except HostError as error:
        return [error.problem]
    return []


def digest(name: str) -> str:
    """sha256 of a binary, hex; part of what makes two runs comparable."""
    path = binary(name)
    return _digest(path, path.stat().st_mtime_ns)


@cache
def _digest(path: Path, _written_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
