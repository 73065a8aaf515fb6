"""The ELF file that a bzImage holds packed, for monitors that may take no other kernel.

A distribution ships its kernel as a bzImage, which unpacks itself in the guest. Firecracker takes the ELF file alone (a
bzImage too from 1.17 on), and Cloud Hypervisor a bzImage since v39; both take the ELF file, so that is what they get.
Where the packed file lies is told by the image's header (Linux, Documentation/arch/x86/boot.rst: setup_sects,
payload_offset, payload_length), how it was packed by its first bytes, and its length unpacked by its last four.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.programs import find
from virtoll.images.cached import cached
from virtoll.images.kernel import Kernel

ELF = b"\x7fELF"
UNPACKERS = {"lz4": "lz4", "zstd": "zstd"}  # by package: those of the programs below that not every machine has
_PROGRAMS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x5d\x00\x00": "xz",  # as LZMA alone
    b"\xfd7zXZ\x00": "xz",
    b"\x02\x21\x4c\x18": "lz4",  # its legacy frame
    b"\x28\xb5\x2f\xfd": "zstd",
}
_BY_FIELD = 0x208  # the version of the boot protocol from which on the two fields of the payload are there
_SECTOR_BYTES = 512
_HEADER_BYTES = 0x250
_LENGTH_BYTES = 4
_MOST_BYTES = 1024**3  # of a kernel; Debian's has 53 MB
_BLOCK_BYTES = 512  # what `ulimit -f` counts in
_UNPACK = 'ulimit -f "$1" && exec "$2" -dc <"$3" >"$4"'
_REMEDY = "give kernel = PATH of an uncompressed vmlinux (ELF) in the study file's arm"


def unpacked(host: Host, kernel: Kernel, progress: Callable[[str], None]) -> Kernel:
    """``kernel`` with the ELF file in its bzImage's place; made once. HostError says what is missing, or damaged."""
    image = kernel.vmlinuz.read_bytes()
    if image.startswith(ELF):
        return kernel

    def make(partial: Path) -> None:
        progress(f"unpacking the guests' kernel {kernel.version}")
        partial.mkdir()
        write_elf(host, image, partial / "vmlinux", str(kernel.vmlinuz))

    name = f"vmlinux-{hashlib.sha256(image).hexdigest()[:16]}"
    return replace(kernel, vmlinuz=cached(cache_directory() / "kernels" / name, make) / "vmlinux")


def write_elf(host: Host, image: bytes, path: Path, where: str) -> None:
    """Write the ELF file in a bzImage to ``path``.

    HostError where it is none, where it was packed by what is not known or not installed, and where it is damaged.
    """
    packed = payload(image, where)
    program = next((name for magic, name in _PROGRAMS.items() if packed.startswith(magic)), "")
    if not program:
        raise HostError(
            f"it is packed in a way that virtoll does not know ({packed[:6]!r})", where=where, remedy=_REMEDY
        )
    if find(program) is None:
        package = UNPACKERS.get(program, "xz-utils" if program == "xz" else program)
        raise HostError(
            f"{program} is missing, which unpacks it", where=where, remedy=f"apt-get install {package}; or {_REMEDY}"
        )
    length = int.from_bytes(packed[-_LENGTH_BYTES:], "little")
    beside = path.with_name("packed")
    # Linux appends the length to what has no room for it, and programs take it for garbage.
    host.put(beside, packed if program == "gzip" else packed[:-_LENGTH_BYTES])
    most_blocks = min(length, _MOST_BYTES) // _BLOCK_BYTES + 1
    argv = ["sh", "-c", _UNPACK, "sh", str(most_blocks), program, str(beside), str(path)]
    path.touch()
    done = host.run(argv, timeout_s=300, check=False)
    beside.unlink()
    with path.open("rb") as made:
        head = made.read(len(ELF))
    if done.returncode != 0 or head != ELF or path.stat().st_size != length:
        told = f"{program} makes {path.stat().st_size} bytes of it, and no ELF file of {length}"
        said = done.stderr.decode(errors="replace").strip()[:400]
        raise HostError(f"{told} (exit {done.returncode}) {said}".strip(), where=where, remedy=_REMEDY)


def payload(image: bytes, where: str) -> bytes:
    """The packed kernel in a bzImage. HostError where the image has none within its bounds."""
    if len(image) >= _HEADER_BYTES and image[0x202:0x206] == b"HdrS":
        (protocol,) = struct.unpack_from("<H", image, 0x206)
        sectors = image[0x1F1] or 4
        offset, length = struct.unpack_from("<II", image, 0x248)
        start = (sectors + 1) * _SECTOR_BYTES + offset
        if protocol >= _BY_FIELD and length > _LENGTH_BYTES and start + length <= len(image):
            return image[start : start + length]
    raise HostError("no bzImage with a packed kernel in it (boot protocol 2.08 or later)", where=where, remedy=_REMEDY)
