"""H.264, as far as footage looks into it: the frames of a stream of bytes, and what they are (ITU-T H.264, annex B: NAL
units, each behind 0 0 1, which none of them holds).
"""

from __future__ import annotations

import re

# Kinds of NAL units (table 7-1): a picture that depends on none before, and its parameter sets.
_IDR, _SPS, _PPS = 5, 7, 8
_DELIMITER = re.compile(rb"\x00?\x00\x00\x01\x09[\x10-\xff]")  # an access unit delimiter (7.3.2.4)
_UNIT = re.compile(rb"\x00\x00\x01(.)", re.DOTALL)
_PARAMETERS = re.compile(rb"\x00\x00\x01[\x27\x47\x67](.*?)(?:\x00\x00[\x00\x01]|\Z)", re.DOTALL)
_BASELINE, _CONSTRAINED = 66, 0x40  # profile_idc, and constraint_set1_flag (A.2.1.1)


def frames(stream: bytes) -> list[bytes]:
    """The frames of a stream, without the access unit delimiter before each. ValueError where there is none."""
    first, *rest = _DELIMITER.split(stream)
    if first or not all(rest):
        raise ValueError("it is no H.264, or a frame of it is cut")
    return rest


def is_key(frame: bytes) -> bool:
    """Whether a decoder can begin with it: a picture that depends on none before, and its parameter sets."""
    return {_IDR, _SPS, _PPS} <= {head[0] & 0x1F for head in _UNIT.findall(frame)}


def size(key_frame: bytes) -> tuple[int, int] | None:
    """Width and height of a key frame in Constrained Baseline (7.3.2.1.1); None where it is cut, or is none."""
    found = _PARAMETERS.search(key_frame)
    told = found[1].replace(b"\0\0\3", b"\0\0") if found else b""
    if len(told) < 3 or told[0] != _BASELINE or not told[1] & _CONSTRAINED:
        return None
    try:
        return _size(_Bits(told[3:]))
    except ValueError:
        return None


def _size(bits: _Bits) -> tuple[int, int] | None:
    """By the rest of its sequence parameter set: sides are macroblocks of 16, less what is cropped off by twos."""
    bits.number()  # its id
    bits.number()  # how far frames are counted
    order = bits.number()
    if order == 1:
        return None  # of encoders that are not ours
    if order == 0:
        bits.number()
    bits.number()  # pictures that others depend on
    bits.taken(1)  # whether some may be missing
    width, height = 16 * (bits.number() + 1), 16 * (bits.number() + 1)
    bits.taken(2)  # whole frames, as all of this profile are; and how motion is told
    if bits.taken(1):
        width -= 2 * (bits.number() + bits.number())
        height -= 2 * (bits.number() + bits.number())
    return width, height


class _Bits:
    """Bits that are read one after another. ValueError where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._left = "".join(f"{byte:08b}" for byte in data)

    def taken(self, count: int) -> int:
        bits, self._left = self._left[:count], self._left[count:]
        if len(bits) < count:
            raise ValueError("it is cut")
        return int(bits, 2)

    def number(self) -> int:
        """An Exp-Golomb code, ue(v) (9.1)."""
        zeros = self._left.find("1")
        if not 0 <= zeros <= 31:
            raise ValueError("it is cut")
        self._left = self._left[zeros:]
        return self.taken(zeros + 1) - 1
