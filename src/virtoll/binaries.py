"""The static native binaries that travel with the package (src/virtoll/native/, filled by `make`)."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from virtoll.errors import HostError

_DIRECTORY = Path(__file__).parent / "native"


def binary(name: str) -> Path:
    """Path of ``virtoll-agent`` or ``virtoll-load``; HostError when the package was built without it."""
    path = _DIRECTORY / name
    if not path.is_file():
        raise HostError(f"{name} is not built", where=str(path), remedy="run `make` in the checkout")
    return path


@cache
def digest(name: str) -> str:
    """sha256 of a binary, hex; part of what makes two runs comparable."""
    return hashlib.sha256(binary(name).read_bytes()).hexdigest()
