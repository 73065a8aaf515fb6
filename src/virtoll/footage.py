"""Footage: VP8 or H.264 of a size, a frame rate and a bit rate, as participants of a conference send it; made once, and
cached.

    CACHE/footage/
      <footage>-<digest12>/    footage.ivf  manifest.json

ffmpeg makes it (`virtoll.encoded`), of the test source that films are of. A webcam's noise changes from
frame to frame; a desktop's is weak, so that large pictures fit a low rate. Every frame is shown when it comes (there is
no alternate reference, and no B picture), and none depends on what was lost before the last key frame.

The encoder keeps to a constant rate (seed and threads fixed; libvpx with a deadline that does not depend on how fast
the machine is, x264 told to compute alike on all CPUs), so the file is the same each time. Seen: 0 to 20 % off the rate
of VP8, more of small ones, and 0 to 13 % of H.264; the manifest says how much came, and what participants received is
told by their own count.

H.264 is Constrained Baseline, which all browsers take (RFC 7742, 5), a picture in one slice, with its parameter sets
before each key frame. ffmpeg puts no H.264 into IVF, so that is done here, named as libwebrtc names it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from virtoll import encoded, h264
from virtoll.encoded import EXACT, QUIET, WORK
from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.offers import Codec, Footage

_FILE, _STREAM = "footage.ivf", "footage.h264"
_WRAPPED = 1  # how a stream of H.264 is put into IVF: another number where that changes
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
    return encoded.file_of(footage, _entry(footage), _FILE)


def digest(footage: Footage) -> str:
    """The SHA-256 of footage that was made."""
    found: str = encoded.manifest_of(_entry(footage))["sha256"]
    return found


def made(host: Host, footage: Footage, progress: Callable[[str], None]) -> Path:
    """Its file, from the cache where it is there already.

    HostError: no image of ffmpeg can be had, ffmpeg fails, what it makes is something else, or what was made has been
    written to.
    """
    entry = _entry(footage)
    encoded.made(
        footage,
        entry,
        lambda place: _make(host, footage, place, progress),
        lambda: {_FILE: digest(footage)},
    )
    return entry / _FILE


def _entry(footage: Footage) -> Path:
    wrapped = {"wrapped": _WRAPPED} if footage.codec == "h264" else {}
    return encoded.entry_of("footage", footage.name, {"command": _command(footage), **wrapped})


def _make(host: Host, footage: Footage, place: Path, progress: Callable[[str], None]) -> None:
    image = encoded.begun(host, footage, place, progress)
    timeout_s = 600 + 10 * footage.duration_s
    encoded.run_inside(host, image, place, _command(footage), what=footage, timeout_s=timeout_s)
    path = place / _FILE
    try:
        if footage.codec == "h264":
            path.write_bytes(_ivf(footage, h264.frames((place / _STREAM).read_bytes())))
            (place / _STREAM).unlink()
        path.chmod(0o644)
        frames = list(_frames(path.read_bytes(), footage.codec))
    except ValueError as error:
        raise HostError(f"{footage} cannot be made: {error}", remedy="see that the disk has room") from error
    _expect(footage, frames)
    told = {"sha256": encoded.sha256_of(path), "frames": len(frames), "bytes": sum(map(len, frames))}
    encoded.noted("footage", footage, place, image, told)


def _command(footage: Footage) -> list[str]:
    """ffmpeg's command line, inside."""
    picture = f"testsrc2=size={footage.width}x{footage.height}:rate={footage.frames_per_s}"
    picture += f":duration={footage.duration_s},noise=all_seed=1:alls={_NOISE[footage.scene]}:allf=t"
    encoder = _vp8(footage) if footage.codec == "vp8" else _h264(footage)
    form = ("ivf", _FILE) if footage.codec == "vp8" else ("h264", _STREAM)
    return [*QUIET, "-f", "lavfi", "-i", picture, *encoder.split(), *EXACT, "-f", form[0], f"{WORK}/{form[1]}"]


