"""Voices: Opus of a bit rate, as those who speak in a conference send it; made once, and cached.

    CACHE/voices/
      <voice>-<digest12>/    voice.ogg  manifest.json

ffmpeg makes it (`virtoll.encoded`): pink noise of a seed that swells four times a
second, about as often as syllables do. Frames are of 20 ms, and all of one length (constant bit rate), so that what is
sent does not depend on what is said. The file is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from virtoll import encoded
from virtoll.encoded import EXACT, QUIET, WORK
from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.offers import Voice

_FILE = "voice.ogg"
_FRAMES_PER_S = 50
_HEAD_BYTES = 27  # of a page of Ogg (RFC 3533, 6), without its segments' lengths
_FULL = 255  # a shorter segment ends its packet
_HEADERS = 2  # packets before the first frame (RFC 7845, 5)


def file(voice: Voice) -> Path:
    """Where a voice that was made lies on this machine. HostError where it was not made."""
    return encoded.file_of(voice, _entry(voice), _FILE)


def digest(voice: Voice) -> str:
    """The SHA-256 of a voice that was made."""
    found: str = encoded.manifest_of(_entry(voice))["sha256"]
    return found


def made(host: Host, voice: Voice, progress: Callable[[str], None]) -> Path:
    """Its file, from the cache where it is there already.

    HostError: no image of ffmpeg can be had, ffmpeg fails, what it makes is something else, or what was made has been
    written to.
    """
    entry = _entry(voice)
    encoded.made(
        voice,
        entry,
        lambda place: _make(host, voice, place, progress),
        lambda: {_FILE: digest(voice)},
    )
    return entry / _FILE


def _entry(voice: Voice) -> Path:
    return encoded.entry_of("voices", voice.name, {"command": _command(voice)})


def _make(host: Host, voice: Voice, place: Path, progress: Callable[[str], None]) -> None:
    image = encoded.begun(host, voice, place, progress)
    encoded.run_inside(host, image, place, _command(voice), what=voice, timeout_s=600)
    path = place / _FILE
    path.chmod(0o644)
    try:
        head, *packets = _packets(path.read_bytes())
        frames = packets[_HEADERS - 1 :]
    except ValueError as error:
        raise HostError(f"{voice} cannot be made: {error}", remedy="see that the disk has room") from error
    _expect(voice, head, frames)
    told = {"sha256": encoded.sha256_of(path), "frames": len(frames), "frame_bytes": len(frames[0])}
    encoded.noted("voice", voice, place, image, told)


def _command(voice: Voice) -> list[str]:
    """ffmpeg's command line, inside."""
    sound = f"anoisesrc=sample_rate=48000:color=pink:seed=1:amplitude=0.1:duration={voice.duration_s},tremolo=f=4:d=0.9"
    opus = (
        f"-c:a libopus -ac 1 -application voip -frame_duration {1000 // _FRAMES_PER_S} -vbr off -b:a {voice.bit_rate}"
    )
    return [*QUIET, "-f", "lavfi", "-i", sound, *opus.split(), *EXACT, "-f", "ogg", f"{WORK}/{_FILE}"]


def _packets(ogg: bytes) -> Iterator[bytes]:
    """The packets of an Ogg file of one stream. ValueError where it is none, or is cut."""
    packet, at = b"", 0
    while at < len(ogg) or not at:
        if ogg[at : at + 5] != b"OggS\0" or len(ogg) < at + _HEAD_BYTES:
            raise ValueError("it is no Ogg file, or a page's head is cut")
        count = ogg[at + _HEAD_BYTES - 1]
        lengths = ogg[at + _HEAD_BYTES : at + _HEAD_BYTES + count]
        at += _HEAD_BYTES + count
        if len(lengths) < count or len(ogg) < at + sum(lengths):
            raise ValueError("a page is cut")
        for length in lengths:
            packet += ogg[at : at + length]
            at += length
            if length < _FULL:
                yield packet
                packet = b""
    if packet:
        raise ValueError("a packet is cut")


def _expect(voice: Voice, head: bytes, frames: list[bytes]) -> None:
    """HostError where it is no Opus of one channel, of the length or of the rate that were asked for: the encoder may
    round a frame to a byte, and flushes one more than was said.
    """
    wanted, lengths = voice.duration_s * _FRAMES_PER_S, {len(frame) for frame in frames}
    is_opus = head[:8] == b"OpusHead" and head[9:10] == b"\1"
    is_of_rate = len(lengths) == 1 and abs(min(lengths) - voice.bit_rate / 8 / _FRAMES_PER_S) <= 1
    if not (is_opus and wanted <= len(frames) <= wanted + 1 and is_of_rate):
        what = f"{len(frames)} frames of {', '.join(map(str, sorted(lengths)[:3])) or 'no'} B came of it"
        raise HostError(f"{voice} cannot be made: {what}", remedy="ask for another bit rate")
