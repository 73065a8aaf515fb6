"""The forms of an image that containers take: a tar archive, and a fresh writable copy by overlay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger
from virtoll.images.base import Image
from virtoll.images.cached import cached


def tar(host: Host, image: Image) -> Path:
    """The image as one tar archive beside it, made once (equal trees give equal archives)."""

    def make(place: Path) -> None:
        argv = ["tar", "--create", f"--file={place}", "--sort=name", "--numeric-owner"]
        host.run([*argv, f"--directory={image.rootfs}", "."], timeout_s=600)

    return cached(image.directory / "rootfs.tar", make)


@contextmanager
def overlay(ledger: Ledger, image: Image, directory: Path) -> Iterator[Path]:
    """A writable root filesystem over the image, as a mount in ``directory`` for the length of the block.

    What is written goes to ``directory``/upper; mounts made inside the root go with it. The caller owns
    ``directory`` and removes it.
    """
    root, upper, work = (directory / name for name in ("root", "upper", "work"))
    for path in (root, upper, work):
        path.mkdir(parents=True)
    options = f"lowerdir={image.rootfs},upperdir={upper},workdir={work}"
    with ledger.owning("mount", str(root)):
        ledger.host.run(["mount", "-t", "overlay", "-o", options, f"virtoll-{directory.name}", str(root)])
        yield root
