"""Where a root filesystem of the user's comes from, as the study file names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_RIGHT = 'write "oci:PATH", "oci:PATH:TAG" or "dir:PATH"'


@dataclass(frozen=True)
class Source:
    """An image in a file or directory of this machine. Nothing is fetched from anywhere.

    ``oci:PATH``: an OCI layout (a directory), an archive of one (tar), or what ``docker save`` writes; either tar may
    be compressed by gzip. ``oci:PATH:TAG`` where it holds several. ``dir:PATH``: a directory as it is. As in skopeo's
    names, a path holds no colon.
    """

    kind: Literal["oci", "dir"]
    path: Path
    tag: str = ""  # "": the only one there is

    @classmethod
    def parse(cls, text: str, base: Path) -> Source:
        """The source of ``text``, whose path is relative to ``base``; ValueError says what would be right.

        Whether anything is there is not looked at: a study file can be read on another machine.
        """
        kind, _, rest = text.partition(":")
        path, _, tag = rest.partition(":") if kind == "oci" else (rest, "", "")
        if kind not in ("oci", "dir") or not path or "\0" in text:
            raise ValueError(f"{text!r} is no image: {_RIGHT}")
        return cls("oci" if kind == "oci" else "dir", base / path, tag)

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}{f':{self.tag}' if self.tag else ''}"
