"""Footage: what can be asked for, what is read of a file that was made, and that it is made as asked."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_h264 as h264
from ffmpeg_double import Encoder, empty_cache
from virtoll import encoded, footage
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.offers import Footage

WEBCAM = Footage("webcam", 320, 180, 10, 100_000, key_frames_s=1, duration_s=2)
H264 = replace(WEBCAM, codec="h264")


def say(line: str) -> None:
    print(line, file=sys.stderr)


def frame(is_key: bool, length: int = 1250, width: int = 320, height: int = 180) -> bytes:
    head = struct.pack("<3s3sHH", b"\x10\0\0", b"\x9d\x01\x2a", width, height) if is_key else b"\x31\0\0"
    return head + bytes(length - len(head))


def ivf(frames: Sequence[bytes], magic: bytes = b"DKIF", codec: bytes = b"VP80") -> bytes:
    head = struct.pack("<4sHH4sHHIIII", magic, 0, 32, codec, 320, 180, 10, 1, len(frames), 0)
    return head + b"".join(struct.pack("<IQ", len(each), at) + each for at, each in enumerate(frames))


RIGHT = [frame(at % 10 == 0) for at in range(20)]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty_cache(monkeypatch, tmp_path)


@pytest.mark.usefixtures("cache")
def test_it_is_made_once_and_told_of() -> None:
    host = Encoder(ivf(RIGHT), "footage.ivf")
    path = footage.made(host, WEBCAM, say)
    assert footage.made(host, WEBCAM, say) == path == footage.file(WEBCAM)
    assert host.runs == 1
    told = json.loads(path.with_name("manifest.json").read_text())
    assert (told["frames"], told["bytes"], told["ffmpeg"]) == (20, 25_000, "7:5.1")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("written", "words"),
    [
        (ivf(RIGHT[:-1]), "19 frames, 2 of them key frames"),
        (ivf([frame(True), *RIGHT[1:10], *RIGHT[1:10], frame(False)]), "20 frames, 1 of them key frames"),
        (ivf([frame(True, width=318) if at % 10 == 0 else each for at, each in enumerate(RIGHT)]), "0% off its rate"),
        (ivf([frame(at % 10 == 0, 2500) for at in range(20)]), "100% off its rate"),
        (ivf(RIGHT)[:-1], "a frame is cut"),
        (ivf(RIGHT, codec=b"VP90"), "no IVF file of vp8"),
        (b"", "it has no head"),
    ],
)
def test_what_is_not_as_asked_for_is_refused(written: bytes, words: str) -> None:
    with pytest.raises(HostError, match=words):
        footage.made(Encoder(written, "footage.ivf"), WEBCAM, say)
    with pytest.raises(HostError, match="was not made"):
        footage.file(WEBCAM)


@pytest.mark.usefixtures("cache")
def test_h264_is_put_into_a_file_as_vp8_is() -> None:
    frames = [h264.frame(at % 10 == 0) for at in range(20)]
    path = footage.made(Encoder(h264.stream(frames), "footage.h264"), H264, say)
    assert path.read_bytes() == ivf(frames, codec=b"H264")
    assert sorted(each.name for each in path.parent.iterdir()) == ["footage.ivf", "manifest.json"]
    assert path.parent.name.startswith("webcam-320x180-10-100000-1-2-h264-")
    with pytest.raises(HostError, match="was not made"):
        footage.file(WEBCAM)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([h264.frame(at % 10 == 0) for at in range(19)], "19 frames, 2 of them key frames"),
        ([h264.frame(at == 0) for at in range(20)], "20 frames, 1 of them key frames"),
        ([h264.frame(at % 10 == 0, width=318) for at in range(20)], "2 of them key frames, 0% off its rate"),
        ([h264.frame(at % 10 == 0, 2500) for at in range(20)], "100% off its rate"),
        ([b""], "a frame of it is cut"),
    ],
)
def test_h264_that_is_not_as_asked_for_is_refused(frames: list[bytes], words: str) -> None:
    with pytest.raises(HostError, match=words):
        footage.made(Encoder(h264.stream(frames), "footage.h264"), H264, say)


@pytest.mark.usefixtures("cache")
def test_one_that_was_written_to_is_not_used() -> None:
    path = footage.made(Encoder(ivf(RIGHT), "footage.ivf"), WEBCAM, say)
    path.write_bytes(b"cut")
    with pytest.raises(HostError, match="is not as it was made") as raised:
        footage.made(Encoder(ivf(RIGHT), "footage.ivf"), WEBCAM, say)
    assert f"rm -r {path.parent}" in str(raised.value)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: ivf([])[:32] + tail))
def test_any_bytes_are_read_or_refused(written: bytes) -> None:
    try:
        frames = list(footage._frames(written, "vp8"))
    except ValueError:
        return
    assert 32 + sum(12 + len(each) for each in frames) == len(written)
    assert all(frames)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20))
def test_frames_come_back_as_they_were_written(frames: list[bytes]) -> None:
    assert list(footage._frames(ivf(frames), "vp8")) == frames


@pytest.mark.parametrize(
    "wrong",
    [{"width": 321}, {"height": 4000}, {"bit_rate": 1000}, {"frames_per_s": 0}, {"key_frames_s": 3}, {"duration_s": 0}],
)
def test_what_cannot_be_made_is_seen_before(wrong: dict[str, Any]) -> None:
    assert footage.problems(WEBCAM) == []
    (problem,) = footage.problems(replace(WEBCAM, **wrong))
    assert "cannot be made" in problem.what


@pytest.mark.machine
@pytest.mark.parametrize("codec", ["vp8", "h264"])
@pytest.mark.parametrize("scene", ["webcam", "desktop"])
def test_ffmpeg_makes_the_same_each_time(scene: Any, codec: Any, tmp_path: Path) -> None:
    asked = replace(WEBCAM, scene=scene, codec=codec)
    try:
        rootfs.build(LocalHost(), "films", encoded.PACKAGES, say)
    except HostError as error:
        pytest.skip(str(error))
    for place in ("one", "other"):
        footage._make(LocalHost(), asked, tmp_path / place, say)
    one, other = ((tmp_path / place / "footage.ivf").read_bytes() for place in ("one", "other"))
    assert one == other
