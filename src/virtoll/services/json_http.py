"""What servers are asked over HTTP, and answer in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from virtoll import strict_json
from virtoll.errors import TrialError
from virtoll.offers import Tcp
from virtoll.services.base import Visitor

_ANSWER_BYTES = 2**20
_NONE: Mapping[str, str] = MappingProxyType({})


def got(visitor: Visitor, offer: Tcp, path: str) -> dict[str, Any]:
    """What it answers to a GET. TrialError where that is no JSON object."""
    sent = f"GET {path} HTTP/1.0\r\nHost: {offer.address}:{offer.port}\r\n\r\n".encode()
    where = f"http://{offer.address}:{offer.port}{path}"
    return read_answer(visitor.exchange(offer, sent, _ANSWER_BYTES), where)


def asked(
    visitor: Visitor, offer: Tcp, path: str, message: Mapping[str, Any], headers: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """What it answers to a message that is posted. TrialError where that is no JSON object."""
    body = json.dumps(message).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.0\r\nHost: {offer.address}:{offer.port}\r\nContent-Type: application/json\r\n{more}"
    sent = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    return read_answer(visitor.exchange(offer, sent, _ANSWER_BYTES), f"http://{offer.address}:{offer.port}{path}")


def read_answer(said: bytes, where: str) -> dict[str, Any]:
    """The JSON object of an answer over HTTP. TrialError where it is none."""
    head, _, body = said.partition(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.[01] 200 ", head):
        status = head.partition(b"\r\n")[0][:200].decode(errors="replace")
        raise TrialError(f"it answers {status!r}", where=where)
    try:
        told = strict_json.loads(body)
    except ValueError as error:
        raise TrialError(f"what it answers is no JSON: {error}", where=where) from error
    if not isinstance(told, dict):
        raise TrialError(f"what it answers is no JSON object: {str(told)[:200]}", where=where)
    return told
