"""The seam to a machine. A host is three verbs (after pyinfra): run, spawn, put (and read, its inverse)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Completed:
    """A finished command. ``stdout`` and ``stderr`` are bytes as the command wrote them."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """stdout as stripped text."""
        return self.stdout.decode(errors="replace").strip()


@dataclass(frozen=True)
class Confinement:
    """Where a new process starts: before its exec, so that no instant of its life is unaccounted."""

    cgroup_procs: tuple[Path, ...] = ()  # every cgroup.procs file to join (one on v2, one a controller on v1)
    netns: str | None = None  # a named network namespace (/run/netns/NAME)
    cpus: frozenset[int] | None = None  # CPU affinity; None inherits


class Host(Protocol):
    """A machine. ``where`` names it in errors (``localhost``, ``ssh://...``)."""

    where: str

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        confinement: Confinement | None = None,
    ) -> Completed:
        """Run a command to its end. CommandError on time-out, and on a non-zero exit when ``check``."""
        ...

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.DEVNULL,
        stderr: int | None = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        confinement: Confinement | None = None,
        pass_fds: Sequence[int] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own and return at once; the caller owns and ends it."""
        ...

    def within(self, group: tuple[Path, ...]) -> Host:
        """The same machine; a command that is told no cgroup of its own joins these cgroup.procs files."""
        ...

    def put(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole (missing parent directories are made)."""
        ...

    def read(self, path: Path) -> bytes:
        """A file's bytes; HostError where it cannot be read."""
        ...
