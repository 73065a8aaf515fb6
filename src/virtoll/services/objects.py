"""The objects an origin serves: path and content of an object follow from its length alone.

Every object is the beginning of one endless text, lines of 16 bytes that count up from 10^14:

    100000000000000
    100000000000001
    ...

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
FIRST_LINE = 10**14  # fifteen digits and a newline; there are 9 x 10^14 such lines


def content(length_bytes: int) -> bytes:
    """The object itself."""
    lines = -(-length_bytes // LINE_BYTES)
    return "".join(f"{FIRST_LINE + line}\n" for line in range(lines)).encode()[:length_bytes]


@cache
def sha256(length_bytes: int) -> str:
    """Digest of the object, hex."""
    return hashlib.sha256(content(length_bytes)).hexdigest()


def problems_of(where: str, answer: Answer, wanted: HttpObject) -> Iterator[Problem]:
    """What is wrong with the answer to a GET of one object: its status, else its length, else its bytes."""
    expected = sha256(wanted.length_bytes)
    if answer.status != 200:
        yield Problem(f"status {answer.status}; expected 200", where, "the service's log in the trial says why")
    elif answer.length_bytes != wanted.length_bytes:
        yield Problem(f"{answer.length_bytes} bytes came; expected {wanted.length_bytes}", where)
    elif answer.sha256 != expected:
        yield Problem(f"the bytes differ: sha256 {answer.sha256}; expected {expected}", where)
