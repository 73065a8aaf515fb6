"""The objects an origin serves: path and content of an object follow from its length alone.

Every object is the beginning of one endless text, lines of 16 bytes that count up from 10^14:

    100000000000000
    100000000000001
    ...

An object's path is `/o/LENGTH`; a piece of that text, from one byte to before another, is `/o/BEGIN-END` (the native
generator's viewers check pieces by their paths alone: rust/load/src/view/text.rs).

So any byte that is missing, doubled or out of place changes the digest, and the agent makes the text inside an
instance (`Agent.fill`) without a transfer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

from virtoll.errors import Problem
from virtoll.lab.client import Answer
from virtoll.offers import HttpObject

LINE_BYTES = 16
_BLOCK_BYTES = 2**20
FIRST_LINE = 10**14  # fifteen digits and a newline; there are 9 x 10^14 such lines


def content(length_bytes: int, begin_bytes: int = 0) -> bytes:
    """The object itself, or a piece of the text from a byte on."""
    end_bytes = begin_bytes + length_bytes
    first, last = begin_bytes // LINE_BYTES, -(-end_bytes // LINE_BYTES)
    lines = "".join(f"{FIRST_LINE + line}\n" for line in range(first, last)).encode()
    return lines[begin_bytes - first * LINE_BYTES :][:length_bytes]


@cache
def sha256(length_bytes: int, begin_bytes: int = 0) -> str:
    """Digest of the object, or of a piece of the text, hex."""
    digest, end_bytes = hashlib.sha256(), begin_bytes + length_bytes
    for at in range(begin_bytes, end_bytes, _BLOCK_BYTES):
        digest.update(content(min(_BLOCK_BYTES, end_bytes - at), at))
    return digest.hexdigest()


def problems_of(where: str, answer: Answer, wanted: HttpObject) -> Iterator[Problem]:
    """What is wrong with the answer to a GET of one object: its status, else its length, else its bytes."""
    return differences(where, answer, wanted.length_bytes, sha256(wanted.length_bytes))


def differences(where: str, answer: Answer, length_bytes: int, expected: str) -> Iterator[Problem]:
    """The same of any file of which length and digest are known."""
    if answer.status != 200:
        yield Problem(f"status {answer.status}; expected 200", where, "the service's log in the trial says why")
    elif answer.length_bytes != length_bytes:
        yield Problem(f"{answer.length_bytes} bytes came; expected {length_bytes}", where)
    elif answer.sha256 != expected:
        yield Problem(f"the bytes differ: sha256 {answer.sha256}; expected {expected}", where)
