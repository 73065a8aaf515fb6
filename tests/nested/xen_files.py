"""Xen and its tools from Debian's packages, unpacked and never installed: what makes an emulated computer a dom0."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from nested.computer import Hypervisor
from virtoll.errors import HostError
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import LocalHost
from virtoll.images.cached import cached

_WANTED = ("xen-hypervisor-4.17-amd64", "xen-utils-4.17", "xenstore-utils", "qemu-system-xen")
# Seen with QEMU 7.2: with SMAP dom0 dies at its first return to user space; with RDTSCP, which TCG's AMD-V has no
# decoder for, a PVH guest stands still. While a domain ran, dom0's Python died of a wild pointer, and once computed a
# wrong time: Xen hands the FPU over when it is used first, unless it is told to do so at once, and AVX makes it larger.
_CPU = "max,-smap,-rdtscp,-avx,-avx2,-fma,-f16c,-vaes,-vpclmulqdq"
_WORDS = "console=com1 com1=115200,8n1 dom0_mem={0}M,max:{0}M dom0_vcpus_pin spec-ctrl=eager-fpu loglvl=info"
_FETCH = """
cd "$1"; shift
apt-get download -q -o APT::Sandbox::User=root "$@"
mkdir tree
for deb in ./*.deb; do dpkg-deb -x "$deb" tree; rm "$deb"; done
# Laid over a file system in which these are links, directories would hide all that is there.
for name in bin sbin lib; do
    [ ! -d tree/$name ] || { mkdir -p tree/usr; cp -a tree/$name tree/usr/; rm -r tree/$name; }
done
"""


@dataclass(frozen=True)
class Xen:
    """``tree``: the packages' files, those that this machine has not installed."""

    tree: Path
    image: Path  # the hypervisor, as an ELF file: what QEMU's multiboot takes

    def hypervisor(self, dom0_mib: int) -> Hypervisor:
        """It, with so much memory for dom0; the rest is for other domains."""
        return Hypervisor(self.image, _WORDS.format(dom0_mib), _CPU)


def xen_files(host: LocalHost) -> Xen:
    """From the cache where they are there; skips where they cannot be had (no mirror)."""
    shown = host.run(
        ["apt-get", "install", "--print-uris", "-qq", "--no-install-recommends", *_WANTED], check=False, timeout_s=120
    )
    # 'http://.../xen-utils-4.17_4.17.7_amd64.deb' FILE SIZE SHA256:...
    files = [line.split()[1] for line in shown.text.splitlines() if line.startswith("'")]
    if shown.returncode != 0 or not any(file.startswith(_WANTED[0]) for file in files):
        pytest.skip("the package sources hold no Xen, or it is installed here")
    digest = hashlib.sha256(repr((files, _FETCH)).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        partial.mkdir()
        packages = [file.partition("_")[0] for file in files]
        host.run(["sh", "-e", "-c", _FETCH, "sh", str(partial), *packages], timeout_s=600)
        (packed,) = (partial / "tree/boot").glob("xen-*-amd64.gz")
        with gzip.open(packed) as source, (partial / "xen.elf").open("wb") as target:
            shutil.copyfileobj(source, target)

    try:
        entry = cached(cache_directory() / "nested-xen" / digest, make)
    except HostError as error:
        pytest.skip(str(error))
    return Xen(entry / "tree", entry / "xen.elf")
