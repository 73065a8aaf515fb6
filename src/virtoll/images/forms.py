"""The forms of an image that containers take: a tar archive, and a fresh writable copy by overlay."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import end_session
from virtoll.images.base import Image


@contextmanager
def tar_stream(host: Host, image: Image) -> Iterator[IO[bytes]]:
    """The image as a tar archive to read from. HostError at the end when tar failed."""
    argv = ["tar", "--create", "--sort=name", "--numeric-owner", f"--directory={image.rootfs}", "."]
    process = host.spawn(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout
        process.stdout.close()
        if process.wait() != 0:
            raise HostError(f"tar failed with exit {process.returncode}", where=str(image.rootfs))
    finally:
        end_session(process)


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
