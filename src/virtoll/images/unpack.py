"""An image's layers become a directory tree: skopeo makes an OCI layout of whatever it came in, umoci unpacks that.

Both are kept tools that know the formats' corners: whiteouts, opaque directories, links that lead out. Neither sees the
network (they run in an empty network namespace), a policy, or anything of the user's but the image; what skopeo notes
of the blobs that it met, as root in /var/lib/containers, lies here with what is only needed meanwhile. skopeo compares
every blob with its digest, and umoci every unpacked layer with the configuration's. What the layers unpack to is
counted before umoci writes anything.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import posixpath
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Host
from virtoll.images.archive import Found, Json
from virtoll.images.bounds import MOST_BYTES, NAMES, Bounds, reading, tar_members
from virtoll.images.cached import remove
from virtoll.images.documents import Directory, blob_path

PACKAGES = {"skopeo": "skopeo", "umoci": "umoci"}  # program, Debian package

_TAG = "image"  # what the one image of our own layouts is called
_LIMIT_S = 1800.0
_BLOCK_BYTES = 4096
_COPY_BYTES = 1024**2
_COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
# How all layers are packed that skopeo has copied, and umoci reads. One that only begins so, as one of no packing may,
# is left as it is: to us it would be another archive than to umoci, which goes by the name alone.
_GZIP = ".tar+gzip"
_WHITEOUTS_OF_NO_NAME = (".wh.", ".wh..", ".wh...")  # ".wh." and a name: umoci 0.4.7 follows ".." out
_ALONE = ("unshare", "--net", "--")
# To skopeo we are an ordinary user: only such a one can say, by XDG_DATA_HOME, where it keeps its notes. Podman sets
# this where it makes somebody root of a user namespace (containers/image, internal/rootless); nothing else of the copy
# goes by it.
_NOT_ROOT = {"_CONTAINERS_ROOTLESS_UID": "1"}

# What the tools' words mean to a user.
_MEANINGS = (
    (r"[Nn]o space left on device", "the disk is full", "free some, or set VIRTOLL_CACHE to a directory with room"),
    (
        r"[Dd]igest did not match|[Dd]iff_?ID|[Dd]oes not match|verifier|verification|checksum",
        "a layer is not what the image says it is",
        "save or copy the image again",
    ),
    (r"unexpected EOF|corrupt|invalid (tar )?header", "a layer is damaged or cut off", "save or copy the image again"),
    (r"[Nn]o such file|not exist|not found", "a part of the image is missing", "save or copy the image again"),
)


def unpack(host: Host, found: Found, work: Path, rootfs: Path, where: str) -> None:
    """Make ``rootfs`` of the image; ``work`` is a directory for what is only needed meanwhile, removed at the end.

    As root, owners, modes, times, hard links, setuid bits and attributes are the layers'. HostError says in a sentence
    what is wrong with the image, or with the disk.
    """
    work.mkdir()
    layout = work / "layout"
    command = ["skopeo", "--insecure-policy", "--tmpdir", str(work), "copy", "--quiet", "--format", "oci"]
    command += ["--dest-compress", "--dest-compress-format", "gzip", "--dest-compress-level", "1"]  # umoci's only one
    notes = {**_NOT_ROOT, "XDG_DATA_HOME": str(work)}
    _run(host, [*command, _named(found, work, where), f"oci:{layout}:{_TAG}"], where, notes)
    manifest = _copied(layout, found, where)
    _expect_room(_measured(layout, manifest, where), rootfs.parent, where)
    rootfs.mkdir()
    _run(host, ["umoci", "raw", "unpack", "--image", f"{layout}:{_TAG}", str(rootfs)], where)
    Bounds(where).count_tree(rootfs)  # as another reader has it than counted before
    remove(work)


def _named(found: Found, work: Path, where: str) -> str:
    """The image as skopeo names it. The path is one of ours: in skopeo's names a colon is special."""
    if found.format == "docker-archive":
        plain = work / "archive"
        _decompress(found.path, plain, where)
        return f"docker-archive:{plain}:@{found.position}"
    chosen = work / "chosen"
    chosen.mkdir()
    (chosen / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
    descriptor = {**found.manifest, "annotations": {"org.opencontainers.image.ref.name": _TAG}}
    index = json.dumps({"schemaVersion": 2, "manifests": [descriptor]})
    (chosen / "index.json").write_text(index, encoding="utf-8")
    if found.format == "layout":
        (chosen / "blobs").symlink_to((found.path / "blobs").absolute())
    else:
        _extract(found, chosen, where)
    return f"oci:{chosen}:{_TAG}"


def _decompress(path: Path, plain: Path, where: str) -> None:
    """``path`` as ``plain``, by a link where it is not compressed: skopeo 1.9.3 stumbles over what is."""
    with path.open("rb") as file:
        head = file.read(6)
    opened = next((opened for magic, opened in _COMPRESSED.items() if head.startswith(magic)), None)
    if opened is None:
        plain.symlink_to(path.absolute())
        return
    room = shutil.disk_usage(plain.parent).free
    with (
        reading(where),
        opened(path, "rb") as file,
        plain.open("wb") as target,
    ):  # its tar members were counted, what follows was not
        while chunk := file.read(_COPY_BYTES):
            room -= target.write(chunk)
            if room < 0 or target.tell() > MOST_BYTES:
                raise _no_room(target.tell(), plain.parent, where)


def _extract(found: Found, chosen: Path, where: str) -> None:
    """The blobs of one image of an archive, and no other file of it; skopeo says what is missing or wrong."""
    (chosen / "blobs/sha256").mkdir(parents=True)
    digests = [found.manifest.get("digest"), found.id, *(layer.get("digest") for layer in found.layers)]
    wanted = {blob_path(digest, where) for digest in digests}
    with tar_members(found.path, where) as (archive, members):
        for member in members:
            path = member.name.removeprefix("./")
            if path in wanted and member.isreg() and (file := archive.extractfile(member)) is not None:
                with (chosen / path).open("wb") as blob:
                    shutil.copyfileobj(file, blob, _COPY_BYTES)


def _copied(layout: Path, found: Found, where: str) -> Json:
    """The manifest of skopeo's copy. HostError where that is of other layers than the image's id stands for: of two
    files of one name in an archive skopeo takes the first, and whatever a link leads to.
    """
    documents = Directory(layout, where)
    manifest: Json = documents.json(blob_path(documents.json("index.json")["manifests"][0]["digest"], where))
    config = documents.read(blob_path(manifest["config"]["digest"], where))
    if _layers_of(documents.parsed("the configuration", config)) != _layers_of(found.config):
        documents.refuse("it holds two configurations, or two manifests, under one name")
    return manifest


def _layers_of(config: Json) -> Any:
    """The digests of the unpacked layers: umoci compares each with what it unpacks."""
    root = config.get("rootfs")
    return (root.get("diff_ids") if isinstance(root, dict) else None) or []


def _measured(layout: Path, manifest: Json, where: str) -> Bounds:
    """What the layers unpack to, at most: a later layer may remove or replace what an earlier one holds."""
    bounds = Bounds(where)
    for layer in manifest.get("layers") or ():
        place = f"{where}, layer {layer['digest']}"
        if not str(layer.get("mediaType")).endswith(_GZIP):
            what = "it is packed otherwise than it says"
            raise HostError(what, where=place, remedy="build the image again; a stranger's: do not use it")
        with tar_members(layout / blob_path(layer["digest"], where), place, mode="r:gz") as (archive, members):
            for member in members:
                bounds.count_member(archive, member)
                names = (member.name, *(member.pax_headers.get(name, "") for name in NAMES))
                if any(posixpath.basename(posixpath.normpath(name)) in _WHITEOUTS_OF_NO_NAME for name in names):
                    raise HostError(
                        f"a layer removes what is no file of it: {member.name[:200]}",
                        where=where,
                        remedy="do not use it",
                    )
    return bounds


def _expect_room(bounds: Bounds, place: Path, where: str) -> None:
    needed = bounds.bytes + bounds.files * _BLOCK_BYTES
    free = shutil.disk_usage(place).free
    if needed > free:
        raise _no_room(needed, place, where)


def _no_room(needed_bytes: int, place: Path, where: str) -> HostError:
    free = shutil.disk_usage(place).free
    return HostError(
        f"the image needs {needed_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free at {place.parent}",
        where=where,
        remedy="free some, or set VIRTOLL_CACHE to a directory with room",
    )


def _run(host: Host, argv: list[str], where: str, env: Mapping[str, str] | None = None) -> None:
    done = host.run([*_ALONE, *argv], timeout_s=_LIMIT_S, check=False, env={"LC_ALL": "C", **(env or {})})
    if done.returncode == 0:
        return
    said = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
    last = said.splitlines()[-1] if said else f"exit {done.returncode}"
    for pattern, meaning, remedy in _MEANINGS:
        if re.search(pattern, said):
            raise HostError(f"{meaning} ({argv[0]}: {last[:500]})", where=where, remedy=remedy)
    raise CommandError(
        f"{argv[0]} cannot use the image: {last[:500]}", where=where, remedy="save or copy the image again"
    )
