"""What a client says to an RTMP server, as far as it takes to see that it is one, and that a film plays.

Source: Adobe's RTMP specification 1.0 (2012): the handshake (5.2), chunks (5.3), commands (7.2); AMF 0 (2007).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from virtoll.errors import Problem
from virtoll.offers import Rtmp

_HANDSHAKE_BYTES = 1536
_C0_C1 = b"\x03" + bytes(8) + (b"virtoll " * (_HANDSHAKE_BYTES // 8 - 1))  # version 3; time, zero, and "random" bytes
GREETED_BYTES = 1 + 2 * _HANDSHAKE_BYTES  # S0, S1, S2
_CHUNK_BYTES = 128  # until somebody says otherwise
_COMMAND = 20  # a message in AMF 0


def asking(offer: Rtmp, stream: str) -> bytes:
    """All that a client sends, without waiting for answers, to play ``stream``; "" : only to connect."""
    url = f"rtmp://{offer.address}:{offer.port}/{offer.application}"
    said = _C0_C1 + bytes(_HANDSHAKE_BYTES)  # C2 should echo S1; servers do not look
    said += _message(0, _amf("connect"), _amf(1.0), _amf({"app": offer.application, "tcUrl": url}))
    if stream:
        said += _message(0, _amf("createStream"), _amf(2.0), _amf(None))
        said += _message(1, _amf("play"), _amf(3.0), _amf(None), _amf(stream), _amf(-2000.0))
    return said


def problems_of(where: str, said: bytes, wanted: dict[str, bytes]) -> Iterator[Problem]:
    """What is wrong with the beginning of what a server said; ``wanted``: what must be in it, by what that shows."""
    if said[:1] != b"\x03" or len(said) < GREETED_BYTES:
        yield Problem(f"{said[:16]!r} came, {len(said)} bytes in all: no handshake of RTMP", where)
    elif said[1 + _HANDSHAKE_BYTES :][8:_HANDSHAKE_BYTES] != _C0_C1[9:]:
        yield Problem("S2 of the handshake is no echo of C1", where, "something else answers, or changes what is sent")
    else:
        rest = said[GREETED_BYTES:]
        missing = [shown for shown, piece in wanted.items() if piece not in rest]
        told = [code for code in (b"Rejected", b"NotFound", b"Failed", b"not found") if code in rest]
        if missing:
            what = f"not seen: {', '.join(missing)}" + (f"; the server said {told[0].decode()}" if told else "")
            yield Problem(what, where, "the service's log in the trial says why")


def first_frames(flv: BinaryIO, most_bytes: int) -> list[bytes]:
    """An FLV file's first two video tags, each cut to ``most_bytes``: how the decoder is set up, and a picture. Of what
    may be gigabytes no more is read than it takes.

    Source: Adobe's Video File Format Specification 10.1, annex E.
    """
    found: list[bytes] = []
    at = 9 + 4  # header, and the length of no tag before
    while len(found) < 2 and flv.seek(at) == at and len(head := flv.read(11)) == 11:
        length = int.from_bytes(head[1:4], "big")
        if head[0] == 9:
            found.append(flv.read(min(length, most_bytes)))
        at += 11 + length + 4
    return found


def _message(stream_id: int, *values: bytes) -> bytes:
    """A command in chunks of stream 3 (5.3.1)."""
    body = b"".join(values)
    head = b"\x03" + bytes(3) + len(body).to_bytes(3, "big") + bytes([_COMMAND]) + struct.pack("<I", stream_id)
    return head + b"\xc3".join(body[at : at + _CHUNK_BYTES] for at in range(0, len(body), _CHUNK_BYTES))


def _amf(value: str | float | dict[str, str] | None) -> bytes:
    if isinstance(value, str):
        return b"\x02" + _text(value)
    if isinstance(value, dict):
        return b"\x03" + b"".join(_text(key) + _amf(one) for key, one in value.items()) + b"\x00\x00\x09"
    return b"\x05" if value is None else b"\x00" + struct.pack(">d", value)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data
