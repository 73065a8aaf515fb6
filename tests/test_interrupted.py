"""A Ctrl-C or a kill -9 at any line of making and unmaking an instance leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import contract
import leaks
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.lab.wiring import free_tag
from virtoll.platforms.base import platforms

pytestmark = pytest.mark.machine

# Drawn anew in each session, and told when they fail; VIRTOLL_TEST_SEED repeats them.
SEED = os.environ.get("VIRTOLL_TEST_SEED") or secrets.token_hex(4)
_CTRL_CS, _KILLS = 6, 3
_END_S = 300.0  # against hanging


def _script(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, str(Path(__file__).with_name("interrupted.py")), *arguments]
    return subprocess.run(command, env=environment, timeout=_END_S, capture_output=True, text=True)


def _lines(directory: Path, platform: str) -> str:
    contract.skip_unless_ready(platforms()[platform]())
    contract.image()
    counted = _script("count", str(directory), platform)
    assert counted.returncode == 0, counted.stderr
    return counted.stdout.strip()


@pytest.mark.parametrize("platform", ["native", "lxc"])
def test_a_ctrl_c_at_any_line_leaves_nothing(tmp_path: Path, platform: str) -> None:
    lines = _lines(tmp_path, platform)
    seeds = [f"{SEED}-{number}" for number in range(_CTRL_CS)]
    done = _script("int", str(tmp_path), platform, lines, *seeds)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_a_ctrl_c_at_each_line_of_its_opening_leaves_no_ledger(tmp_path: Path) -> None:
    done = _script("opening", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert int(done.stderr.split()[0]) > 50, "else it was not opened"


@pytest.mark.parametrize("platform", ["native", "lxc"])
def test_a_kill_9_at_any_line_leaves_nothing_after_clean(host: LocalHost, tmp_path: Path, platform: str) -> None:
    lines = _lines(tmp_path, platform)
    for number in range(_KILLS):
        before, seed, tag = leaks.snapshot(), f"{SEED}-{number}", free_tag()
        done = _script("kill", str(tmp_path), platform, lines, seed, tag)
        assert done.returncode == -signal.SIGKILL, done.stderr
        ledgers.clean(host, tmp_path)
        assert list(tmp_path.iterdir()) == [], seed
        try:
            leaks.assert_nothing_left(before, tag)
        except AssertionError as error:
            error.add_note(f"seed {seed!r}, of {lines} lines on {platform}")
            raise
