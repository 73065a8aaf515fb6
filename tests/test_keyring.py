"""That what virtoll starts does not find the keys of whoever started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_LEFT = """if True:
    import keyrings
    from virtoll.hosts import keyring
    keyrings.join_new_session()
    canary = keyrings._call(keyrings._ADD_KEY, b"user", b"canary of keyrings", b"x", 1, keyrings.SESSION)
    keyrings._call(keyrings._KEYCTL, 11, canary, None, 0)  # KEYCTL_READ
    keyring.leave()
    try:
        keyrings._call(keyrings._KEYCTL, 11, canary, None, 0)
    except OSError as error:
        print("gone:", error.errno)
"""


@pytest.mark.machine
def test_a_key_of_the_session_is_out_of_reach() -> None:
    """Root may read no key that he does not possess (keyrings(7): permissions are of possessor, user, group, other)."""
    done = subprocess.run(
        [sys.executable, "-c", _LEFT], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    assert (done.stdout in ("gone: 13\n", "gone: 126\n"), done.stderr) == (True, "")  # forbidden, or collected
