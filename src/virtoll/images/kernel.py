"""What a guest boots: the distribution's kernel for virtual machines, and an initramfs of virtoll's own.

The kernel package is fetched with ``apt-get download`` and unpacked, not installed: the host's boot directory is not
touched. The initramfs holds a static busybox, the drivers of the guest's few devices in the order in which modprobe
would load them, and guest_init.sh. It is not compressed: unpacking costs an emulated guest more than reading.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from virtoll.errors import HostError, Problem
from virtoll.files import durable
from virtoll.hosts import private
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.programs import find
from virtoll.images import busybox, debs
from virtoll.images.cached import cached, remove

METAPACKAGES = ("linux-image-cloud-amd64", "linux-image-virtual")  # Debian's, Ubuntu's
_INIT = Path(__file__).with_name("guest_init.sh")
_APT_LISTS = Path("/var/lib/apt/lists")
_ORDER = "modules.dep"  # what depmod notes
_ROOT = Path("/")
_IN_ENGLISH = {"LC_ALL": "C"}  # apt-cache speaks the user's language, and what it says is read here
_OWN_KERNEL = 'set kernel = "/boot/vmlinuz-..." in the study file\'s arm (its modules are taken from /lib/modules)'


@dataclass(frozen=True)
class Devices:
    """What a guest's machine has: the drivers that its initramfs loads, its disk, and what leads to its agent."""

    drivers: tuple[str, ...]  # as modprobe names them
    disk: str
    agent: str  # a virtio port or a tty


VIRTIO = Devices(
    ("virtio_pci", "virtio_blk", "ext4", "virtio_net", "virtio_console"), "/dev/vda", "/dev/virtio-ports/virtoll.agent"
)
# The same without that port: on Firecracker's virtio-mmio a serial line leads to the agent, and else a virtio console.
VIRTIO_MMIO = Devices(("virtio_mmio", "virtio_blk", "ext4", "virtio_net"), "/dev/vda", "/dev/ttyS0")
VIRTIO_HVC = Devices(VIRTIO.drivers, "/dev/vda", "/dev/hvc0")
XEN = Devices(("xen_blkfront", "ext4", "xen_netfront"), "/dev/xvda", "/dev/hvc0")


@dataclass(frozen=True)
class Kernel:
    """A kernel and its initramfs in the cache. ``digest`` is the sha256 over both."""

    vmlinuz: Path
    initramfs: Path
    version: str  # as uname -r
    digest: str


_kept: dict[tuple[Path, Path | None, Devices], Kernel] = {}  # by the cache, and what was asked for


def guest_kernel(
    host: Host, progress: Callable[[str], None], own: Path | None = None, devices: Devices = VIRTIO
) -> Kernel:
    """The guests' kernel: the user's ``own``, or the newest that the host's package sources hold.

    HostError says which tool or package is missing. The first call fetches some 30 MB; later ones find the cache.
    It is `kept_kernel` from now on.
    """
    try:
        private.make(cache_directory(), "kernels")
        busybox.fetch(host, progress)
        found = _load(
            _from_packages(host, progress, devices) if own is None else _from_file(host, own, progress, devices)
        )
    except OSError as error:
        raise HostError(
            f"the guests' kernel cannot be kept: {error.strerror}",
            where=str(error.filename or cache_directory()),
            remedy="run as root, with 100 MB to spare there; VIRTOLL_CACHE names another place",
        ) from error
    _kept[cache_directory(), own, devices] = found
    return found


def kept_kernel(host: Host, own: Path | None = None, devices: Devices = VIRTIO) -> Kernel:
    """What `guest_kernel` gave last in this process, whatever has come out since: all guests of a run boot the same."""
    return _kept.get((cache_directory(), own, devices)) or guest_kernel(host, lambda _line: None, own, devices)


def kernel_problem(host: Host, own: Path | None = None, devices: Devices = VIRTIO) -> Problem | None:
    """Why `guest_kernel` could not work, if it could not. Fetches and writes nothing."""
    if problem := busybox.problem(host):
        return problem
    if own is not None:
        return _own_problem(own) if own.is_file() else _no_kernel(host, own).problem
    try:
        if busybox.static() is None or not _newest_is_known(_newest(devices)):
            kernel_package(host)
    except HostError as error:
        return error.problem
    return None


def known_kernel(host: Host, own: Path | None = None, devices: Devices = VIRTIO) -> Kernel | None:
    """What `guest_kernel` would give, if it is in the cache already. Fetches and writes nothing."""
    entry = None
    with suppress(HostError):  # it is no kernel, or there is no busybox
        entry = _known_newest(devices) if own is None else _known_of_own(host, own, devices)
    return _load(entry) if entry is not None and entry.is_dir() else None


def _known_newest(devices: Devices) -> Path | None:
    newest = _newest(devices)
    return newest.parent / newest.read_text(encoding="utf-8") if _newest_is_known(newest) else None


def _known_of_own(host: Host, own: Path, devices: Devices) -> Path | None:
    """The entry of a kernel of the user's; None where it is not there."""
    return _own_entry(host, own, devices) if own.is_file() else None


