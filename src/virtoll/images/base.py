"""What an image is: one root filesystem, known by the digest of what it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# In every image, and so in every instance. Both are static: an image of the user's need not hold any program.
AGENT = "/virtoll/agent"
BUSYBOX = "/virtoll/busybox"  # a shell and its tools, to configure a guest with


@dataclass(frozen=True)
class Image:
    """A built root filesystem in the cache, and the forms derived from it.

    ``rootfs`` is a directory tree, never written to after it was built (platforms lay an overlay or a
    copy-on-write file over it). The agent is in it at `AGENT`. Derived forms (tar, ext4) are files beside
    it, made by `virtoll.images.forms` and found by the same digest.
    """

    name: str  # of the service set, e.g. "proxy"
    digest: str  # sha256 over what it is made from, virtoll's own files, build recipe; 64 hex digits
    directory: Path  # the cache entry: rootfs/, manifest.json, forms

    @property
    def rootfs(self) -> Path:
        """The directory tree."""
        return self.directory / "rootfs"
