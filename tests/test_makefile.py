"""What `make test` runs and how it ends, with stubs for what it calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
STUBS = {"setup/install": "exit 0", "setup/rust": 'echo "rust: $*"; exit {rust}', ".venv/bin/pytest": "{python}"}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("rust", [0, 101])
@pytest.mark.parametrize("python", [0, 1])
def test_both_suites_run_whatever_the_first_says_and_either_fails_the_whole(
    tmp_path: Path, rust: int, python: int
) -> None:
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    for name, text in STUBS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        words = text.format(rust=rust, python=f'echo "kept: ${{PYTHONDONTWRITEBYTECODE:-yes}}"; exit {python}')
        path.write_text(f"#!/bin/sh\n{words}\n")
        path.chmod(0o755)
    # Not what a `make` that runs these tests has set; and what Python compiles is kept, else each process that they
    # start would compile all that it imports.
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["make", "test"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines == ["rust: cargo test --quiet --locked --no-fail-fast", "kept: yes"]
    assert (done.returncode != 0) == (rust != 0 or python != 0)
    assert ("the Rust tests failed" in done.stderr) == (rust != 0)
