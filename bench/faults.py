"""Forty faults, injected from a seed, and how long that takes: `python -m bench.faults`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SEED, COUNT = 138, 40  # those of tests/test_faults.py
TARGET_S = 300.0


def main() -> int:
    """Inject them; 1 when one broke a promise or they took too long."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "faults", "--seed", str(SEED), "--count", str(COUNT)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    took_s = time.monotonic() - began_s
    print(f"python -m faults --seed {SEED} --count {COUNT}")
    print(done.stdout.rpartition("\n\n")[2].rstrip() if done.returncode == 0 else done.stdout)
    in_time = took_s <= TARGET_S
    print(f"all of it took {took_s:.0f} s, target {TARGET_S:.0f}: {'reached' if in_time else 'MISSED'}")
    return int(done.returncode != 0 or not in_time)


if __name__ == "__main__":
    sys.exit(main())
