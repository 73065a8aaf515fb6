"""Which images a file or directory holds: an OCI layout, an archive of one, or what ``docker save`` writes.

Formats: OCI image layout and image index (opencontainers/image-spec v1.0, image-layout.md and image-index.md), and
Docker's manifest.json (moby, image/tarexport). Only the JSON documents are read here; layers are skopeo's and umoci's
(`virtoll.images.unpack`). An image is known by its id, the digest of its configuration: that lists the digests of the
unpacked layers, so that an image which is packed anew, or compressed otherwise, is still the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from virtoll.errors import HostError
from virtoll.images.documents import Archive, Directory, Documents
from virtoll.images.source import Source

Format = Literal["layout", "oci-archive", "docker-archive"]
Json = Mapping[str, Any]

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")  # annotations
_DEFAULT_REGISTRIES = ("docker.io/library/", "docker.io/", "localhost/")  # what tools put before a user's own names
_ZSTD = b"\x28\xb5\x2f\xfd"  # its first bytes (RFC 8878, section 3.1.1)
_MOST_DEPTH = 4  # of an index in an index
_SHOWN = 20


@dataclass(frozen=True)
class Found:
    """The image that a source names, and where in it it lies."""

    format: Format
    path: Path
    id: str  # "sha256:..." of its configuration
    config: Json
    position: int = 0  # docker-archive: which of manifest.json's
    manifest: Json = field(default_factory=dict)  # the others: the descriptor of its manifest
    layers: tuple[Json, ...] = ()  # the others: their descriptors


@dataclass(frozen=True)
class _Entry:
    """One of the images that there are to choose from."""

    names: tuple[str, ...]
    key: str  # the same for the same image
    position: int = 0
    content: Json = field(default_factory=dict)


def find(source: Source, architecture: str) -> Found:
    """The image that ``source`` names, for ``architecture`` ("amd64") where it comes for several.

    HostError: nothing there, no image, damaged, no such tag, several of which none is named, another architecture.
    """
    where = str(source)
    try:
        if source.path.is_dir():
            documents: Documents = Directory(source.path, where)
        elif source.path.is_file():
            _expect_no_zstd(source.path, where)
            documents = Archive(source.path, where)
        else:
            raise HostError("there is no such image", where=where, remedy="correct image = ... in the study file")
        found = _found(documents, source, architecture)
    except OSError as error:
        raise HostError(f"cannot be read: {error.strerror}", where=where, remedy="see who may read it") from error
    _expect(found.config, architecture, where)
    return found


def _expect_no_zstd(path: Path, where: str) -> None:
    """Its layers may be packed so; an archive as a whole is unpacked by tarfile, which does not know it."""
    with path.open("rb") as file:
        if file.read(len(_ZSTD)) == _ZSTD:
            what = "it is packed by zstd, which archives are not unpacked from here"
            raise HostError(what, where=where, remedy=f"unpack it (zstd -d {path.name}), or pack it by gzip")


def _found(documents: Documents, source: Source, architecture: str) -> Found:
    path = source.path
    if path.is_file() and documents.get("manifest.json") is not None:
        entry = _chosen(_docker_entries(documents), source)
        data = documents.read(entry.content["Config"])
        config = _mapping(documents, documents.parsed(entry.content["Config"], data), "the configuration")
        return Found("docker-archive", path, _digest(data), config, entry.position)
    if documents.get("index.json") is None and _is_of_docker_save(documents):
        raise HostError(
            "is what docker save writes, unpacked",
            where=documents.where,
            remedy=f"pack it again: tar -C {path} -cf {path.name}.tar .",
        )
    if documents.get("index.json") is None:
        raise HostError(
            "is no image: it holds neither index.json (OCI) nor manifest.json (docker save)",
            where=documents.where,
            remedy='write "dir:PATH" for a directory of files; docker save and skopeo copy write images',
        )
    entry = _chosen(_oci_entries(documents), source)
    descriptor = _resolved(documents, entry.content, architecture)
    text = documents.blob(descriptor.get("digest"))
    manifest = _mapping(documents, documents.unambiguous("the manifest", text), "the manifest")
    config_descriptor = _mapping(documents, manifest.get("config"), "config in the manifest")
    data = documents.blob(config_descriptor.get("digest"))
    return Found(
        "layout" if path.is_dir() else "oci-archive",
        path,
        _digest(data),
        _mapping(documents, documents.parsed("the configuration", data), "the configuration"),
        manifest=descriptor,
        layers=tuple(_mappings(documents, manifest.get("layers"), "layers in the manifest")),
    )


def _is_of_docker_save(documents: Documents) -> bool:
    """Whether it holds a list of images: others', as of `skopeo copy dir:` or a web site, say another thing."""
    return documents.get("manifest.json") is not None and isinstance(documents.json("manifest.json"), list)


