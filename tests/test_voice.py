"""Voices: what is read of a file that was made, and that it is made as asked."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffmpeg_double import Encoder, empty_cache
from virtoll import encoded, voice
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.offers import Voice

VOICE = Voice(32_000, duration_s=2)
HEADS = [b"OpusHead\1\1" + bytes(9), b"OpusTags"]
RIGHT = [*HEADS, *[bytes(80)] * 101]


def say(line: str) -> None:
    print(line, file=sys.stderr)


def ogg(packets: Sequence[bytes], most: int = 50) -> bytes:
    """Packets on pages of so many segments at most (RFC 3533, 6)."""
    lengths = [length for packet in packets for length in (*[255] * (len(packet) // 255), len(packet) % 255)]
    pages: list[bytes] = []
    body, at = b"".join(packets), 0
    for first in range(0, len(lengths), most):
        segments = lengths[first : first + most]
        head = struct.pack("<4sBBqIIIB", b"OggS", 0, 0, 0, 0, len(pages), 0, len(segments))
        pages.append(head + bytes(segments) + body[at : at + sum(segments)])
        at += sum(segments)
    return b"".join(pages)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty_cache(monkeypatch, tmp_path)


@pytest.mark.usefixtures("cache")
def test_it_is_made_once_and_told_of() -> None:
    host = Encoder(ogg(RIGHT), "voice.ogg")
    path = voice.made(host, VOICE, say)
    assert voice.made(host, VOICE, say) == path == voice.file(VOICE)
    assert host.runs == 1
    told = json.loads(path.with_name("manifest.json").read_text())
    assert (told["frames"], told["frame_bytes"], told["ffmpeg"]) == (101, 80, "7:5.1")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("written", "words"),
    [
        (ogg(RIGHT[:-2]), "99 frames of 80 B"),
        (ogg([*RIGHT, bytes(80)]), "102 frames of 80 B"),
        (ogg([*RIGHT[:-1], bytes(79)]), "101 frames of 79, 80 B"),
        (ogg([*HEADS, *[bytes(60)] * 100]), "100 frames of 60 B"),
        (ogg([b"OpusHead\1\2" + bytes(9), *RIGHT[1:]]), "101 frames of 80 B"),  # of two channels
        (ogg(HEADS), "0 frames of no B"),
        (ogg(RIGHT)[:-1], "a page is cut"),
        (b"", "it is no Ogg file"),
    ],
)
def test_what_is_not_as_asked_for_is_refused(written: bytes, words: str) -> None:
    with pytest.raises(HostError, match=words):
        voice.made(Encoder(written, "voice.ogg"), VOICE, say)
    with pytest.raises(HostError, match="was not made"):
        voice.file(VOICE)


@pytest.mark.usefixtures("cache")
def test_one_that_was_written_to_is_not_used() -> None:
    path = voice.made(Encoder(ogg(RIGHT), "voice.ogg"), VOICE, say)
    path.write_bytes(b"cut")
    with pytest.raises(HostError, match="is not as it was made") as raised:
        voice.made(Encoder(ogg(RIGHT), "voice.ogg"), VOICE, say)
    assert f"rm -r {path.parent}" in str(raised.value)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("manifest", ["", "{}", "[]", '{"sha256": 5}', None])
def test_one_whose_manifest_was_written_to_is_not_used(manifest: str | None) -> None:
    """Not a traceback, and not for ever: it is said what removes it."""
    path = voice.made(Encoder(ogg(RIGHT), "voice.ogg"), VOICE, say).with_name("manifest.json")
    path.unlink() if manifest is None else path.write_text(manifest)
    with pytest.raises(HostError, match="is not as it was made") as raised:
        voice.made(Encoder(ogg(RIGHT), "voice.ogg"), VOICE, say)
    assert f"rm -r {path.parent}" in str(raised.value)


@pytest.mark.usefixtures("cache")
def test_one_that_was_removed_is_told_with_what_makes_it_anew() -> None:
    path = voice.made(Encoder(ogg(RIGHT), "voice.ogg"), VOICE, say)
    path.unlink()
    with pytest.raises(HostError, match=r"is not as it was made: FileNotFoundError.*voice\.ogg") as raised:
        voice.made(Encoder(ogg(RIGHT), "voice.ogg"), VOICE, say)
    assert f"rm -r {path.parent}" in str(raised.value)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: ogg(HEADS) + tail))
def test_any_bytes_are_read_or_refused(written: bytes) -> None:
    try:
        packets = list(voice._packets(written))
    except ValueError:
        return
    assert sum(map(len, packets)) <= len(written)


@given(st.lists(st.binary(max_size=600), min_size=1, max_size=20), st.integers(1, 255))
def test_packets_come_back_whichever_pages_they_lie_on(packets: list[bytes], most: int) -> None:
    assert list(voice._packets(ogg(packets, most))) == packets


@pytest.mark.machine
@pytest.mark.parametrize("bit_rate", [8_000, 32_000])
def test_ffmpeg_makes_the_same_each_time(bit_rate: int, tmp_path: Path) -> None:
    try:
        rootfs.build(LocalHost(), "films", encoded.PACKAGES, say)
    except HostError as error:
        pytest.skip(str(error))
    for place in ("one", "other"):
        voice._make(LocalHost(), Voice(bit_rate, duration_s=2), tmp_path / place, say)
    one, other = ((tmp_path / place / "voice.ogg").read_bytes() for place in ("one", "other"))
    assert one == other
