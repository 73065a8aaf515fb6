"""The kvm platform on a real KVM, on any machine: QEMU emulates a computer with AMD-V and Linux's kvm-amd runs in it.

    .venv/bin/pytest -m slow tests/test_kvm_nested.py

takes one to three minutes on one CPU, so it is no part of `pytest`. The computer boots Debian's kernel (fetched once,
unpacked in the cache, never installed) from an initramfs that mounts this machine's own files, read-only, below a
tmpfs: virtoll runs there as it does here, and nothing it does there is seen here. A guest in an emulated computer
shows that the driver works; it says nothing about what KVM costs.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import contract
from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import LocalHost
from virtoll.images import disk, kernel
from virtoll.images.base import Image
from virtoll.images.cached import cached
from virtoll.platforms.qemu_tcg import QemuTcg

LIMIT_S = 480.0
METAPACKAGE = "linux-image-amd64"  # the kernel for virtual machines has no KVM
DRIVERS = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
TESTS = Path(__file__).parent

# This machine's files below a tmpfs, with the booted kernel's modules; /inside is run as their first process.
_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
$b mount -t tmpfs -o size=75% changes /changes
$b mkdir /changes/files /changes/work
$b mount -t overlay -o lowerdir=/host,upperdir=/changes/files,workdir=/changes/work root /root
$b mount -t proc proc /root/proc
$b mount -t sysfs sys /root/sys
$b mount -t cgroup2 cgroup /root/sys/fs/cgroup
$b mount --move /dev /root/dev
$b mount -t tmpfs run /root/run
exec $b switch_root /root /bin/sh -c "$($b cat /inside)"
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 240)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
def test_kvm_keeps_the_contract_in_an_emulated_computer(host: LocalHost, tmp_path: Path) -> None:
    contract.skip_unless_ready(QemuTcg())
    image = contract.image()
    disk.ext4(host, image, contract.LIMITS.disk_bytes, print)  # made here: there, it would take minutes
    kernel.guest_kernel(host, print)
    told = run_inside(host, tmp_path, image)
    assert told["ended"] == "well"
    assert told["check"] == []
    assert told["query-kvm"] == {"enabled": True, "present": True}
    assert told["instance"]["accelerator"] == "kvm"
    assert told["agent"]["clocksource"] == "kvm-clock"


def run_inside(host: LocalHost, directory: Path, image: Image) -> dict[str, Any]:
    """What nested_kvm.py tells in the emulated computer, by subject."""
    try:
        entry = cached_kernel(host)
    except HostError as error:
        pytest.skip(str(error))
    (vmlinuz,) = entry.glob("boot/vmlinuz-*")
    version = kernel.kernel_version(vmlinuz.read_bytes(), str(vmlinuz))
    initramfs, console, answers = (directory / name for name in ("initramfs.cpio", "console.log", "told.log"))
    initramfs.write_bytes(archive(host, entry, version, image))
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    # One CPU: with two, one of the two guests tried never printed a line.
    argv += ["-accel", "tcg", "-machine", "q35", "-cpu", "max", "-smp", "1", "-m", "2500M"]
    argv += ["-kernel", str(vmlinuz), "-initrd", str(initramfs)]
    argv += ["-append", "console=ttyS0 panic=-1 cryptomgr.notests"]
    argv += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
    argv += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
    argv += ["-serial", f"file:{console}", "-serial", f"file:{answers}"]
    one_cpu = Confinement(cpus=frozenset({max(os.sched_getaffinity(0))}))
    try:
        host.run(argv, timeout_s=LIMIT_S, confinement=one_cpu)
    except CommandError as error:
        pytest.fail(f"{error}\n{_end_of(console)}\n{_end_of(answers)}")
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    print(*lines, sep="\n")
    assert lines, _end_of(console)
    return {line["what"]: line["value"] for line in lines}


def _end_of(file: Path) -> str:
    return file.read_text(errors="replace")[-3000:] if file.exists() else ""


def cached_kernel(host: LocalHost) -> Path:
    """Debian's kernel for computers, unpacked: boot/vmlinuz-VERSION and lib/modules/VERSION."""
    shown = host.run(["apt-cache", "depends", "--important", METAPACKAGE], check=False).text
    packages = kernel.versioned_dependencies(shown, "linux-image-")
    if not packages:
        pytest.skip(f"the package sources hold no {METAPACKAGE}")
    package = packages[0]

    def make(partial: Path) -> None:
        partial.mkdir()
        fetch = 'cd "$1" && apt-get download -q -o APT::Sandbox::User=root "$2" && dpkg-deb -x ./*.deb . && rm ./*.deb'
        host.run(["sh", "-c", fetch, "sh", str(partial), package], timeout_s=600)
        (modules,) = partial.glob("lib/modules/*")
        host.run(["depmod", "-b", str(partial), modules.name])

    return cached(cache_directory() / "nested-kvm" / package, make)


def archive(host: LocalHost, tree: Path, version: str, image: Image) -> bytes:
    """The emulated computer's initramfs."""
    load = ["modprobe", "--set-version", version, "--dirname", str(tree), "--show-depends"]
    modules = kernel.insmod_order("\n".join(host.run([*load, driver]).text for driver in DRIVERS))
    return kernel.cpio(
        {
            **dict.fromkeys(("bin", "changes", "dev", "host", "modules", "root")),
            "bin/busybox": Path("/bin/busybox").read_bytes(),
            "init": _INIT.encode(),
            "inside": inside(tree, image).encode(),
            **{f"modules/{module.name}": module.read_bytes() for module in modules},
            "modules/order": "".join(f"{module.name}\n" for module in modules).encode(),
        }
    )


def inside(tree: Path, image: Image) -> str:
    """The emulated computer's first process: KVM, nested_kvm.py, and off."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VIRTOLL_CACHE": str(cache_directory()),
        "VIRTOLL_STATE": "/run/virtoll-nested",
    }
    settings = [f"{name}={value}" for name, value in environment.items()]
    command = [sys.executable, str(TESTS / "nested_kvm.py"), image.digest, str(image.directory)]
    return f"""
export {shlex.join(settings)}
mkdir -p /usr/lib/modules /dev/shm
mount --bind {shlex.quote(str(tree / "lib/modules"))} /usr/lib/modules
mount -t tmpfs shm /dev/shm
ip link set lo up
modprobe kvm_amd
modprobe tun
{shlex.join(command)} >/dev/ttyS1
echo o >/proc/sysrq-trigger
sleep 60
"""
