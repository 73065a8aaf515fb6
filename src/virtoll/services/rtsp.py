"""What a client says to an RTSP server to see that it is one, and has a film (RFC 2326; descriptions: RFC 8866)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from virtoll.errors import Problem
from virtoll.offers import Rtsp

# The server keeps the connection, and how long its answer is nobody knows: what is read at least is made sure of by
# further requests behind the one that matters, each of which brings a hundred bytes or more.
ANSWER_BYTES, _FURTHER = 3000, 30
_TRACKS = {
    "video as H.264": r"^m=video .*(?:\r\n[^m].*)*\r\na=rtpmap:\d+ H264/90000",
    "audio as AAC": r"^m=audio .*(?:\r\n[^m].*)*\r\na=rtpmap:\d+ (?:MPEG4-GENERIC|MP4A-LATM)/",
}


def asking(offer: Rtsp, path: str) -> bytes:
    """All that a client sends, without waiting for answers, to be told of ``path``; "": only what the server can do."""
    url = f"rtsp://{offer.address}:{offer.port}{path}"
    lines = [f"OPTIONS {url}"] + ([f"DESCRIBE {url}"] if path else []) + [f"OPTIONS {url}"] * _FURTHER
    requests = (
        f"{line} RTSP/1.0\r\nCSeq: {1 + at}\r\nAccept: application/sdp\r\n\r\n" for at, line in enumerate(lines)
    )
    return "".join(requests).encode()


def problems_of(where: str, said: bytes, *, described: bool) -> Iterator[Problem]:
    """What is wrong with the beginning of what a server answered: its first answers, and the tracks of the film."""
    text = said.decode(errors="replace")
    told = re.findall(r"^RTSP/1\.0 (\d{3} ?[^\r\n]*)", text, re.MULTILINE)
    for request, status in zip(
        ["OPTIONS", "DESCRIBE"][: 1 + described], [*told, "no answer", "no answer"], strict=False
    ):
        if not status.startswith("200"):
            yield Problem(f"{request}: {status}", where, "the service's log in the trial says why")
            return
    for track, pattern in _TRACKS.items() if described else ():
        if not re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            yield Problem(f"its description has no {track}", where, "another server answers on this address")