def _vp8(footage: Footage) -> str:
    group, rate = footage.key_frames_s * footage.frames_per_s, footage.bit_rate
    vp8 = "-c:v libvpx -pix_fmt yuv420p -threads 1 -deadline good -cpu-used 4 -auto-alt-ref 0 -lag-in-frames 0"
    vp8 += f" -error-resilient 1 -b:v {rate} -minrate {rate} -maxrate {rate} -bufsize {rate}"
    return vp8 + f" -g {group} -keyint_min {group}"


def _h264(footage: Footage) -> str:
    """Without x264's words about itself (SEI, kind 6 of NAL units), and with a delimiter before each frame."""
    group, rate = footage.key_frames_s * footage.frames_per_s, footage.bit_rate
    x264 = "-c:v libx264 -profile:v baseline -preset veryfast -tune zerolatency -pix_fmt yuv420p -threads 1"
    x264 += f" -b:v {rate} -maxrate {rate} -bufsize {rate} -sc_threshold 0 -g {group} -keyint_min {group}"
    return x264 + " -x264-params threads=1:cpu-independent=1:aud=1 -bsf:v filter_units=remove_types=6"


def _ivf(footage: Footage, frames: list[bytes]) -> bytes:
    """An IVF file of these frames."""
    sides, rate = (footage.width, footage.height), footage.frames_per_s
    head = _HEAD.pack(b"DKIF", 0, _HEAD.size, _CODED[footage.codec].four_cc, *sides, rate, 1, len(frames), 0)
    return head + b"".join(_FRAME.pack(len(frame), at) + frame for at, frame in enumerate(frames))


def _frames(ivf: bytes, of: Codec) -> Iterator[bytes]:
    """The frames of an IVF file of that codec. ValueError where it is none, or is cut."""
    if len(ivf) < _HEAD.size:
        raise ValueError("it has no head")
    magic, _, head_bytes, codec, *_ = _HEAD.unpack_from(ivf)
    if (magic, head_bytes, codec) != (b"DKIF", _HEAD.size, _CODED[of].four_cc):
        raise ValueError(f"it is no IVF file of {of}")
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
    group, coded = footage.key_frames_s * footage.frames_per_s, _CODED[footage.codec]
    keys = [at for at, frame in enumerate(frames) if coded.is_key(frame)]
    wanted = list(range(0, footage.duration_s * footage.frames_per_s, group))
    sizes = {coded.size(frames[at]) for at in keys}
    off = abs(8 * sum(map(len, frames)) / footage.duration_s / footage.bit_rate - 1)
    may_be_off = _TOLERANCE + _BUFFER_S / footage.duration_s
    is_whole = len(frames) == footage.duration_s * footage.frames_per_s and keys == wanted
    if not (is_whole and sizes == {(footage.width, footage.height)} and off <= may_be_off):
        what = f"{len(frames)} frames, {len(keys)} of them key frames, {off:.0%} off its rate came of it"
        raise HostError(f"{footage} cannot be made: {what}", remedy="ask for another bit rate, size or length")


def _is_vp8_key(frame: bytes) -> bool:
    return not frame[0] & 1


def _vp8_size(key_frame: bytes) -> tuple[int, int] | None:
    """Width and height of a key frame (RFC 6386, 9.1); None where it is cut, or is none."""
    if len(key_frame) < _KEY_FRAME.size:
        return None
    _, code, width, height = _KEY_FRAME.unpack_from(key_frame)
    return (width & 0x3FFF, height & 0x3FFF) if code == _START_CODE else None


class _Coded(NamedTuple):
    """How a codec is known again: by its name in IVF; and of a frame whether it is a key frame, and then its size."""

    four_cc: bytes
    is_key: Callable[[bytes], bool]
    size: Callable[[bytes], tuple[int, int] | None]


_CODED: dict[Codec, _Coded] = {
    "vp8": _Coded(b"VP80", _is_vp8_key, _vp8_size),
    "h264": _Coded(b"H264", h264.is_key, h264.size),
}
