"""The client in Go that `bench.confer` holds ours against: its source and its lock (``pion/``), and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.images import go
from virtoll.images.base import GO, GoProgram

_HERE = Path(__file__).parent / "pion"
_SHA256 = "ddceeb522373320fa4f69efa715c2f1e456668f6c8c82eb0e53fc4c55b81dab9"


def program() -> GoProgram:
    """What is built, and what it must be."""
    modules, sums, source = (
        _HERE.joinpath(name).read_text(encoding="utf-8") for name in ("go.mod", "go.sum", "main.go")
    )
    return GoProgram(".", "pion-client", *GO, modules, sums, _SHA256, source)


def built(host: Host, progress: Callable[[str], None]) -> Path:
    """Its file, built where it is missing. HostError: it cannot be, or is not what was locked."""
    wanted = program()
    return go.laid(host, [wanted], progress)[wanted.inside]
