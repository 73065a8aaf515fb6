"""What `make run` and `make test` run and how they end, with stubs for what they call."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def stub(path: Path, words: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)


def made(target: str, directory: Path, stubs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    shutil.copy(CHECKOUT / "Makefile", directory)
    for name, words in stubs.items():
        stub(directory / name, words)
    # Not what a `make` that runs these tests has set; and what Python compiles is kept, else each process that they
    # start would compile all that it imports.
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    argv = ["make", target]
    return subprocess.run(
        argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("code", [0, 1])
def test_all_tests_run_from_what_python_has_compiled_and_a_failure_fails_the_whole(tmp_path: Path, code: int) -> None:
    words = f'echo "kept: ${{PYTHONDONTWRITEBYTECODE:-yes}}"; exit {code}'
    done = made("test", tmp_path, {"setup/install": 'echo "install: $*"', ".venv/bin/pytest": words})
    assert done.stdout.splitlines() == ["install: --dev", "kept: yes"]
    assert (done.returncode == 0) == (code == 0)


@pytest.mark.parametrize("code", [0, 1])
def test_continuous_integration_runs_the_long_ones_too_whatever_becomes_of_the_others(
    tmp_path: Path, code: int
) -> None:
    for name in ("Makefile", ".ci/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    stub(tmp_path / "setup/install", 'echo "install: $*"')
    fails = f'case "$*" in *--collect-only*) ;; *"-m long") echo long;; *) echo others; exit {code};; esac'
    stub(tmp_path / ".venv/bin/pytest", fails)
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run([tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["install: --dev", "others", "long"]
    assert (done.returncode == 0) == (code == 0)


@pytest.mark.parametrize("installs", [0, 3])
def test_the_proxy_study_waits_for_nothing_that_it_does_not_need(tmp_path: Path, installs: int) -> None:
    stubs = {"setup/install": f'echo "install: $*"; exit {installs}', ".venv/bin/virtoll": 'echo "virtoll: $*"'}
    done = made("run", tmp_path, stubs)
    assert done.stdout.splitlines() == [
        "install: --no-conference",
        *(["virtoll: run proxy --quick"] if installs == 0 else []),
    ]
    assert (done.returncode == 0) == (installs == 0)
