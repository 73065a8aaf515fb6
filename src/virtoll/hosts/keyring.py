"""The session keyring (keyrings(7)): who possesses it reads what is kept in it, whatever user he has become."""

from __future__ import annotations

import ctypes
import os
import platform

_KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number among system calls
_JOIN_SESSION_KEYRING = 1


def leave() -> None:
    """Join a session keyring of our own, empty, if we are root: a browser, or a build, that runs as nobody would find
    the keys of whoever has logged in. Where the kernel has no keyrings, or gives none, nothing happens.
    """
    if os.geteuid() == 0 and (number := _KEYCTL.get(platform.machine())) is not None:
        ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
