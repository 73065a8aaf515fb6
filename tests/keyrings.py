"""Keys of the kernel's (keyrings(7)): canaries that nobody inside an instance may find."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

SESSION, USER = -3, -4  # KEY_SPEC_SESSION_KEYRING, KEY_SPEC_USER_KEYRING
_ADD_KEY, _KEYCTL = 248, 250  # system calls of x86-64
_JOIN_SESSION_KEYRING, _UNLINK = 1, 9
_libc = ctypes.CDLL(None, use_errno=True)


def _call(*arguments: int | bytes | None) -> int:
    result = int(_libc.syscall(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def join_new_session() -> None:
    """A session keyring, as whoever logs in has one; processes that are started from now on inherit it."""
    _call(_KEYCTL, _JOIN_SESSION_KEYRING, None)


@contextmanager
def added(name: str, keyring: int) -> Iterator[None]:
    """A key of type "user" in this keyring for the length of the block."""
    key = _call(_ADD_KEY, b"user", name.encode(), b"x", 1, keyring)
    try:
        yield
    finally:
        _call(_KEYCTL, _UNLINK, key, keyring)