def _docker_entries(documents: Documents) -> list[_Entry]:
    found = []
    for position, entry in enumerate(_mappings(documents, documents.json("manifest.json"), "manifest.json")):
        if not isinstance(entry.get("Config"), str):
            documents.refuse("manifest.json names no configuration")
        found.append(_Entry(_words(entry.get("RepoTags")), entry["Config"], position, entry))
    return found


def _oci_entries(documents: Documents) -> list[_Entry]:
    index = _mapping(documents, documents.json("index.json"), "index.json")
    return [
        _Entry(_words([notes.get(name) for name in _NAMES]), str(descriptor.get("digest")), 0, descriptor)
        for descriptor in _mappings(documents, index.get("manifests"), "manifests in index.json")
        if not _is_attestation(notes := _annotations(descriptor))
    ]


def _chosen(entries: Sequence[_Entry], source: Source) -> _Entry:
    """The one image that is meant."""
    where = str(source)
    tags = sorted({name for entry in entries for name in entry.names})
    shown = ", ".join(tags[:_SHOWN]) + (f" and {len(tags) - _SHOWN} more" if len(tags) > _SHOWN else "")
    matching = [entry for entry in entries if not source.tag or _fits(entry.names, source.tag)]
    if not entries:
        raise HostError("it holds no image", where=where, remedy="save or copy the image again")
    if not matching:
        raise HostError(
            f"it holds no image {source.tag}",
            where=where,
            remedy=f"there are: {shown}" if tags else "leave the tag away",
        )
    if len({entry.key for entry in matching}) > 1:
        raise HostError(
            f"it holds {len(matching)} images{f' that {source.tag} fits' if source.tag else ''}",
            where=where,
            remedy=f'name one: image = "oci:{source.path.name}:TAG"; there are: {shown}'
            if tags
            else "they have no names: save the one that is meant alone",
        )
    return matching[0]


def _fits(names: Sequence[str], tag: str) -> bool:
    """Whether an image of these names is meant by ``tag``: all of a name, or what is after its colon."""
    short = [name.removeprefix(prefix) for name in names for prefix in ("", *_DEFAULT_REGISTRIES)]
    return tag in short or tag in [name.rpartition(":")[2] for name in names]


def _resolved(documents: Documents, descriptor: Json, architecture: str) -> Json:
    """The descriptor of a manifest, found in the indexes that ``descriptor`` may be one of."""
    for _ in range(_MOST_DEPTH):
        if descriptor.get("mediaType") not in _INDEXES:
            return descriptor
        data = documents.blob(descriptor.get("digest"))
        index = _mapping(documents, documents.unambiguous("an index", data), "an index")
        offered = {
            _platform(one): one
            for one in reversed(_mappings(documents, index.get("manifests"), "manifests in an index"))
            if not _is_attestation(_annotations(one))
        }
        wanted = offered.get(f"linux/{architecture}", offered.get(""))
        if wanted is None:
            raise _other_machine(" and ".join(sorted(offered)) or "no machine", architecture, documents.where)
        descriptor = wanted
    return documents.refuse("indexes in indexes in indexes")


def _expect(config: Json, architecture: str, where: str) -> None:
    system, machine = config.get("os", "linux"), config.get("architecture", architecture)
    if (system, machine) != ("linux", architecture):
        raise _other_machine(f"{system}/{machine}", architecture, where)


def _other_machine(built_for: str, architecture: str, where: str) -> HostError:
    return HostError(
        f"the image is for {built_for[:200]}, and this machine is linux/{architecture}",
        where=where,
        remedy=f"build or pull it with --platform linux/{architecture}",
    )


def _platform(descriptor: Json) -> str:
    platform = descriptor.get("platform")
    return f"{platform.get('os')}/{platform.get('architecture')}" if isinstance(platform, dict) else ""


def _annotations(descriptor: Json) -> Json:
    notes = descriptor.get("annotations")
    return notes if isinstance(notes, dict) else {}


def _is_attestation(annotations: Json) -> bool:
    """Whether it is what buildx says about another image."""
    return "vnd.docker.reference.type" in annotations


def _words(values: object) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value) if isinstance(values, list) else ()


def _mapping(documents: Documents, value: object, what: str) -> Json:
    if not isinstance(value, dict):
        documents.refuse(f"{what} is missing, or no object")
    return value


def _mappings(documents: Documents, value: object, what: str) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        documents.refuse(f"{what}: a list of objects is missing")
    return value


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
