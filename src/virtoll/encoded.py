"""What ffmpeg makes once for whoever sends or serves it again and again: an entry of the cache.

    CACHE/<kind>/
      <name>-<digest12>/    files  manifest.json

It runs in an image of Debian's package (`virtoll.images.rootfs`), so this machine needs none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.images.cached import cached

PACKAGES = ("ffmpeg",)
MANIFEST = "manifest.json"
# Without -xerror it ends with 0 where the end of a film finds no room on the disk.
QUIET = ("ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-xerror", "-fflags", "+bitexact")
EXACT = ("-map_metadata", "-1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact")
WORK = "/mnt"  # inside the image of ffmpeg; a file system is mounted there for ffmpeg alone, and no path made
# In namespaces of its own: the mount goes with it, and it reaches nobody.
_ENTER = ("unshare", "--mount", "--net", "--", "sh", "-e", "-c")
_SCRIPT = 'mount --bind "$1" "$2$3"; root=$2; shift 3; exec chroot "$root" "$@"'


def entry_of(kind: str, name: str, inputs: Mapping[str, object]) -> Path:
    """Where what comes of these inputs, and of this ffmpeg, lies or will lie."""
    told = {"packages": PACKAGES, "suite": rootfs.SUITE, **inputs}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return cache_directory() / kind / f"{name}-{digest[:12]}"


def file_of(what: object, entry: Path, name: str) -> Path:
    """A file of what was made. HostError where it was not made."""
    path = entry / name
    if not path.is_file():
        raise HostError(f"{what} was not made", where=str(path), remedy="run a study that asks for it, as root")
    return path


def made(what: object, entry: Path, make: Callable[[Path], None], digests: Callable[[], Mapping[str, str]]) -> Path:
    """The entry, from the cache where it is there already; else ``make`` fills it. ``digests``: of its files, by name,
    as its manifest has them.

    HostError: it cannot be written, or what was made has been written to or removed; and all that ``make`` raises.
    """
    try:
        cached(entry, make)
    except OSError as error:
        where, remedy = error.filename or str(entry), "see that the disk has room; VIRTOLL_CACHE names another place"
        raise HostError(f"{what} cannot be written: {error.strerror}", where=where, remedy=remedy) from error
    try:
        told = ", ".join(name for name, digest in digests().items() if digest != sha256_of(entry / name))
    except (OSError, *_NO_MANIFEST) as error:
        told = f"{type(error).__name__}: {error}"
    if told:
        words = f"{what} is not as it was made: {told}"
        raise HostError(words, where=str(entry), remedy=f"rm -r {entry}, and the next run makes it anew")
    return entry


_NO_MANIFEST = (ValueError, LookupError, TypeError, AttributeError)  # what reading one raises that was written to


def manifest_of(entry: Path) -> dict[str, Any]:
    """What was noted of it as it was made."""
    found: dict[str, Any] = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    return found


def begun(host: Host, what: object, place: Path, progress: Callable[[str], None]) -> Image:
    """An empty place for what is made, and the image of ffmpeg."""
    image = rootfs.build(host, "films", PACKAGES, progress)
    place.mkdir()
    progress(f"encoding {what} (once)")
    return image


def noted(kind: str, what: object, place: Path, image: Image, told: Mapping[str, object]) -> None:
    """Write the manifest of what was made."""
    made_by = rootfs.manifest(image)["versions"].get("ffmpeg")
    text = json.dumps({kind: str(what), "ffmpeg": made_by, **told}, indent=2)
    (place / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_inside(host: Host, image: Image, place: Path, command: Sequence[str], *, what: object, timeout_s: float) -> str:
    """What a command in the image of ffmpeg prints, which finds ``place`` of this machine at `WORK`. HostError with
    what it says where it fails: ``what`` cannot be made.
    """
    argv = [*_ENTER, _SCRIPT, "sh", str(place), str(image.rootfs), WORK, *command]
    done = host.run(argv, timeout_s=timeout_s, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-1000:]
        raise HostError(f"{what} cannot be made: {said}", where=str(place), remedy="see that the disk has room")
    return done.text
