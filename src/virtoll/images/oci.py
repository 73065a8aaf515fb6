"""A root filesystem from an image of the user's own, kept as those of Debian packages are (`virtoll.images.rootfs`).

    CACHE/images/
      unpacked-<digest12>/    the image's files, made fit for every platform (`virtoll.images.tree`); its configuration
      <digest12>/             the same files by hard link, plus virtoll's own

The digest is over the image's id (that of its configuration, which names every layer's digest) or, for a directory,
over all that it holds; over the recipe; and over the agent. Where the image came from is not in it: the same image is
the same, from whichever archive, under whichever name.

Files that a study adds are no matter of the image: the service puts them into an instance when it is deployed
(`agent.put`), as ours do with their configuration. Laid into the image they would be part of its digest, and each
change of a line, or each arm with another one, would cost a copy of the tree, of the disk image and of Docker's, and
make runs incomparable that differ in nothing else; and the image that runs would not be the one that the user built,
which its id says. It costs one request before the service starts, which no window sees.
"""

from __future__ import annotations

import errno
import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.programs import find
from virtoll.images import archive, contents, rootfs, tree
from virtoll.images.base import Image
from virtoll.images.cached import cached
from virtoll.images.config import ImageConfig, parse
from virtoll.images.source import Source
from virtoll.images.unpack import PACKAGES, unpack

RECIPE = 2  # count up when what is done to the user's files changes
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # uname -m, and what images call it
_HAS_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # what is met where another thing was seen a moment before
_SHOWN = 5


def check(host: Host, source: Source) -> list[Problem]:
    """Why `build` could not work, as far as can be seen without its layers. Changes nothing, and reads an archive once:
    no image, damaged, for another machine, or one of several.
    """
    problems = _problems_at_sight(host, source)
    if source.kind == "oci" and source.path.exists():
        try:
            parse(archive.find(source, _architecture()).config, str(source))
        except HostError as error:
            problems.append(error.problem)
    return problems


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _problems_at_sight(host: Host, source: Source) -> list[Problem]:
    problems = []
    if source.kind == "oci":
        problems = [
            Problem(f"{program} is not installed, which unpacks images", host.where, f"apt-get install {package}")
            for program, package in PACKAGES.items()
            if find(program) is None
        ]
    if not source.path.exists():
        problems.append(Problem("there is no such image", str(source), "correct image = ... in the study file"))
    elif source.kind == "dir":
        problems += _directory_problems(source)
    return problems


def build(host: Host, name: str, source: Source, progress: Callable[[str], None]) -> Image:
    """The image of ``source`` with virtoll's own files in it, from the cache where it is there already.

    ``progress`` is told in a line what is being done. HostError says what stands in the way: `check`'s problems, an
    image that is damaged, for another machine, too large, or one of several; a full disk.
    """
    if problems := _problems_at_sight(host, source):
        first = problems[0]
        raise HostError(first.what, where=first.where, remedy=first.remedy)
    identity, found = _identified(source)
    config = ImageConfig() if found is None else parse(found.config, str(source))
    base = _base_digest(identity)

    def make(place: Path) -> None:
        place.mkdir()
        progress(f"image {name}: unpacking {source} (once)")
        if found is None:
            _copy(host, source, place / "rootfs", identity)
        else:
            unpack(host, found, place / "work", place / "rootfs", str(source))
        left_out = tree.make_fit(place / "rootfs", config, str(source))
        for sentence in left_out[:_SHOWN]:
            progress(f"image {name}: left out {sentence}")
        facts = {"kind": source.kind, "id": identity, "config": config.plain(), "left_out": left_out}
        rootfs.write_manifest(place, {**facts, "packages": [], "versions": {}})
        contents.note(place, "rootfs")

    def unpacked() -> Path:
        entry = rootfs.images_directory() / f"unpacked-{base[:12]}"
        if entry.is_dir():
            contents.verify(entry, "rootfs")
            rootfs.expect_made_of(entry, "id", identity)
        return cached(entry, make)

    return rootfs.with_own_files(host, name, base, unpacked, progress)


def image_of(name: str, source: Source) -> Image:
    """The image that a source stands for, whether it was built yet or not. HostError where there is none."""
    if not source.path.exists():
        raise HostError("there is no such image", where=str(source), remedy="put it back")
    return rootfs.image_over(name, _base_digest(_identified(source)[0]))


def _identified(source: Source) -> tuple[str, archive.Found | None]:
    """What tells an image from others: its id, and where it lies in the source; of a directory all that it holds."""
    if source.kind == "dir":
        try:
            return tree.digest(source.path, str(source)), None
        except OSError as error:
            if error.errno not in _HAS_GONE:
                raise
            raise _was_changed(source) from error
    found = archive.find(source, _architecture())
    return found.id, found


def _base_digest(identity: str) -> str:
    return hashlib.sha256(json.dumps({"own": identity, "recipe": RECIPE, "files": tree.FILES}).encode()).hexdigest()


def config_of(image: Image) -> ImageConfig:
    """What a built image asks for; nothing at all where it is one of Debian packages."""
    stored: dict[str, Any] | None = rootfs.manifest(image).get("config")
    return ImageConfig() if stored is None else ImageConfig.stored(stored)


def _directory_problems(source: Source) -> list[Problem]:
    if not source.path.is_dir():
        return [Problem("it is no directory", str(source), f'write "oci:{source.path.name}" for an image in a file')]
    if rootfs.images_directory().resolve().is_relative_to(source.path.resolve()):
        what = f"it holds virtoll's own cache, {rootfs.images_directory()}"
        return [Problem(what, str(source), "name a directory with a root filesystem of the service's own")]
    return []


def _copy(host: Host, source: Source, target: Path, identity: str) -> None:
    """The directory's files, without what is mounted below it."""
    target.mkdir()
    host.run(["cp", "--archive", "--one-file-system", f"{source.path}/.", str(target)], timeout_s=1800)
    if tree.digest(target, str(source)) != identity:
        raise _was_changed(source)


def _was_changed(source: Source) -> HostError:
    remedy = "wait until nobody writes to it, and run again"
    return HostError("it was changed while it was read", where=str(source), remedy=remedy)
