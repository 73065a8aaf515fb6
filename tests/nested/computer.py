"""An emulated computer with Debian's own kernel: QEMU's TCG, where virtoll meets what this machine does not have.

The kernel is fetched once and unpacked in the cache, never installed. By default the computer's files are this
machine's own, read-only (9p), below a tmpfs: virtoll runs there as it does here, and nothing that it does there is seen
here. Control groups are of version 2 alone. What the computer is to tell, it writes to /run/out, a directory of this
machine's. Files that this machine lacks can be laid over its own (`Computer.added`), and a hypervisor put below its
kernel (`Hypervisor`). All is emulated, ten times slower and more: what is seen works or not, and says nothing of what
it costs.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import LocalHost
from virtoll.images import kernel
from virtoll.images.cached import cached

TESTS = Path(__file__).parent.parent
METAPACKAGE = "linux-image-amd64"  # the kernel for virtual machines has no KVM
DRIVERS = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_CONSOLE_BYTES = 6000  # of its end, where something is wrong

# This machine's files below a tmpfs; /inside is run as their first process.
_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro added /added
$b mount -t tmpfs -o size=75% changes /changes
$b mkdir /changes/files /changes/work
$b mount -t overlay -o lowerdir=/added:/host,upperdir=/changes/files,workdir=/changes/work root /root
$b mount -t proc proc /root/proc
$b mount -t sysfs sys /root/sys
$b mount -t cgroup2 cgroup /root/sys/fs/cgroup
$b mount --move /dev /root/dev
$b mount -t tmpfs run /root/run
$b mkdir /root/run/out
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out /root/run/out
exec $b switch_root /root /bin/sh -c "$($b cat /inside)"
"""

# What a machine finds made when it has booted. Each file system in memory takes the place of one of this machine's.
_FIRST_PROCESS = """
export {settings}
mkdir -p /usr/lib/modules /dev/shm /dev/pts
mount --bind {modules} /usr/lib/modules
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
for path in {in_memory}; do mkdir -p $path; mount -t tmpfs tmpfs $path; done
ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr
ip link set lo up
for module in {load}; do modprobe $module; done
cd {directory}
{{ {command}; echo $? >/run/out/status; }} </dev/null >/run/out/log 2>&1
sync
echo o >/proc/sysrq-trigger
while :; do :; done  # the first process must not end, and no program can be read any more
"""


@dataclass(frozen=True)
class Computer:
    """What is emulated, and what is there when its command starts.

    ``modules`` are loaded (with what they need); ``in_memory``: directories whose place a tmpfs takes; ``added``: a
    directory whose files are laid over this machine's.
    """

    cpus: int = 2
    memory_mib: int = 2500
    modules: tuple[str, ...] = ("tun",)
    in_memory: tuple[str, ...] = ("/tmp",)
    added: Path | None = None


@dataclass(frozen=True)
class Hypervisor:
    """What boots in the kernel's place and boots that, by multiboot; ``cpu`` is the model that it bears."""

    image: Path
    words: str
    cpu: str


@dataclass(frozen=True)
class Kernel:
    """Debian's, unpacked: ``tree``/boot/vmlinuz-VERSION and ``tree``/lib/modules/VERSION."""

    tree: Path
    vmlinuz: Path
    version: str


def run_in(
    computer: Computer,
    host: LocalHost,
    directory: Path,
    command: Sequence[str],
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    hypervisor: Hypervisor | None = None,
) -> Path:
    """Boot it, run ``command`` in it, and wait until it is off; what the command left in /run/out.

    Its output is the file "log" there, and its exit code is in "status". The test fails, with the end of both, when
    that is not 0 or the computer is not off in time.
    """
    booted = debians_kernel(host)
    out = directory / "out"
    out.mkdir(parents=True)
    initramfs = directory / "initramfs.cpio"
    initramfs.write_bytes(_archive(host, booted, _first_process(computer, booted, command, environment or {})))
    added = computer.added or directory / "nothing"
    added.mkdir(exist_ok=True)
    disks = [*shared("host", Path("/"), readonly=True), *shared("added", added, readonly=True), *shared("out", out)]
    devices = [*_size(computer), *disks]
    boot(host, booted.vmlinuz, initramfs, directory / "console.log", devices, limit_s=limit_s, hypervisor=hypervisor)
    status = out / "status"
    if not status.exists() or status.read_text() != "0\n":
        pytest.fail(f"{_end_of(directory / 'console.log')}\n{_end_of(out / 'log')}")
    return out


