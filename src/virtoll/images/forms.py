"""The image as a tar archive, which Docker takes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.local import end_session
from virtoll.images.base import Image
from virtoll.images.tree import LABEL

ATTRIBUTES = ("--xattrs", "--xattrs-include=*", f"--xattrs-exclude={LABEL}")  # what tar is told of them


@contextmanager
def tar_stream(host: Host, image: Image) -> Iterator[IO[bytes]]:
    """The image as a tar archive to read from. HostError at the end when tar failed."""
    argv = [
        "tar",
        "--create",
        "--sort=name",
        "--numeric-owner",
        *ATTRIBUTES,
        f"--directory={image.rootfs}",
        ".",
    ]
    process = host.spawn(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout
        process.stdout.close()
        if process.wait() != 0:
            raise HostError(f"tar failed with exit {process.returncode}", where=str(image.rootfs))
    finally:
        end_session(process)