def _own_entry(host: Host, own: Path, devices: Devices) -> Path:
    """By the kernel, and the drivers that it gets: a version's modules may be installed, or built anew, at any time."""
    image = own.read_bytes()
    modules = driver_modules(host, _ROOT, kernel_version(image, str(own)), devices)
    parts = [image, *(part for module in modules for part in (module.name.encode(), module.read_bytes()))]
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    return cache_directory() / "kernels" / f"own-{digest[:12]}-{_recipe(devices)}"


def _busybox() -> bytes:
    path = busybox.static()
    if path is None:
        raise HostError("there is no static busybox", where="PATH", remedy="`virtoll doctor` says how to have one")
    return path.read_bytes()


def _no_kernel(host: Host, own: Path) -> HostError:
    return HostError(f"there is no kernel {own}", where=host.where, remedy="correct kernel = PATH in the study file")


def _own_problem(own: Path) -> Problem | None:
    try:
        directory = _ROOT / "lib/modules" / kernel_version(own.read_bytes(), str(own))
    except HostError as error:
        return error.problem
    except OSError:  # only root may read it, and learns the rest
        return None
    return _no_order(directory).problem if directory.is_dir() and not (directory / _ORDER).exists() else None


def _no_order(directory: Path) -> HostError:
    """Of modules that are the user's own, where nothing is written."""
    what = f"in which order these modules are loaded was not noted: there is no {_ORDER}"
    return HostError(what, where=str(directory), remedy=f"depmod {directory.name}")


def _newest(devices: Devices) -> Path:
    """The file that names the newest kernel's entry: apt takes seconds to tell."""
    return cache_directory() / "kernels" / f"newest-{_recipe(devices)}"


def _newest_is_known(newest: Path) -> bool:
    try:
        entry = newest.parent / newest.read_text(encoding="utf-8")
        return entry.is_dir() and newest.stat().st_mtime > _APT_LISTS.stat().st_mtime
    except OSError:  # it is not there, or root's alone
        return False


@cache  # entries never change, and hashing 16 MB takes longer than starting a container
def _load(entry: Path) -> Kernel:
    vmlinuz, initramfs = entry / "vmlinuz", entry / "initramfs.cpio"
    digest = hashlib.sha256(vmlinuz.read_bytes() + initramfs.read_bytes()).hexdigest()
    return Kernel(vmlinuz, initramfs, (entry / "version").read_text(encoding="utf-8"), digest)


def _from_packages(host: Host, progress: Callable[[str], None], devices: Devices) -> Path:
    newest = _newest(devices)
    if _newest_is_known(newest):
        return newest.parent / newest.read_text(encoding="utf-8")
    package = kernel_package(host)
    # 'http://.../linux-image-6.1.0-56-cloud-amd64_6.1.192-2_amd64.deb' FILE SIZE SHA256:...
    deb = host.run(["apt-get", "download", "--print-uris", package]).text.split()[1]

    def make(partial: Path) -> None:
        progress(f"fetching the guests' kernel {package}")
        depends = host.run(["apt-cache", "depends", "--important", package], env=_IN_ENGLISH).text
        modules = versioned_dependencies(depends, "linux-modules-")  # Ubuntu packs them apart
        tree = debs.unpack(host, partial, package, *modules)
        _let_modules_be_found(tree)
        (vmlinuz,) = tree.glob("boot/vmlinuz-*")
        _write_entry(host, partial, vmlinuz, tree, devices)
        remove(tree)

    entry = cached(newest.with_name(f"{deb.removesuffix('.deb')}-{_recipe(devices)}"), make)
    durable.replace(newest, entry.name.encode())
    return entry


def _from_file(host: Host, own: Path, progress: Callable[[str], None], devices: Devices) -> Path:
    if not own.is_file():
        raise _no_kernel(host, own)

    def make(partial: Path) -> None:
        progress(f"making an initramfs for {own}")
        partial.mkdir()
        _write_entry(host, partial, own, _ROOT, devices)

    return cached(_own_entry(host, own, devices), make)


def kernel_package(host: Host) -> str:
    """The package with the newest kernel for virtual machines that the host's package sources hold."""
    if find("apt-get") is None:
        raise HostError("there is no apt-get to fetch a kernel with", where=host.where, remedy=_OWN_KERNEL)
    for metapackage in METAPACKAGES:
        shown = host.run(["apt-cache", "depends", "--important", metapackage], check=False, env=_IN_ENGLISH)
        for package in versioned_dependencies(shown.text, "linux-image-"):
            return package
    raise HostError(
        f"the package sources hold no kernel for virtual machines ({' or '.join(METAPACKAGES)})",
        where=host.where,
        remedy=f"apt-get update; or {_OWN_KERNEL}",
    )


def versioned_dependencies(apt_cache_depends: str, prefix: str) -> list[str]:
    """The packages of a kernel version (``prefix`` and a digit) that ``apt-cache depends`` lists."""
    return re.findall(rf"^ *\|?Depends: ({re.escape(prefix)}\d\S*)$", apt_cache_depends, re.MULTILINE)


