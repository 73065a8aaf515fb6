"""What `virtoll.run.boot` has become on a machine that is reached by ssh, from its first word to its last.

The standard library only, until it obeys (`virtoll.run.obeying`): it may be that nothing of what was brought can be
loaded there (a place from which nothing is run, an older C library), and that is removed as well.
"""

from __future__ import annotations

import os
import sys

from virtoll.hosts import interrupts
from virtoll.plain import printable

_GONE = 'rm -rf --one-file-system -- "$1" && rm -f -- "$2"'


def main(arguments: list[str]) -> None:
    """What lies in its directory is gone at the end, and so is the ledger of that, which is open as ``file``."""
    directory, ledger, file, digest, name, nonce, *role = arguments
    os.set_inheritable(int(file), False)
    interrupts.install()
    try:
        _obey(digest, name, nonce, role)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        print(printable(f"virtoll: {name}: {error}"), file=sys.stderr, flush=True)
    finally:
        with interrupts.held_off():
            os.execvp("sh", ["sh", "-c", _GONE, "sh", directory, ledger])


def _obey(digest: str, name: str, nonce: str, role: list[str]) -> None:
    try:
        from virtoll.run.obeying import obey
    except Exception as error:
        raise RuntimeError(f"what was brought cannot be loaded here: {type(error).__name__}: {error}") from error
    obey(digest, name, nonce, role)


if __name__ == "__main__":
    main(sys.argv[1:])
