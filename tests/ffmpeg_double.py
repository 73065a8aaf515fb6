"""In the place of ffmpeg, and of its image: footage and voices that are made of bytes of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from virtoll import encoded
from virtoll.hosts.base import Completed
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image


def place_of(argv: Sequence[str]) -> Path:
    """Where a command of ffmpeg's writes, on this machine."""
    return Path(argv[len(encoded._ENTER) + 2])


class Encoder(LocalHost):
    """Writes these bytes to where the file of this name is to be."""

    def __init__(self, written: bytes, file: str) -> None:
        super().__init__()
        self.written, self.file, self.runs = written, file, 0

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        self.runs += 1
        (place_of(argv) / self.file).write_bytes(self.written)
        return Completed(tuple(argv), 0, b"", b"")


def empty_cache(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """And an image of ffmpeg that is none."""
    monkeypatch.setenv("VIRTOLL_CACHE", str(directory))
    monkeypatch.setattr(rootfs, "build", lambda *_: Image("films", "sha256:0", directory / "rootfs"))
    monkeypatch.setattr(rootfs, "manifest", lambda _image: {"versions": {"ffmpeg": "7:5.1"}})
