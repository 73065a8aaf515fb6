"""The command as `undrawn` has it, which stops itself where the window of VIRTOLL_TEST_HELD's number begins.

So what a test does to it there falls into that window, however late the test comes. SIGCONT lets it go on.
"""

from __future__ import annotations

import os
import signal
import sys

from patience import wait_for_boots, wait_for_loads
from turns import take_turns
from undrawn import run_undrawn
from virtoll import cli
from virtoll.record.model import PlannedTrial
from virtoll.run.json_lines import JsonProgress

ARGV = [sys.executable, __file__]
WHERE = "VIRTOLL_TEST_HELD"


def hold(window: int) -> None:
    """Stop where this window (1: the first) has been told to begin."""
    tell, seen = JsonProgress.phase, 0

    def phase(self: JsonProgress, trial: PlannedTrial, name: str) -> None:
        nonlocal seen
        tell(self, trial, name)
        seen += name == "window"
        if (name, seen) == ("window", window):
            os.kill(os.getpid(), signal.SIGSTOP)

    JsonProgress.phase = phase  # type: ignore[method-assign]


if __name__ == "__main__":
    take_turns()
    wait_for_boots()
    wait_for_loads()
    run_undrawn()
    hold(int(os.environ[WHERE]))
    cli.main()
