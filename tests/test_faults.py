"""The short form of `make faults`: forty faults of mixed kinds, each repeatable by the seed printed with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