def _size(computer: Computer) -> list[str]:
    return ["-smp", str(computer.cpus), "-m", f"{computer.memory_mib}M"]


def shared(tag: str, path: Path, *, readonly: bool = False) -> list[str]:
    """QEMU's arguments for a directory of this machine's that is mounted in the computer by its ``tag``."""
    device = f"local,id={tag},path={path},security_model=none,multidevs=remap"
    return [
        *("-fsdev", device + (",readonly=on" if readonly else "")),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def boot(
    host: LocalHost,
    vmlinuz: Path,
    initramfs: Path,
    console: Path,
    devices: Sequence[str],
    *,
    limit_s: float,
    words: str = "",
    hypervisor: Hypervisor | None = None,
    in_turn: bool = False,
) -> None:
    """Run the computer until it is off; the test fails, with the end of its console, when that takes too long.

    ``in_turn``: its CPUs run one after another. At the same time, of two guests under its KVM one never printed a line.
    """
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-accel", "tcg,thread=single" if in_turn else "tcg", "-serial", f"file:{console}", *devices]
    words = f"panic=-1 cryptomgr.notests {words}"
    if hypervisor is None:
        argv += ["-machine", "q35", "-cpu", "max", "-kernel", str(vmlinuz), "-initrd", str(initramfs)]
        argv += ["-append", f"console=ttyS0 {words}"]
    else:
        argv += ["-machine", "pc", "-cpu", hypervisor.cpu, "-kernel", str(hypervisor.image)]
        argv += ["-append", hypervisor.words, "-initrd", f"{vmlinuz} console=hvc0 {words},{initramfs}"]
    try:
        host.run(["nice", "-n", "10", *argv], timeout_s=limit_s, confinement=Confinement())
    except CommandError as error:
        pytest.fail(f"{error}\n{_end_of(console)}")


def _end_of(file: Path) -> str:
    return file.read_text(errors="replace")[-_CONSOLE_BYTES:] if file.exists() else ""


def debians_kernel(host: LocalHost) -> Kernel:
    """The newest that the package sources hold, from the cache where it is there; skips where none can be had."""
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

    try:
        tree = cached(cache_directory() / "nested-kvm" / package, make)
    except HostError as error:
        pytest.skip(str(error))
    (vmlinuz,) = tree.glob("boot/vmlinuz-*")
    return Kernel(tree, vmlinuz, kernel.kernel_version(vmlinuz.read_bytes(), str(vmlinuz)))


def drivers(host: LocalHost, booted: Kernel, names: Sequence[str]) -> dict[str, bytes | None]:
    """What an initramfs loads: modules/NAME.ko, and modules/order, which names them in loading order."""
    load = ["modprobe", "--set-version", booted.version, "--dirname", str(booted.tree), "--show-depends"]
    found = kernel.insmod_order("\n".join(host.run([*load, name]).text for name in names))
    return {
        **{f"modules/{module.name}": module.read_bytes() for module in found},
        "modules/order": "".join(f"{module.name}\n" for module in found).encode(),
    }


def _archive(host: LocalHost, booted: Kernel, first_process: str) -> bytes:
    """The computer's initramfs."""
    return kernel.cpio(
        {
            **dict.fromkeys(("added", "bin", "changes", "dev", "host", "modules", "root")),
            "bin/busybox": Path("/bin/busybox").read_bytes(),
            "init": _INIT.encode(),
            "inside": first_process.encode(),
            **drivers(host, booted, DRIVERS),
        }
    )


def _first_process(computer: Computer, booted: Kernel, command: Sequence[str], environment: Mapping[str, str]) -> str:
    settings = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}",
        "VIRTOLL_CACHE": str(cache_directory()),
        "VIRTOLL_STATE": "/run/virtoll-nested",
        **environment,
    }
    return _FIRST_PROCESS.format(
        settings=shlex.join(f"{name}={value}" for name, value in settings.items()),
        modules=shlex.quote(str(booted.tree / "lib/modules")),
        in_memory=shlex.join(computer.in_memory),
        load=shlex.join(computer.modules),
        directory=shlex.quote(str(TESTS.parent)),
        command=shlex.join(command),
    )


def python(file: str, *arguments: str) -> list[str]:
    """The command that runs one of this directory's files, by the Python that runs the tests."""
    return [sys.executable, str(TESTS / "nested" / file), *arguments]
