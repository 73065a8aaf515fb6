"""H.264: frames of a stream, key frames, and the size that their parameter sets tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll import h264

START = b"\0\0\0\1"
DELIMITER = START + b"\x09\xf0"
# As x264 wrote them of 160x90, 640x360 and 1280x720.
WRITTEN = {
    (160, 90): "6742c00ada0a37e4c0440000030004000003002a3c489a80",
    (640, 360): "6742c016da0280bfe5c0440000030004000003007a3c58ba80",
    (1280, 720): "6742c01fda014016ec0440000003004000000302a3c60ca8",
}


def number(value: int) -> str:
    """As an Exp-Golomb code."""
    bits = f"{value + 1:b}"
    return "0" * (len(bits) - 1) + bits


def parameters(width: int, height: int, order: int = 2) -> bytes:
    """A sequence parameter set in Constrained Baseline."""
    wide, high = -(-width // 16), -(-height // 16)
    cropped = number(0) + number((16 * wide - width) // 2) + number(0) + number((16 * high - height) // 2)
    bits = number(0) + number(0) + number(order) + (number(2) if order == 0 else "") + number(1) + "0"
    bits += number(wide - 1) + number(high - 1) + "11" + "1" + cropped + "0" + "1"
    bits += "0" * (-len(bits) % 8)
    told = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return b"\x67\x42\xc0\x1e" + told.replace(b"\0\0", b"\0\0\3")


def frame(is_key: bool, length: int = 1250, width: int = 320, height: int = 180) -> bytes:
    """A frame of that length; a key frame has its parameter sets."""
    head = (
        START + parameters(width, height) + START + b"\x68\xce\x3c\x80" + START + b"\x65" if is_key else START + b"\x41"
    )
    return head + b"\xff" * (length - len(head))


def stream(frames: list[bytes]) -> bytes:
    """A stream of them, each behind a delimiter."""
    return b"".join(DELIMITER + each for each in frames)


@given(st.lists(st.tuples(st.booleans(), st.integers(60, 300)), max_size=20))
def test_frames_come_back_as_they_were_written(asked: list[tuple[bool, int]]) -> None:
    frames = [frame(*each) for each in asked]
    assert h264.frames(stream(frames)) == frames
    assert [h264.is_key(each) for each in frames] == [is_key for is_key, _ in asked]


@pytest.mark.parametrize("wrong", [b"x", frame(True), b"x" + stream([frame(True)]), DELIMITER, DELIMITER * 2])
def test_what_is_no_stream_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"no H\.264"):
        h264.frames(wrong)


def test_a_picture_without_its_parameter_sets_is_no_key_frame() -> None:
    whole = frame(True)
    at = whole.index(START + b"\x68")
    assert h264.is_key(whole)
    assert not h264.is_key(whole[at:])
    assert not h264.is_key(whole[:at] + whole[at + 8 :])


@pytest.mark.parametrize("size", WRITTEN)
def test_the_size_is_what_x264_was_asked_for(size: tuple[int, int]) -> None:
    assert h264.size(START + bytes.fromhex(WRITTEN[size]) + START + b"\x68\xce") == size


@given(st.integers(8, 960), st.integers(8, 960), st.sampled_from([0, 2]))
def test_any_size_is_read(half_width: int, half_height: int, order: int) -> None:
    size = (2 * half_width, 2 * half_height)
    assert h264.size(START + parameters(*size, order)) == size


@pytest.mark.parametrize(
    "wrong",
    [b"", START + b"\x41", START + b"\x67\x64\x00\x1e\xff", START + b"\x67\x42\x80\x1e\xff", START + b"\x67\x42"],
)
def test_other_profiles_and_what_is_cut_have_no_size(wrong: bytes) -> None:
    assert h264.size(wrong) is None


@given(st.binary(max_size=60), st.integers(0, 40))
def test_any_bytes_have_a_size_or_none(tail: bytes, cut: int) -> None:
    for head in (b"", START + b"\x67\x42\xc0\x1e"):
        h264.size(head + tail)
        h264.is_key(head + tail)
    h264.size(frame(True)[:cut])
