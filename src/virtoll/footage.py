"""Footage: VP8 of a size, a frame rate and a bit rate, as participants of a conference send it; made once, and cached.

    CACHE/footage/
      <footage>-<digest12>/    footage.ivf  manifest.json

ffmpeg makes it, in the image and of the test source that films are of (`virtoll.films`). A webcam's noise changes from
frame to frame; a desktop's is weak, so that large pictures fit a low rate. Every frame is shown when it comes (there is
no alternate reference), and none depends on what was lost before the last key frame.

The encoder keeps to a constant rate (libvpx, seed and threads fixed, a deadline that does not depend on how fast the
machine is), so the file is the same each time. Seen: 0 to 20 % off the rate, more of small ones; the manifest says how
much came, and what participants received is told by their own count.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from virtoll.errors import HostError, Problem
from virtoll.films import EXACT, PACKAGES, QUIET, WORK, run_inside, sha256_of
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.images import rootfs
from virtoll.images.cached import cached
from virtoll.offers import Footage

_FILE = "footage.ivf"
_NOISE = {"webcam": 8, "desktop": 2}
_LEAST_BIT_PER_S, _MOST_BIT_PER_S = 30_000, 20_000_000
_MOST_SIDE, _MOST_FRAMES_PER_S, _MOST_S = 1920, 60, 120
_TOLERANCE, _BUFFER_S = 0.15, 1.0  # of the rate, and what the encoder may keep in its buffer
# An IVF file's head, and that of each of its frames: little-endian, as libvpx's ivfenc.c writes them.
_HEAD, _FRAME = struct.Struct("<4sHH4sHHIIII"), struct.Struct("<IQ")
_KEY_FRAME = struct.Struct("<3s3sHH")  # RFC 6386, 9.1: tag, start code, width, height (14 bit each)
_START_CODE = b"\x9d\x01\x2a"


def problems(footage: Footage) -> list[Problem]:
    """What keeps it from being made, as far as that is seen before; empty when nothing does."""
    sides, rate = (footage.width, footage.height), footage.bit_rate
    fits = all(16 <= side <= _MOST_SIDE and side % 2 == 0 for side in sides)
    fits = fits and _LEAST_BIT_PER_S <= rate <= _MOST_BIT_PER_S and 1 <= footage.frames_per_s <= _MOST_FRAMES_PER_S
    if fits and 1 <= footage.key_frames_s <= footage.duration_s <= _MOST_S:
        return []
    remedy = f"ask for even sides of 16 to {_MOST_SIDE}, 1 to {_MOST_FRAMES_PER_S} frames/s, and "
    remedy += f"{_LEAST_BIT_PER_S / 1e6:g} to {_MOST_BIT_PER_S / 1e6:g} Mbit/s"
    return [Problem(f"{footage} cannot be made", f"[load] {footage.scene}", remedy)]


def file(footage: Footage) -> Path:
    """Where footage that was made lies on this machine. HostError where it was not made."""
    path = _entry(footage) / _FILE
    if not path.is_file():
        raise HostError(f"{footage} was not made", where=str(path), remedy="run a study that asks for it, as root")
    return path


def made(host: Host, footage: Footage, progress: Callable[[str], None]) -> Path:
    """Its file, from the cache where it is there already.

    HostError: no image of ffmpeg can be had, ffmpeg fails, what it makes is something else, or what was made has been
    written to.
    """
    entry = _entry(footage)
    try:
        cached(entry, lambda place: _make(host, footage, place, progress))
        told = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
        is_as_made = told["sha256"] == sha256_of(file(footage))
    except OSError as error:
        where, remedy = error.filename or str(entry), "see that the disk has room; VIRTOLL_CACHE names another place"
        raise HostError(f"{footage} cannot be written: {error.strerror}", where=where, remedy=remedy) from error
    if not is_as_made:
        what = f"{footage} is not as it was made"
        raise HostError(what, where=str(entry), remedy=f"rm -r {entry}, and the next run makes it anew")
    return entry / _FILE


def _entry(footage: Footage) -> Path:
    inputs = {"packages": PACKAGES, "suite": rootfs.SUITE, "command": _command(footage)}
    name = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return cache_directory() / "footage" / f"{footage.name}-{name[:12]}"


def _make(host: Host, footage: Footage, place: Path, progress: Callable[[str], None]) -> None:
    image = rootfs.build(host, "films", PACKAGES, progress)
    place.mkdir()
    progress(f"encoding {footage} (once)")
    run_inside(host, image, place, _command(footage), what=footage, timeout_s=600 + 10 * footage.duration_s)
    path = place / _FILE
    path.chmod(0o644)
    try:
        frames = list(_frames(path.read_bytes()))
    except ValueError as error:
        raise HostError(f"{footage} cannot be made: {error}", remedy="see that the disk has room") from error
    _expect(footage, frames)
    told = {
        "footage": str(footage),
        "ffmpeg": rootfs.manifest(image)["versions"].get("ffmpeg"),
        "sha256": sha256_of(path),
        "frames": len(frames),
        "bytes": sum(len(frame) for frame in frames),
    }
    (place / "manifest.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _command(footage: Footage) -> list[str]:
    """ffmpeg's command line, inside."""
    picture = f"testsrc2=size={footage.width}x{footage.height}:rate={footage.frames_per_s}"
    picture += f":duration={footage.duration_s},noise=all_seed=1:alls={_NOISE[footage.scene]}:allf=t"
    group, rate = footage.key_frames_s * footage.frames_per_s, footage.bit_rate
    vp8 = "-c:v libvpx -pix_fmt yuv420p -threads 1 -deadline good -cpu-used 4 -auto-alt-ref 0 -lag-in-frames 0"
    vp8 += f" -error-resilient 1 -b:v {rate} -minrate {rate} -maxrate {rate} -bufsize {rate}"
    vp8 += f" -g {group} -keyint_min {group}"
    return [*QUIET, "-f", "lavfi", "-i", picture, *vp8.split(), *EXACT, "-f", "ivf", f"{WORK}/{_FILE}"]


