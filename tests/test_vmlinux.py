"""The ELF file in a bzImage: images made as Linux makes them, damaged ones, and those that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.hosts.programs import find
from virtoll.images import vmlinux
from virtoll.images.kernel import Kernel

ELF = b"\x7fELF\x02\x01" + bytes(range(256)) * 64
# As Linux has it (scripts/Makefile.lib): the command, and whether its output says itself how long the file was.
PACKERS = {
    "gzip": (("gzip", "-n", "-9"), True),
    "bzip2": (("bzip2", "-9"), False),
    "xz": (("xz", "--check=crc32", "--x86", "--lzma2=dict=1MiB"), False),
    "lzma": (("xz", "--format=lzma"), False),
    "lz4": (("lz4", "-l", "-9", "-c"), False),
    "zstd": (("zstd", "-3"), False),
}


def image(packed: bytes, *, protocol: int = 0x20F, sectors: int = 39, offset: int = 716) -> bytes:
    """A bzImage, but for its code."""
    head = bytearray((sectors + 1) * 512 + offset)
    head[0x1F1] = sectors
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x206, protocol)
    struct.pack_into("<II", head, 0x248, offset, len(packed))
    return bytes(head) + packed + b"what follows"


def packed(how: str, data: bytes = ELF, length: int | None = None) -> bytes:
    """Packed as Linux does it, with its length behind."""
    argv, tells_its_length = PACKERS[how]
    if find(argv[0]) is None:
        pytest.skip(f"no {argv[0]}")
    body = LocalHost().run(argv, stdin=data).stdout
    return body if tells_its_length else body + struct.pack("<I", len(data) if length is None else length)


def elf(directory: Path, made: bytes, where: str = "x") -> bytes:
    """What is unpacked of an image."""
    vmlinux.write_elf(LocalHost(), made, directory / "vmlinux", where)
    assert [path.name for path in directory.iterdir()] == ["vmlinux"]
    return (directory / "vmlinux").read_bytes()


@pytest.mark.parametrize("how", PACKERS)
def test_a_kernel_that_is_packed_in_any_of_linuxs_ways(how: str, tmp_path: Path) -> None:
    assert elf(tmp_path, image(packed(how))) == ELF


def test_sectors_that_are_not_told_are_four(tmp_path: Path) -> None:
    told = bytearray(image(packed("gzip"), sectors=4))
    told[0x1F1] = 0
    assert elf(tmp_path, bytes(told)) == ELF


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        (b"", "no bzImage"),
        (ELF, "no bzImage"),
        (image(b"x" * 100, protocol=0x207), "no bzImage"),
        (image(b"x" * 100)[:-50], "no bzImage"),
        (image(b"\x89LZO" * 20), "packed in a way that virtoll does not know"),
    ],
)
def test_what_is_no_kernel_is_told(damaged: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=told) as raised:
        elf(tmp_path, damaged, "/boot/vmlinuz")
    assert raised.value.problem.where == "/boot/vmlinuz"
    assert "vmlinux" in raised.value.problem.remedy


def test_a_kernel_that_is_shorter_than_it_says_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"makes {len(ELF)} bytes of it, and no ELF file of {len(ELF) + 9}"):
        elf(tmp_path, image(packed("xz", length=len(ELF) + 9)))
    with pytest.raises(HostError, match="no ELF file of 4"):
        elf(tmp_path, image(packed("xz", b"what")))


def test_what_is_longer_than_it_says_fills_no_disk(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"xz makes \d+ bytes of it, and no ELF file of 7 \(exit"):
        elf(tmp_path, image(packed("xz", ELF + bytes(2**19), length=7)))
    assert (tmp_path / "vmlinux").stat().st_size <= 512


def test_a_kernel_may_be_larger_than_what_a_command_may_print(tmp_path: Path) -> None:
    large = ELF + bytes(17 * 1024**2)
    assert elf(tmp_path, image(packed("xz", large))) == large


def test_one_that_cannot_be_unpacked_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="xz"):
        elf(tmp_path, image(packed("xz")[:-200] + bytes(200)), "x")


def test_a_program_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vmlinux, "find", lambda _name: None)
    for magic, package in ((b"\x02\x21\x4c\x18", "lz4"), (b"\xfd7zXZ\x00", "xz-utils")):
        with pytest.raises(HostError, match="is missing") as raised:
            elf(tmp_path, image(magic * 10), "x")
        assert f"apt-get install {package};" in raised.value.problem.remedy


@given(st.binary(max_size=2000), st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_payload_lies_within_its_image(rest: bytes, sectors: int, offset: int, length: int) -> None:
    made = bytearray(image(rest, sectors=sectors or 4))
    struct.pack_into("<II", made, 0x248, offset, length)
    made[0x1F1] = sectors
    try:
        found = vmlinux.payload(bytes(made), "x")
    except HostError:
        return
    assert len(found) == length


@given(st.binary(max_size=1500))
def test_what_comes_as_a_kernel_may_be_anything(data: bytes) -> None:
    with pytest.raises(HostError):
        vmlinux.payload(data, "x")


def test_it_is_unpacked_once_and_has_the_same_name_in_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "vmlinuz").write_bytes(image(packed("gzip")))
    kernel = Kernel(tmp_path / "vmlinuz", tmp_path / "initramfs", "6.1.0", "0" * 64)
    said: list[str] = []
    found = vmlinux.unpacked(LocalHost(), kernel, said.append)
    assert found.vmlinuz.read_bytes() == ELF
    assert (found.initramfs, found.version, found.digest) == (kernel.initramfs, kernel.version, kernel.digest)
    assert vmlinux.unpacked(LocalHost(), kernel, said.append) == found
    assert said == ["unpacking the guests' kernel 6.1.0"]


def test_one_that_is_unpacked_already_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(ELF)
    kernel = Kernel(tmp_path / "vmlinux", tmp_path / "initramfs", "6.1.0", "0" * 64)
    assert vmlinux.unpacked(LocalHost(), kernel, pytest.fail) is kernel
