"""The tests of rust/, by cargo: they wait for clocks and sockets for most of their time, as others do meanwhile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent


def test_what_cargo_tests_holds(tmp_path: Path) -> None:
    """Alone: ``setup/rust cargo test``. Their files are below this test's own directory, and of nobody's inventory."""
    argv = ["setup/rust", "cargo", "test", "--quiet", "--locked", "--no-fail-fast"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=1700)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("test result: ok.") > 5, done.stdout
