"""Debian packages that are fetched and unpacked, and not installed: the machine's own files are not touched."""

from __future__ import annotations

from pathlib import Path

from virtoll.hosts.base import Host

_FETCH = 'cd "$1" && shift && exec apt-get download -q -o APT::Sandbox::User=root "$@"'


def unpack(host: Host, directory: Path, *packages: str) -> Path:
    """The tree of what the packages hold, in ``directory``, which is made for it."""
    tree = directory / "tree"
    tree.mkdir(parents=True)
    host.run(["sh", "-c", _FETCH, "sh", str(directory), *packages], timeout_s=600)
    for path in directory.glob("*.deb"):
        host.run(["dpkg-deb", "-x", str(path), str(tree)], timeout_s=300)
        path.unlink()
    return tree