def _frames(ivf: bytes) -> Iterator[bytes]:
    """The frames of an IVF file. ValueError where it is none, or is cut."""
    if len(ivf) < _HEAD.size:
        raise ValueError("it has no head")
    magic, _, head_bytes, codec, *_ = _HEAD.unpack_from(ivf)
    if (magic, head_bytes, codec) != (b"DKIF", _HEAD.size, b"VP80"):
        raise ValueError("it is no IVF file of VP8")
    at = _HEAD.size
    while at < len(ivf):
        if len(ivf) - at < _FRAME.size:
            raise ValueError("a frame's head is cut")
        length, _ = _FRAME.unpack_from(ivf, at)
        at += _FRAME.size
        if not 0 < length <= len(ivf) - at:
            raise ValueError("a frame is cut")
        yield ivf[at : at + length]
        at += length


def _expect(footage: Footage, frames: list[bytes]) -> None:
    """HostError where it is not of the size, the length, the key frames or, about, the rate that were asked for."""
    group = footage.key_frames_s * footage.frames_per_s
    keys = [at for at, frame in enumerate(frames) if not frame[0] & 1]
    wanted = list(range(0, footage.duration_s * footage.frames_per_s, group))
    sizes = {_size(frames[at]) for at in keys}
    off = abs(8 * sum(map(len, frames)) / footage.duration_s / footage.bit_rate - 1)
    may_be_off = _TOLERANCE + _BUFFER_S / footage.duration_s
    is_whole = len(frames) == footage.duration_s * footage.frames_per_s and keys == wanted
    if not (is_whole and sizes == {(footage.width, footage.height)} and off <= may_be_off):
        what = f"{len(frames)} frames, {len(keys)} of them key frames, {off:.0%} off its rate came of it"
        raise HostError(f"{footage} cannot be made: {what}", remedy="ask for another bit rate, size or length")


def _size(key_frame: bytes) -> tuple[int, int] | None:
    """Width and height of a key frame (RFC 6386, 9.1); None where it is cut, or is none."""
    if len(key_frame) < _KEY_FRAME.size:
        return None
    _, code, width, height = _KEY_FRAME.unpack_from(key_frame)
    return (width & 0x3FFF, height & 0x3FFF) if code == _START_CODE else None
