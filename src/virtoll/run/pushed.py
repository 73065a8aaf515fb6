"""What performs elsewhere, as one tar: virtoll's package, and of what it depends on what performing imports.

Always of the same bytes for the same files, so that its sha256 names it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from virtoll.errors import HostError

# Neither scipy nor what draws: the half that analyses stays here.
PACKAGES = (
    *("annotated_types", "numpy", "pyarrow", "pydantic", "pydantic_core", "rich", "typing_extensions"),
    *("typing_inspection", "virtoll"),
)
_BESIDE = "{}.libs"  # a wheel's own libraries (auditwheel)
# Caches, tests, what others compile against, and what pyarrow has for protocols that we do not speak.
_LEFT_OUT = (
    *("__pycache__", "tests", "include", "*.pyi", "*.pyx", "*.pxi", "*.pxd", "*.h"),
    *("libarrow_flight*", "libarrow_python_flight*", "_flight*", "libarrow_s3*", "_s3fs*"),
)
# Of two that are the same library the one that the linker asks for.
_SAME_LIBRARY = "*.so.*.*.*"


@dataclass(frozen=True)
class Pushed:
    """The tar, by its content; `write` makes it again."""

    digest: str  # sha256, hex
    size: int  # bytes

    @classmethod
    def of_here(cls) -> Pushed:
        """Of what is installed here. HostError where something of it is missing."""
        sha256, size = hashlib.sha256(), 0

        def take(piece: bytes) -> None:
            nonlocal size
            sha256.update(piece)
            size += len(piece)

        write(take)
        return cls(sha256.hexdigest(), size)

    @property
    def python(self) -> str:
        """The Python that it is for, as `virtoll.run.boot` compares it."""
        return f"{sys.version_info.major}.{sys.version_info.minor} {os.uname().machine}"


class _Sink:
    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take

    def write(self, piece: bytes) -> int:
        self._take(piece)
        return len(piece)


def write(take: Callable[[bytes], object]) -> None:
    """Give it, piece by piece."""
    sink = cast("tarfile._Fileobj", _Sink(take))
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1024**2) as archive:
        for name, path in files():
            entry = tarfile.TarInfo(name)
            with path.open("rb") as file:
                entry.size = os.fstat(file.fileno()).st_size
                entry.mode = 0o755 if os.fstat(file.fileno()).st_mode & 0o100 else 0o644
                archive.addfile(entry, file)


def files() -> Iterator[tuple[str, Path]]:
    """Each file by its name in the tar, sorted."""
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise HostError(f"{package} is not installed here", remedy="install virtoll anew, from its wheel")
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            yield origin.name, origin
            continue
        beside = origin.parent.with_name(_BESIDE.format(package))
        for top in (origin.parent, beside):
            yield from ((str(path.relative_to(top.parent)), path) for path in _below(top))


def _below(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if any(fnmatch(path.name, pattern) for pattern in _LEFT_OUT) or _is_the_same(path):
            continue
        if path.is_dir():
            yield from _below(path)
        elif path.is_file():
            yield path


def _is_the_same(path: Path) -> bool:
    """Whether it is a library that lies there under a shorter name, too."""
    return fnmatch(path.name, _SAME_LIBRARY) and path.with_name(path.name.rsplit(".", 2)[0]).exists()
