"""Every exit code comes when it should, and one table says what each means."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from on_fakes import on_fakes, write_study
from virtoll import errors
from virtoll.cli import main
from virtoll.errors import EXIT_CODES
from virtoll.manual import page

pytestmark = pytest.mark.usefixtures("helped")

FIRST = "b01-t0001"


def code_of(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("fail", "ending"),
    [
        ({}, (0, "report: ")),
        ({FIRST: "limits in force"}, (1, f"{FIRST} ")),
        ({FIRST: errors.TrialError("the service did not answer")}, (1, "did not answer")),
        ({FIRST: KeyboardInterrupt()}, (130, "goes on")),
        ({FIRST: errors.StoreError("no room")}, (4, "no room")),
    ],
    ids=["all valid", "an invalid trial", "a failed trial", "interrupted", "no room"],
)
def test_a_run_ends_with(
    fail: Mapping[str, BaseException | str],
    ending: tuple[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, told = ending
    on_fakes(monkeypatch, fail)
    monkeypatch.setattr("virtoll.report.build.write_report", lambda findings: findings.run.directory / "report")
    assert code_of("run", str(write_study(tmp_path)), "--out", str(tmp_path / "a run")) == code
    said = "".join(capsys.readouterr())
    assert told in said
    if code == 130:  # what the table promises: it goes on, by the very words
        on_fakes(monkeypatch, {})
        (command,) = re.findall("`virtoll (.*)` goes on", said)
        assert code_of(*shlex.split(command)) == 0


def test_a_word_that_is_wrong_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.toml").write_text("nmae = 'x'\n")
    assert code_of("run", "wrong.toml", "--dry-run") == 2
    assert code_of("check", "wrong.toml") == 2
    assert code_of("check", "absent.toml") == 2
    assert code_of("new", "No Name") == 2
    assert code_of("help", "nothing") == 2
    assert code_of("list", "nothing") == 2
    assert code_of("frobnicate") == 2
    assert code_of() == 2


def test_a_machine_that_cannot_ends_with_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for argv in (("doctor",), ("run", "proxy"), ("probe", "clock"), ("tune",), ("untune",), ("clean",)):
        assert code_of(*argv) == 3
        assert "-> run it with sudo" in capsys.readouterr().err


def test_a_run_directory_that_is_none_ends_with_4(tmp_path: Path) -> None:
    assert code_of("report", str(tmp_path)) == 4


def test_the_shell_sees_the_same() -> None:
    def shell(*argv: str) -> int:
        return subprocess.run([sys.executable, "-m", "virtoll", *argv], capture_output=True, timeout=600).returncode

    assert [shell("list"), shell("list", "nothing")] == [0, 2]


def test_the_page_is_the_table_and_no_error_has_another_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page("exit-codes"), flags=re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    raised = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert {error.exit_code for error in raised if issubclass(error, errors.VirtollError)} <= EXIT_CODES.keys()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount, and clean")
def test_a_state_that_cannot_be_written_to_is_told_by_its_name(tmp_path: Path) -> None:
    """As after a fault of the disk (errors=remount-ro): it was a traceback, of `clean` too."""
    state = tmp_path / "state"
    state.mkdir()
    script = f"mount -t tmpfs -o ro,mode=0700 none {state}; exec {sys.executable} -m virtoll clean"
    environment = {**os.environ, "VIRTOLL_STATE": str(state), "VIRTOLL_CACHE": str(tmp_path / "cache")}
    argv = ["unshare", "--mount", "sh", "-e", "-c", script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, f"virtoll: Read-only file system\n  in {state}/lock\n")
