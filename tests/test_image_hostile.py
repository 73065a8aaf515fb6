"""Archives that are no tool's: two readers have different files of them, or stumble. Nothing of them is unpacked.

tarfile counts and looks for what may not be; umoci (Go's archive/tar) unpacks.
"""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
import zlib
from pathlib import Path

import pytest

from ocimake import Entry, Made, docker_files, layer, layout_files, write_archive, write_directory
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import bounds, oci, unpack
from virtoll.images.source import Source

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        not all(shutil.which(program) for program in unpack.PACKAGES), reason="apt-get install skopeo umoci"
    ),
]
_END = bytes(1024)
_BIG_BYTES = 3_000_000


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of no more than a megabyte, in a cache of its own."""
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bounds, "MOST_BYTES", 1_000_000)


def member(name: str, data: bytes = b"", kind: bytes = b"0", **more: str) -> bytes:
    header = tarfile.TarInfo(name)
    header.size, header.type = len(data), kind
    for attribute, value in more.items():
        setattr(header, attribute, value)
    return header.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


def patched(block: bytes, offset: int, field: bytes) -> bytes:
    """A header with another field, and the checksum that belongs to it."""
    header = bytearray(block)
    header[offset : offset + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax(kind: bytes = b"x", /, **records: str) -> bytes:
    """An extended header; ``__`` in a keyword is a dot."""
    body = b""
    for key, value in records.items():
        rest = f" {key.replace('__', '.')}={value}\n".encode()
        length = next(length for length in range(10_000) if length == len(str(length)) + len(rest))
        body += str(length).encode() + rest
    return member("pax", body, kind)


def long_name(name: str) -> bytes:
    return member("././@LongLink", name.encode() + b"\0", b"L")


BIG = member("big", bytes(_BIG_BYTES))
OK = member("ok", b"hi")
WHITEOUT = member(".wh...")
HIDES_NEXT = member("decoy", bytes(512))[:512]
BAD_UID = patched(member("decoy"), 108, b"\x81" + bytes(7))
BAD_MODE = patched(member("decoy"), 100, b"\0 644\0\0\0")


def refused(path: Path) -> str:
    with pytest.raises(HostError) as raised:
        oci.build(LocalHost(), "shop", Source("oci", path, ""), lambda told: None)
    assert raised.value.problem.where
    assert raised.value.problem.remedy
    return str(raised.value)


@pytest.mark.parametrize(
    "hidden",
    [
        OK + BAD_UID + BIG,
        OK + BAD_MODE + BIG,
        OK + BAD_UID + WHITEOUT,
        OK + pax(size="0") + bytes(512) + BIG,
        pax(b"g", size="0") + BIG,
        pax(b"g", path="shown") + WHITEOUT,
        pax(GNU__sparse__realsize="0") + BIG,
        pax(GNU__sparse__size="0") + BIG,
        pax(GNU__sparse__name="shown", path=".wh...") + member("x"),
        pax(path="shown") + pax(path=".wh...") + member("x"),
        pax(path="shown") + long_name(".wh...") + member("x"),
        long_name(".wh...") + pax(path="shown") + member("x"),
        long_name("shown") + long_name(".wh...") + member("x"),
        pax(b"X", path="shown") + WHITEOUT,
        pax(path=".wh...") + pax(b"g", comment="c") + member("x"),
        long_name("directory/") + member("x", WHITEOUT, tarfile.AREGTYPE),
        pax(path="directory/") + member("x", WHITEOUT, tarfile.AREGTYPE),
        long_name("file") + member("x/", HIDES_NEXT, tarfile.AREGTYPE) + WHITEOUT,
        pax(path="file") + member("x/", HIDES_NEXT, tarfile.AREGTYPE) + WHITEOUT,
    ],
    ids=range(19),
)
def test_what_tarfile_does_not_see_is_not_unpacked(hidden: bytes, tmp_path: Path) -> None:
    made = Made([hidden + _END], {"Cmd": ["/x"]})
    said = refused(write_archive(tmp_path / "image.tar", layout_files({"1": made})))
    assert "damaged" in said or "unpacks to more than" in said or "removes what is no file of it" in said


def test_no_header_passes_by_unseen_whatever_python_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some versions of tarfile read what follows an extended header by methods of their own, not by `frombuf`."""
    own = tarfile.TarInfo.frombuf.__func__  # type: ignore[attr-defined]

    def from_tar(cls: type[tarfile.TarInfo], archive: tarfile.TarFile) -> tarfile.TarInfo:
        found = own(cls, archive.fileobj.read(512), archive.encoding, archive.errors)
        found.offset = archive.fileobj.tell() - 512
        return found._proc_member(archive)  # type: ignore[no-any-return]

    monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", classmethod(from_tar))
    path = tmp_path / "layer.tar"
    path.write_bytes(pax(path="shown") + pax(path=".wh...") + member("x") + _END)
    with pytest.raises(HostError, match="contradict"), bounds.tar_members(path, "layer") as (_, members):
        list(members)