def _recipe(devices: Devices) -> str:
    """Twelve hex digits over all that goes into an initramfs besides the kernel's modules."""
    parts = (_INIT.read_bytes(), _busybox(), repr(devices).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _write_entry(host: Host, entry: Path, vmlinuz: Path, tree: Path, devices: Devices) -> None:
    """Fill a cache entry: the kernel, its version, and an initramfs with its modules below ``tree``/lib/modules."""
    version = kernel_version(vmlinuz.read_bytes(), str(vmlinuz))
    (entry / "version").write_text(version, encoding="utf-8")
    shutil.copyfile(vmlinuz, entry / "vmlinuz")
    (entry / "initramfs.cpio").write_bytes(initramfs(driver_modules(host, tree, version, devices), devices))


def kernel_version(image: bytes, where: str) -> str:
    """``uname -r`` of a bzImage (Linux, Documentation/arch/x86/boot.rst: kernel_version at 0x20e) or an ELF vmlinux."""
    found = None
    if image[0x202:0x206] == b"HdrS" and len(image) >= 0x210:
        start = struct.unpack_from("<H", image, 0x20E)[0] + 0x200
        found = re.match(rb"([\w.+~-]+)[ \0]", image[start : start + 256])
    elif image[0x202:0x206] != b"HdrS":
        found = re.search(rb"Linux version ([\w.+~-]+) ", image)
    if found:
        return found[1].decode()  # it names a directory of modules
    raise HostError("not a Linux kernel (bzImage or ELF)", where=where, remedy="give kernel = PATH of a vmlinuz")


def _let_modules_be_found(tree: Path) -> None:
    """Have an unpacked package's modules below lib/ and usr/lib/, as on a machine where one is a link to the other.

    Debian packs them below usr/lib since 13, and below lib before; and kmod looks for them at either, as it was built.
    """
    old, new = tree / "lib/modules", tree / "usr/lib/modules"
    for there, missing in ((new, old), (old, new)):
        if there.is_dir() and not missing.exists():
            missing.parent.mkdir(parents=True, exist_ok=True)
            missing.symlink_to(there)


def driver_modules(host: Host, tree: Path, version: str, devices: Devices) -> list[Path]:
    """The module files that the devices' drivers need, in loading order. A kernel without a module directory has them
    built in.
    """
    directory = tree / "lib/modules" / version
    if not directory.is_dir():
        return []
    if not (directory / _ORDER).exists():
        if tree == _ROOT:
            raise _no_order(directory)
        host.run(["depmod", "-b", str(tree), version])
    shown = [
        host.run(["modprobe", "-S", version, "-d", str(tree), "--show-depends", driver]).text
        for driver in devices.drivers
    ]
    return insmod_order("\n".join(shown))


def insmod_order(show_depends: str) -> list[Path]:
    """Module files, each once, of ``modprobe --show-depends``: ``insmod PATH [OPTIONS]`` or ``builtin NAME`` a line.

    The path is that of a cache, too, and may hold blanks.
    """
    paths = re.findall(r"^insmod (\S.*?\.ko(?:\.\w+)?)(?: .*)?$", show_depends, re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(paths)]


def _decompressed(module: Path) -> bytes:
    """A module's bytes; Ubuntu compresses them with zstd, others with xz."""
    import gzip
    import lzma

    data = module.read_bytes()
    match module.suffix:
        case ".xz":
            return lzma.decompress(data)
        case ".gz":
            return gzip.decompress(data)
        case ".zst":
            return _without_zstd(data, str(module))
    return data


def _without_zstd(data: bytes, where: str) -> bytes:
    import subprocess

    program = find("zstd")
    if program is None:
        what = "zstd is missing, which unpacks the guests' modules"
        raise HostError(what, where=where, remedy="apt-get install zstd")
    done = subprocess.run([program, "-dc"], input=data, capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[:400]
        remedy = "install that kernel's modules again, or name another kernel"
        raise HostError(f"it cannot be unpacked: {said}", where=where, remedy=remedy)
    return done.stdout


def initramfs(modules: Iterable[Path], devices: Devices) -> bytes:
    """The archive: busybox, the init script, what it looks for, the modules and their order."""
    contents = {f"modules/{module.name.split('.')[0]}.ko": _decompressed(module) for module in modules}
    order = "".join(f"{Path(name).name}\n" for name in contents)
    return cpio(
        {
            **dict.fromkeys(("bin", "dev", "modules", "proc", "root", "sys")),
            "bin/busybox": _busybox(),
            "init": _INIT.read_bytes(),
            "devices": f"{devices.disk} {devices.agent}\n".encode(),
            **contents,
            "modules/order": order.encode(),
        }
    )


def cpio(entries: dict[str, bytes | None]) -> bytes:
    """A "newc" archive (cpio(5)) of files (mode 0755) and directories (None), all root's, time 0, in this order."""
    archive = bytearray()
    trailer: dict[str, bytes | None] = {"TRAILER!!!": b""}
    for inode, (name, data) in enumerate([*entries.items(), *trailer.items()], start=1):
        mode = 0o040755 if data is None else 0o100755
        size = 0 if data is None else len(data)
        fields = (inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
        archive += bytes(-len(archive) % 4)
        archive += data or b""
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
