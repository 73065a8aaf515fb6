"""What is wrong with words, outputs and places is said in a sentence, with its exit code, and never as a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "docs/answers/runs/sandbox"
LONG = "x" * 5000


def virtoll(
    *argv: str, into: str = "", closed: bool = False, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command line; ``into``: where its output goes, if not to us; ``closed``: without any output at all."""
    words = [sys.executable, "-m", "virtoll", *argv]
    if closed:
        words = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
    with Path(into or os.devnull).open("w", encoding="utf-8") as output:
        return subprocess.run(
            words,
            stdout=output if into else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            env={**os.environ, **environment},
            check=False,
            timeout=600,
        )


def told(done: subprocess.CompletedProcess[str], code: int) -> str:
    """What it said on stderr, which is a sentence."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize("verb", ["check", "run", "audit", "report", "export", "advise", "history", "keep", "plan"])
def test_a_word_that_is_too_long_for_a_path(verb: str, tmp_path: Path) -> None:
    more = {"keep": [str(tmp_path / "kept")], "plan": ["--users", "10"]}.get(verb, [])
    assert "virtoll: " in told(virtoll(verb, LONG, *more), 2)


@pytest.mark.parametrize("verb", ["report", "export", "advise", "history"])
def test_an_empty_word_is_not_the_folder_that_one_is_in(verb: str, tmp_path: Path) -> None:
    """`virtoll history "$RUNS"` read all runs here and wrote its page beside them."""
    assert "is a variable unset?" in told(virtoll(verb, "", cwd=tmp_path), 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argv", [["list", "platforms"], ["help", "glossary"], ["man"], ["advise", str(RUN)]])
def test_an_output_whose_disk_is_full(argv: list[str]) -> None:
    assert "No space left on device" in told(virtoll(*argv, into="/dev/full"), 4)


@pytest.mark.parametrize("argv", [["list", "platforms"], ["advise", str(RUN)]])
def test_no_output_at_all_is_what_was_asked_for(argv: list[str]) -> None:
    assert told(virtoll(*argv, closed=True), 0) == ""


@pytest.mark.parametrize("option", ["--memory", "--network"])
def test_an_empty_value_is_not_the_usual_one(option: str) -> None:
    """`virtoll probe linpack --memory "$SIZE"` measured with the usual memory."""
    assert "is a variable unset?" in told(virtoll("probe", "no-such-probe", option, ""), 2)


def test_an_output_of_few_characters() -> None:
    done = virtoll("help", "glossary", PYTHONIOENCODING="ascii")
    told(done, 0)
    assert "virtoll" in done.stdout


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"rmdir {gone}; exec {sys.executable} -m virtoll check proxy"
    done = subprocess.run(["sh", "-c", words], cwd=gone, capture_output=True, text=True, check=False)
    assert "the directory in which it was begun is gone" in told(done, 2)


@pytest.mark.parametrize("argv", [["run", "proxy", "--dry-run", "--platforms", ""], ["compare", "A", "--metrics", ","]])
def test_a_list_that_names_nothing_is_no_list_of_all(argv: list[str]) -> None:
    """An unset variable in a script measured native against itself."""
    assert "names nothing" in told(virtoll(*argv), 2)


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["run", "proxy", "--dry-run", "--budget", "-5m"], "'-5m' is not a duration"),
        (["run", "proxy", "--dry-run", "--memory", "-.5MiB"], "'-.5MiB' is not a size"),
        (["run", "proxy", "--dry-run", "--decide", "-5%"], "'-5%' is not per cent"),
        (["plan", "A", "--users", "5", "--headroom", "-5%"], "'-5%' is not per cent"),
        (["plan", "A", "--users", "-5k"], "'-5k' is no whole number from 1 on"),
        (["plan", "A", "--users", "5", "--price", "-5/hour"], "'-5/hour' is no price"),
        (["compare", "A", "B", "--fail-over", "-5%"], "'-5%' is not per cent"),
    ],
)
def test_a_value_below_zero_is_one_that_was_given(argv: list[str], wrong: str) -> None:
    """It was told that the option expects one."""
    said = told(virtoll(*argv), 2)
    assert wrong in said
    assert "expected one argument" not in said


def test_a_number_beyond_all_reason() -> None:
    assert "is more than 1,000,000,000" in told(virtoll("plan", "testbed", "--nodes", "9" * 30), 2)


def test_a_copy_that_was_written_stands_where_nobody_reads_what_is_said_of_it(tmp_path: Path) -> None:
    """It was said to be undone."""
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "virtoll", "keep", str(RUN), str(tmp_path / "kept")]
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "what it wrote stands" in told(done, 130)
    assert (tmp_path / "kept" / "study.json").exists()


@pytest.mark.parametrize("path", ["cart", "/\u00e4", "/a b", "/a\\nHost: x", "\\u0000"])
def test_a_path_that_is_in_no_url_is_found_by_check(path: str, tmp_path: Path) -> None:
    """It was right, and failed in each trial."""
    study = f"""
name = "s"
question = "What does it cost?"
[service]
name = "nginx"
[load]
name = "http"
path = "{path}"
[[arms]]
platform = "native"
"""
    (tmp_path / "s.toml").write_text(study, encoding="utf-8")
    assert "must begin with /" in told(virtoll("check", str(tmp_path / "s.toml")), 2)