def test_what_was_counted_wrongly_is_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds.Bounds, "count_member", lambda *_: None)
    made = Made([BIG + member("more", kind=b"1", linkname="big") + _END], {"Cmd": ["/x"]})
    path = write_archive(tmp_path / "image.tar", layout_files({"1": made}))
    assert "unpacks to more than" in refused(path)
    monkeypatch.setattr(bounds, "MOST_BYTES", _BIG_BYTES)
    oci.build(LocalHost(), "shop", Source("oci", path, ""), lambda told: None)


@pytest.mark.parametrize(
    "before",
    [
        pax(comment="a") * 3000,
        pax(b"g", comment="a") * 3000,
        long_name("abc") * 3000,
        pax(GNU__sparse__map="a,b", GNU__sparse__size="x"),
        pax(GNU__sparse__major="1", GNU__sparse__minor="0", GNU__sparse__name="z"),
        pax(GNU__sparse__realsize="much"),
        pax(size="-512"),
    ],
    ids=["pax", "global", "long", "map", "no map", "number", "negative"],
)
@pytest.mark.parametrize("of", ["layer", "image"])
def test_headers_that_mean_nothing_are_a_damaged_archive(of: str, before: bytes, tmp_path: Path) -> None:
    made = Made([(before if of == "layer" else b"") + member("f", b"x") + _END], {"Cmd": ["/x"]})
    path = write_archive(tmp_path / "image.tar", layout_files({"1": made}))
    if of == "image":
        path.write_bytes(before + path.read_bytes())
    assert "damaged" in refused(path)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
@pytest.mark.parametrize("target", ["nowhere", "blobs/sha256/own"])
def test_a_layer_that_is_no_file_is_missing(kind: bytes, target: str, tmp_path: Path) -> None:
    made = Made([member("f", b"x") + _END], {"Cmd": ["/x"]})
    files = layout_files({"1": made})
    blob = next(name for name, data in files.items() if name.startswith("blobs/") and data.startswith(b"\x1f\x8b"))
    linkname = target.replace("blobs/sha256/own", blob)
    parts = [
        member(blob, kind=kind, linkname=linkname) if name == blob else member(name, files[name]) for name in files
    ]
    (tmp_path / "image.tar").write_bytes(b"".join(parts) + _END)
    said = refused(tmp_path / "image.tar")
    assert "missing" in said or "damaged" in said


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_of_two_files_of_one_name_none_is_taken(name: str, tmp_path: Path) -> None:
    """skopeo takes the first, we took the last: what it found was kept under the id of another image, and was what that
    image's user got from then on.
    """
    meant, other = (Made([layer(Entry(who, b"1"))], {"Cmd": ["/x"]}) for who in ("meant", "other"))
    second = docker_files({"shop:1": meant}, legacy=True)
    first = docker_files({"shop:1": other}, legacy=True)
    if name == "config.json":  # one manifest, and two of what it names
        entry = json.loads(second["manifest.json"])[0] | {
            "Config": name,
            "Layers": json.loads(first["manifest.json"])[0]["Layers"],
        }
        first[name], second = other.document(), {name: meant.document(), "manifest.json": json.dumps([entry]).encode()}
        del first["manifest.json"]
    entries = [Entry(path, data) for files in (first, second) for path, data in files.items()]
    (tmp_path / "shop.tar").write_bytes(layer(*entries))
    assert "under one name" in refused(tmp_path / "shop.tar")


def test_a_layer_that_is_two_archives_is_none(tmp_path: Path) -> None:
    """Not packed, by its name, and umoci unpacks that; but its first header begins as gzip does, and has it skip the
    rest of itself: skopeo let it be, and the small archive that is packed in its first file was what was measured.
    """
    shown = member("shown", b"hi") + _END
    packed = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    inner = packed.compress(shown) + packed.flush() + struct.pack("<II", zlib.crc32(shown), len(shown))
    begins = b"\x1f\x8b\x08\x04\1\1\1\1\2\3" + struct.pack("<H", 512 - 12)
    outer = member("x", inner)
    made = Made([patched(outer[:512], 0, begins) + outer[512:] + WHITEOUT + _END], {"Cmd": ["/x"]})
    said = refused(write_directory(tmp_path / "layout", layout_files({"1": made}, "")))
    assert "packed otherwise than it says" in said
