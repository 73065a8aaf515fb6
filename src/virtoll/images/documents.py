"""The JSON documents of an image in a file or directory: small, bounded, and held against their digests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NoReturn

from virtoll import strict_json
from virtoll.errors import HostError
from virtoll.images.bounds import MOST_METADATA_BYTES, Bounds, tar_members

_MOST_DOCUMENTS_BYTES = 64 * 1024**2  # all of an archive together
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_AGAIN = "save or copy the image again"


class Documents:
    """The JSON documents of a source, by their paths in it."""

    def __init__(self, where: str) -> None:
        self.where = where

    def get(self, path: str) -> bytes | None:
        """A document, or None where there is none of that name."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """A document that must be there."""
        data = self.get(path)
        if data is None:
            self.refuse(f"it lacks {path[:100]}: a part is missing")
        return data

    def json(self, path: str) -> Any:
        """What a document says that must be there, in which nobody else reads another thing."""
        return self.unambiguous(path, self.read(path))

    def blob(self, digest: object) -> bytes:
        """The document that a digest stands for."""
        path = blob_path(digest, self.where)
        data = self.read(path)
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            self.refuse(f"{path} is not what its digest says")
        return data

    def parsed(self, path: str, data: bytes) -> Any:
        """The JSON of a document that was read."""
        try:
            return strict_json.loads(data)
        except ValueError as error:
            self.refuse(f"{path[:100]} is no JSON: {error}")

    def unambiguous(self, path: str, data: bytes) -> Any:
        """The same, of what skopeo and umoci read, too: to Go's reader, theirs, "Layers" is "layers", and the last one
        counts. Of two, what is looked at here would not be what is unpacked.
        """

        def each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
            if len({name.casefold() for name, _ in members}) < len(members):
                self.refuse(f"{path[:100]} says one thing twice")
            return dict(members)

        found = self.parsed(path, data)
        json.loads(data, object_pairs_hook=each_once)
        return found

    def refuse(self, what: str) -> NoReturn:
        """HostError: this is no image that can be used."""
        raise HostError(f"the image is damaged: {what}", where=self.where, remedy=_AGAIN)


class Directory(Documents):
    """Of an OCI layout."""

    def __init__(self, path: Path, where: str) -> None:
        super().__init__(where)
        self._path = path

    def get(self, path: str) -> bytes | None:
        """See `Documents.get`."""
        try:
            descriptor = os.open(self._path / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            data = file.read(MOST_METADATA_BYTES + 1)
        if len(data) > MOST_METADATA_BYTES:
            self.refuse(f"{path} is larger than {MOST_METADATA_BYTES} B")
        return data


class Archive(Documents):
    """Of a tar archive, which is read once, from its beginning to its end: it may be compressed."""

    def __init__(self, path: Path, where: str) -> None:
        super().__init__(where)
        self._kept: dict[str, bytes] = {}
        kept_bytes, bounds = 0, Bounds(where)
        with tar_members(path, where) as (archive, members):
            for member in members:
                bounds.count_member(archive, member)
                if not member.isreg() or not 0 < member.size <= MOST_METADATA_BYTES:
                    continue
                file = archive.extractfile(member)
                if file is None or (head := file.read(1)) not in (b"{", b"["):
                    continue
                data = head + file.read()
                kept_bytes += len(data)
                if kept_bytes > _MOST_DOCUMENTS_BYTES:
                    self.refuse(f"it holds more than {_MOST_DOCUMENTS_BYTES} B of JSON")
                self._kept[member.name.removeprefix("./")] = data

    def get(self, path: str) -> bytes | None:
        """See `Documents.get`."""
        return self._kept.get(path)


def blob_path(digest: object, where: str) -> str:
    """Where the blob of a digest lies in a layout."""
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise HostError(f"the image is damaged: {str(digest)[:100]!r} is no sha256 digest", where=where, remedy=_AGAIN)
    return f"blobs/sha256/{found[1]}"
