"""Who may read what virtoll makes while it has a machine, whatever umask it was started with.

Root's own may be 077. What instances are made of, and what is laid into them, is read by services that are not root:
where an instance's processes come from this one (native, lxc, oci, bubblewrap) they were refused it, and elsewhere not.
What is nobody else's business is in directories that are root's alone by their mode (`virtoll.hosts.private`), or has
such a mode itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL = 0o022


def _callers() -> int:
    mask = os.umask(_USUAL)
    os.umask(mask)
    return mask


CALLERS = _callers()  # what is the user's own, a run's directory, is as it says


@contextmanager
def readable() -> Iterator[None]:
    """What this process makes until the block ends, and what it starts there makes, others may read."""
    before = os.umask(_USUAL)
    try:
        yield
    finally:
        os.umask(before)
