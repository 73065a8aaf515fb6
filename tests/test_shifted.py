"""An image for a user namespace: who owns what in the copy, and what a change of owner takes away."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

import pytest

from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.images.shifted import COUNT, FIRST, in_namespace, shifted
from virtoll.platforms.base import Platform
from virtoll.platforms.oci import Oci, OciSettings
from virtoll.platforms.podman import Podman, PodmanSettings
from virtoll.study.limits import Limits

# cap_net_raw=ep, as `setcap` writes it: version 2, effective, permitted 1 << 13.
NET_RAW = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    root = tmp_path / "image" / "rootfs"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/su").write_text("su")
    os.chown(root / "usr/bin/su", 0, 42)
    (root / "usr/bin/su").chmod(0o6755)
    (root / "usr/bin/ping").write_text("ping")
    os.setxattr(root / "usr/bin/ping", "security.capability", NET_RAW)
    (root / "usr/bin/again").hardlink_to(root / "usr/bin/su")
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    os.chown(root / "bin", 7, 8, follow_symlinks=False)
    return Image("test", "0" * 64, tmp_path / "image")


def copied(image: Image) -> Image:
    return shifted(LocalHost(), image, lambda _line: None)


def test_every_owner_is_shifted_once_and_links_are_not_followed(image: Image) -> None:
    root = copied(image).rootfs
    found = {
        str(path.relative_to(root)): (path.lstat().st_uid - FIRST, path.lstat().st_gid - FIRST)
        for path in (root, *sorted(root.rglob("*")))
    }
    assert found == {
        ".": (0, 0),
        "bin": (7, 8),
        "tmp": (0, 0),
        "usr": (0, 0),
        "usr/bin": (0, 0),
        "usr/bin/again": (0, 42),
        "usr/bin/ping": (0, 0),
        "usr/bin/su": (0, 42),
    }
    assert (root / "usr/bin/su").samefile(root / "usr/bin/again")
    assert (root / "bin").readlink() == Path("usr/bin")


def test_what_a_change_of_owner_takes_is_there_again(image: Image) -> None:
    root = copied(image).rootfs
    assert stat.S_IMODE((root / "usr/bin/su").stat().st_mode) == 0o6755
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert os.getxattr(root / "usr/bin/ping", "security.capability") == in_namespace(NET_RAW)
    assert struct.unpack("<6I", in_namespace(NET_RAW)) == (0x03000001, 1 << 13, 0, 0, 0, FIRST)


def test_what_the_root_of_another_namespace_gave_stays_his(image: Image) -> None:
    """In a user's own image, of a rootless container's files: no other arm's programs have such capabilities, and those
    of the arm with users of its own had them.
    """
    another = struct.pack("<6I", 0x03000001, 1 << 13, 0, 0, 0, 100_000)
    os.setxattr(image.rootfs / "usr/bin/ping", "security.capability", another)
    assert os.getxattr(copied(image).rootfs / "usr/bin/ping", "security.capability") == another


def test_the_image_stays_as_it_was_and_is_copied_once(image: Image) -> None:
    first = copied(image)
    (first.rootfs / "mark").touch()
    assert (copied(image).rootfs / "mark").exists()
    assert image.rootfs.stat().st_uid == 0
    assert os.getxattr(image.rootfs / "usr/bin/ping", "security.capability") == NET_RAW
    assert not (image.rootfs / "mark").exists()


@pytest.mark.parametrize(
    "platform", [Oci(OciSettings(user_namespace=True)), Podman(PodmanSettings(user_namespace=True))]
)
def test_a_copy_that_is_not_as_it_was_made_is_refused(platform: Platform, image: Image) -> None:
    """The image's own files are held against their list at the start of each run, and the copy's were not: the arm was
    measured with whatever had been written there.
    """
    limits = Limits(vcpus=1, memory_bytes=64 * 1024**2)
    for _ in range(2):
        platform.prepare(LocalHost(), image, limits, lambda _line: None)
    (copied(image).rootfs / "usr/bin/su").write_text("another")
    with pytest.raises(HostError, match="is not as it was built: 4 lines of its list differ"):
        platform.prepare(LocalHost(), image, limits, lambda _line: None)


def test_an_owner_that_a_namespace_does_not_have_is_told_and_nothing_stays(image: Image) -> None:
    os.chown(image.rootfs / "tmp", COUNT, 0)
    with pytest.raises(HostError, match=f"it belongs to {COUNT}, and a user namespace here has users 0 to {COUNT - 1}"):
        copied(image)
    assert [path.name for path in image.directory.iterdir() if not path.name.startswith(".")] == ["rootfs"]


def test_a_copy_that_cannot_be_written_is_told(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in a traceback: a quota, a server of files that keeps owners to itself (NFS)."""

    def refused(path: Path, *_owner: int, follow_symlinks: bool = True) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path), follow_symlinks)

    monkeypatch.setattr(os, "chown", refused)
    with pytest.raises(HostError, match="cannot be written: Operation not permitted") as told:
        copied(image)
    assert "VIRTOLL_CACHE" in str(told.value)
    assert [path.name for path in image.directory.iterdir() if not path.name.startswith(".")] == ["rootfs"]


@pytest.mark.parametrize("page", ["METHODOLOGY.md", "RUN_DIRECTORY.md"])
def test_who_is_root_inside_is_documented(page: str) -> None:
    """They named 1879048192, the first user beyond those of the namespace."""
    told = (Path(__file__).parent.parent / "docs" / page).read_text("utf-8")
    assert f" {FIRST} and" in told
