"""Builds root filesystems with mmdebstrap and keeps them by content, in two levels.

    CACHE/images/
      bootstrap-<digest12>/   Debian packages, made by mmdebstrap (tens of seconds, needs a mirror): the essential ones
                              once, and all other sets upon a copy of these
      <digest12>/             the same files by hard link, plus virtoll's own (about a second)
        rootfs/  manifest.json  contents

The digest is over what goes in: recipe, suite, architecture, package names, agent. What came out, each package's
version, is in manifest.json. An entry that exists is complete (`cached`), and two builders at once do the work once.
The directories are root's alone, and an entry is held against its list of contents before it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from virtoll import binaries
from virtoll.errors import HostError
from virtoll.hosts import private
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import end_session
from virtoll.hosts.lock import locks
from virtoll.hosts.mountinfo import MOUNTINFO, mount_points
from virtoll.images import contents
from virtoll.images.base import AGENT, MANIFEST, Image
from virtoll.images.cached import cached, remove_forsaken
from virtoll.images.inside import directory as directory_inside
from virtoll.images.tree import FILES

SUITE = "bookworm"
NO_FILES: Mapping[str, Path] = MappingProxyType({})
_DYING_S = 30.0  # for what was killed to be gone
RECIPE = 4  # count up when what is done to the packages changes
# Over a /tmp that is empty gVisor lays one in memory (runsc/boot/vfs.go: mountTmp), where limits.disk holds nothing and
# no sync takes anything anywhere.
_IN_TMP = ".virtoll"
# What is mounted in there (/proc, /sys) ends with it, however that is: nobody could remove the tree otherwise. All of
# its processes end with virtoll: with the first of them, which ends with `unshare`, as that does with us.
_APART = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
# Sections of the manual stay, empty: Java's packages cannot be configured where /usr/share/man/man1 is missing.
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*/*", "/usr/share/info/*", "/usr/share/locale/*")

# What mmdebstrap's words mean to a user, most specific first.
_REMEDIES = (
    (r"No space left on device", "the disk is full: free 1 GB, or set VIRTOLL_CACHE to a directory that has it"),
    (r"Unable to locate package|has no installation candidate", f"Debian {SUITE} has no package of that name"),
    (r"NO_PUBKEY|keyring", "apt-get install debian-archive-keyring"),
    (
        r"resolv|[Uu]nable to connect|Could not connect|Failed to fetch|timed out|Connection",
        "the Debian mirror cannot be reached: check network and proxy (http_proxy), then try again",
    ),
)


def image_of(name: str, packages: Sequence[str]) -> Image:
    """The image a package set stands for, whether it was built yet or not."""
    return image_over(name, _bootstrap_digest(_package_set(packages)))


def image_over(name: str, base_digest: str) -> Image:
    """The same of what has this digest (`with_own_files`)."""
    return _finished(name, base_digest, _own_digests())


def build(
    host: Host,
    name: str,
    packages: Sequence[str],
    progress: Callable[[str], None],
    files: Mapping[str, Path] = NO_FILES,
) -> Image:
    """The image of ``packages`` (Debian names) with the agent in it, from the cache where it is there already.

    ``files`` are laid into it besides: absolute paths inside, and files of the cache, which are linked and never
    written to again. ``progress`` is told in a line what is being done. HostError says what stands in the way: no
    mirror, no disk space, no such package.
    """
    wanted = _package_set(packages)
    return with_own_files(
        host, name, _bootstrap_digest(wanted), lambda: _bootstrapped(host, wanted, progress), progress, files=files
    )


def with_own_files(
    host: Host,
    name: str,
    base_digest: str,
    base: Callable[[], Path],
    progress: Callable[[str], None],
    *,
    files: Mapping[str, Path] = NO_FILES,
) -> Image:
    """The image of the cache entry that ``base`` finds or makes, with virtoll's own files in it, and with ``files``.

    ``base_digest`` is over what that entry is made from; it holds rootfs/ and manifest.json, and is asked for only
    where the image is not in the cache. HostError as of `build`.
    """
    try:
        own = {**_own_digests(), **_digests_of(files)}
        image = _finished(name, base_digest, own)
        private.make(cache_directory(), "images")
        if image.directory.is_dir():
            contents.verify(image.directory, "rootfs")
            expect_made_of(image.directory, "digest", image.digest)
        else:
            entry = base()
            progress(f"image {name}: adding the agent")
            cached(image.directory, lambda place: _assemble(host, image, entry, place, own=own, files=files))
    except OSError as error:
        raise HostError(
            f"the image cannot be written: {error.strerror}",
            where=error.filename or str(images_directory()),
            remedy="virtoll needs about 1 GB there; VIRTOLL_CACHE names another place",
        ) from error
    return image


def manifest(image: Image) -> dict[str, Any]:
    """What an image was made from and what is in it: ``versions`` maps each Debian package to its version."""
    return _manifest_of(image.directory)


def _manifest_of(entry: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    return found


def expect_made_of(entry: Path, key: str, value: str) -> None:
    """HostError where a cache entry is another image's. Its name has twelve digits, and who makes an image to be given
    away can try as many as it takes (2^48) until it would lie where somebody else's does.
    """
    if _manifest_of(entry).get(key) != value:
        raise HostError(
            "another image lies where this one would, by its digest's first twelve digits",
            where=str(entry),
            remedy=f"do not use the other one, if it is a stranger's; rm -r {entry}, and the next run builds it anew",
        )


def _finished(name: str, base_digest: str, own: Mapping[str, Any]) -> Image:
    digest = _digest({"base": base_digest, **own, "recipe": RECIPE})
    return Image(name, digest, images_directory() / digest[:12])


def _own_digests() -> dict[str, Any]:
    return {"agent_sha256": binaries.digest("virtoll-agent"), "in_tmp": _IN_TMP}


def _digests_of(files: Mapping[str, Path]) -> dict[str, Any]:
    """By their places inside; nothing where there are none: the image is then the same as ever."""
    digests: dict[str, str] = {}
    for inside, path in sorted(files.items()):
        with path.open("rb") as file:
            digests[inside] = hashlib.file_digest(file, "sha256").hexdigest()
    return {"files_sha256": digests} if digests else {}


def images_directory() -> Path:
    """Where images are kept."""
    return cache_directory() / "images"


def _package_set(packages: Sequence[str]) -> list[str]:
    return sorted(set(packages))


def _bootstrap_digest(packages: list[str]) -> str:
    inputs = {"recipe": RECIPE, "suite": SUITE, "machine": platform.machine(), "packages": packages}
    return _digest({**inputs, "excluded": _EXCLUDED, "files": FILES})


def _digest(inputs: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _bootstrapped(host: Host, packages: list[str], progress: Callable[[str], None]) -> Path:
    """The cache entry with Debian's packages installed and nothing of virtoll's."""
    entry = images_directory() / f"bootstrap-{_bootstrap_digest(packages)[:12]}"

    def make(place: Path) -> None:
        place.mkdir()
        rootfs = place / "rootfs"
        what = " ".join(packages) or "the essential packages, which all images begin with,"
        progress(f"image: installing {what} from Debian {SUITE} (once)")
        _mmdebstrap(host, _upon(base, packages), rootfs, lock, progress)
        for name, text in FILES.items():
            (rootfs / name).unlink(missing_ok=True)
            host.put(rootfs / name, text.encode())
        write_manifest(place, {"suite": SUITE, "packages": packages, "versions": _versions(host, rootfs)})
        contents.note(place, "rootfs")

    if entry.is_dir():
        contents.verify(entry, "rootfs")
        return entry
    base = _bootstrapped(host, [], progress) if packages else None
    with _alone(images_directory() / "mmdebstrap.lock", progress) as lock:
        _unmounted(host, images_directory())
        return cached(entry, make)


def remove_unfinished(host: Host) -> list[str]:
    """Remove what killed makers left in the cache (`remove_forsaken`), when what a killed virtoll was building with has
    ended, which holds a lock of its own: all of it dies with virtoll, and takes its moment for that.
    """
    images = images_directory()
    if not images.is_dir():
        return remove_forsaken(host)
    with (images / "mmdebstrap.lock").open("a") as lock:
        until_s = time.monotonic() + _DYING_S
        while not (is_alone := locks(lock.fileno())) and time.monotonic() < until_s:
            time.sleep(0.05)
        if is_alone:
            _unmounted(host, images)
        return remove_forsaken(host)


def _unmounted(host: Host, directory: Path) -> None:
    """Take away what an older virtoll's build, which was killed, left mounted there: no tree could be removed. (Nobody
    else builds; and today's builds mount where nobody sees it.)
    """
    found = mount_points(host.read(Path(MOUNTINFO)))
    for path in sorted((path for path in found if path.startswith(f"{directory}/.bootstrap-")), reverse=True):
        host.run(["umount", "--lazy", "--", path], check=False)


@contextmanager
def _alone(path: Path, progress: Callable[[str], None]) -> Iterator[int]:
    """Hold a lock; yields its descriptor. A child given it holds the lock too, even when this process is killed."""
    with path.open("w", encoding="utf-8") as file:
        if not locks(file.fileno()):
            progress("image: waiting for another virtoll that is building one")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _upon(base: Path | None, packages: list[str]) -> list[str]:
    """What mmdebstrap is told: to begin with the essential packages, or to install more into a copy of an entry that
    has them, brought up to date (mmdebstrap(1), EXAMPLES: "re-use a chroot"). The trees are the same: it unpacks and
    configures the essential ones first in any case, and then has `apt-get` install the others, as is done here.
    """
    if base is None:
        return ["--variant=essential"]
    apt_get = 'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --yes -oDPkg::Chroot-Directory="$1"'
    wanted = shlex.join(packages)
    return [
        "--variant=custom",
        f'--setup-hook=cp -a --remove-destination {shlex.quote(str(base / "rootfs"))}/. "$1"',
        f"--customize-hook={apt_get} dist-upgrade && {apt_get} install -- {wanted}",
    ]


def _mmdebstrap(host: Host, begun: list[str], rootfs: Path, lock: int, progress: Callable[[str], None]) -> None:
    argv = [
        "mmdebstrap",
        "--mode=root",
        "--format=directory",
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED),
        *begun,
        SUITE,
        str(rootfs),
    ]
    if shutil.which(argv[0]) is None:
        raise HostError("mmdebstrap is not installed", where=host.where, remedy="apt-get install mmdebstrap")
    process = host.spawn([*_APART, *argv], stderr=subprocess.PIPE, pass_fds=(lock,), env={"LC_ALL": "C"})
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line.decode(errors="replace").rstrip())
            if step := _step(said[-1]):
                progress(f"image: {step}")
        process.wait()
    finally:
        end_session(process)
    if process.returncode != 0:
        raise _bootstrap_error(host, argv, said)


def _step(line: str) -> str:
    """What mmdebstrap says that it does, in words for people; "" where that is nothing to speak of."""
    if line.startswith("I: running --customize-hook"):
        return "installing packages inside the chroot..."
    step = re.match(r"I: (?!success|main\(\)|running --|nothing to|no essential)(.*)", line)
    return step[1] if step else ""


def _bootstrap_error(host: Host, argv: list[str], said: list[str]) -> HostError:
    text = "\n".join(said)
    remedy = "run the command by hand to see more"
    for pattern, advice in _REMEDIES:
        if re.search(pattern, text):
            remedy = advice
            break
    telling = [line for line in said if re.match(r"(E|W|Err|dpkg: error)", line)] or said
    what = "the image could not be built:\n" + "\n".join(telling[-8:]) + f"\nfrom: {shlex.join(argv)}"
    return HostError(what, where=host.where, remedy=remedy)


def _assemble(
    host: Host, image: Image, base: Path, place: Path, *, own: Mapping[str, Any], files: Mapping[str, Path]
) -> None:
    """Make the image from its bootstrap, and from ``files``, by hard links: none is ever written to again."""
    place.mkdir()
    host.run(["cp", "-al", str(base / "rootfs"), str(place / "rootfs")], timeout_s=600)
    host.put(place / f"rootfs{AGENT}", binaries.binary("virtoll-agent").read_bytes(), 0o755)
    for inside, path in files.items():
        target = place / f"rootfs{inside}"
        target.parent.mkdir(parents=True, exist_ok=True)
        for above in Path(inside).parents:  # for services that are not root, whatever the umask
            (place / f"rootfs{above}").chmod(0o755)
        target.hardlink_to(path)
    _keep_tmp(host, place / "rootfs")
    inputs = json.loads((base / MANIFEST).read_text(encoding="utf-8"))
    write_manifest(place, {"name": image.name, "digest": image.digest, **own, "recipe": RECIPE, **inputs})
    contents.note(place, "rootfs")


def _keep_tmp(host: Host, rootfs: Path) -> None:
    """Have something lie in /tmp."""
    place = directory_inside(rootfs, "/tmp", 0o1777)
    if not any(place.iterdir()):
        host.put(place / _IN_TMP, b"")


def _versions(host: Host, rootfs: Path) -> dict[str, str]:
    database = f"--admindir={rootfs / 'var/lib/dpkg'}"
    listing = host.run(["dpkg-query", database, "--show", "--showformat=${Package}=${Version}\\n"]).text
    return dict(line.split("=", 1) for line in listing.splitlines())


def write_manifest(place: Path, content: dict[str, Any]) -> None:
    """Note in a cache entry what it was made from: `manifest` reads it. It names ``packages`` and ``versions``."""
    (place / MANIFEST).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
