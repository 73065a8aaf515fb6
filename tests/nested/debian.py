"""A disk with Debian as it is installed: systemd, its own kernel and initramfs, and the packages that virtoll's set-up
asks for. Made once from Debian's packages, and kept in the cache by its recipe.

All mounts that making it needs are in a mount namespace of its own; no loop device is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from virtoll.errors import HostError
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import LocalHost
from virtoll.images.cached import cached
from virtoll.images.rootfs import SUITE

# What a server has, and what virtoll needs; apparmor comes with Debian's kernel (it is recommended), dnsmasq-base with
# LXC's bridge.
_PACKAGES = (
    *("linux-image-amd64", "initramfs-tools", "systemd-sysv", "dbus", "apparmor", "openssh-server", "python3"),
    *("ca-certificates", "iproute2", "nftables", "iptables", "conntrack", "kmod", "procps", "e2fsprogs", "zstd"),
    *("busybox-static", "docker.io", "lxc", "lxcfs", "dnsmasq-base", "curl"),
    *("qemu-system-x86", "qemu-utils", "libvirt-daemon-system", "libvirt-clients"),
)
_DISK = "8G"  # sparse
_BUILD_LIMIT_S = 2400.0

_UNIT = """[Unit]
Description=What the test has to run
After=network.target docker.service lxc-net.service libvirtd.service nftables.service ssh.service
[Service]
Type=simple
ExecStart=/bin/sh -c 'sh /in/run >/out/log 2>&1; echo $? >/out/status; sync; systemctl poweroff'
[Install]
WantedBy=multi-user.target
"""
_FSTAB = """/dev/vda / ext4 defaults 0 1
in /in 9p trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro 0 0
out /out 9p trans=virtio,version=9p2000.L,msize=512000 0 0
host /host 9p trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro 0 0
"""

# $1: where; $2: the packages; $3 the suite; $4: the disk's size. What is made: vmlinuz, initrd, disk.ext4.
_MAKE = f"""
cd "$1"
mmdebstrap --mode=root --variant=important --format=directory --include="$2" --dpkgopt=force-unsafe-io \\
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' "$3" root
mkdir -p root/in root/out root/host
cat >root/etc/fstab <<'END'
{_FSTAB}END
cat >root/etc/systemd/system/nested.service <<'END'
{_UNIT}END
echo nested >root/etc/hostname
printf '127.0.0.1 localhost nested\\n' >root/etc/hosts
printf '9p\\n9pnet_virtio\\n' >>root/etc/modules
chroot root systemctl enable nested.service nftables.service
cp -L root/boot/vmlinuz-* vmlinuz
cp -L root/boot/initrd.img-* initrd
mkfs.ext4 -q -F -L root -E lazy_itable_init=1 -d root disk.ext4 "$4"
rm -rf root
"""


@dataclass(frozen=True)
class Debian:
    """What QEMU boots. The disk is never written: run it with a snapshot."""

    directory: Path

    @property
    def vmlinuz(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd"

    @property
    def disk(self) -> Path:
        return self.directory / "disk.ext4"


def installed(host: LocalHost) -> Debian:
    """The disk, from the cache where it is there; skips where it cannot be made (no mirror)."""
    words = (",".join(_PACKAGES), SUITE, _DISK)
    digest = hashlib.sha256(repr((_MAKE, words)).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        partial.mkdir()
        command = ["sh", "-e", "-c", _MAKE, "sh", str(partial), *words]
        host.run(["unshare", "--mount", "--propagation=private", *command], timeout_s=_BUILD_LIMIT_S)

    try:
        return Debian(cached(cache_directory() / "nested-debian" / digest, make))
    except HostError as error:
        pytest.skip(str(error))
