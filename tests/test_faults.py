"""The short form of `make faults`: forty faults of mixed kinds, each repeatable by the seed printed with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults import hooks

CHECKOUT = Path(__file__).parent.parent
# Chosen for its kinds: more than twenty, machine ones among them, but not the death of dockerd, a minute by itself.
SEED, COUNT = 138, 40


@pytest.mark.machine
def test_forty_faults_break_no_promise() -> None:
    argv = [sys.executable, "-m", "faults", "--seed", str(SEED), "--count", str(COUNT)]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=1700)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{COUNT} faults of " in done.stdout


def test_every_module_that_is_struck_at_its_lines_is_there() -> None:
    """The run directory and the run loop had moved, and no fault struck a line of theirs any more."""
    assert [name for name in hooks._WATCHED if not Path(hooks._SOURCE, name).is_file()] == []
    assert {"record/store.py", "run/execute.py", "files/durable.py"} <= {*hooks._WATCHED}
