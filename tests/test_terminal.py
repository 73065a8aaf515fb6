"""Colours and escape codes appear where they are wanted: on a terminal that can, for a person who has not declined."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from terminal_verbs import VERBS

HERE = Path(__file__).parent
COLOURS = {*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)}
PLAIN = {"NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "PAGER", "MANPAGER", "LESS", "TTY_INTERACTIVE", "CLICOLOR"}


def every_verb(directory: Path, terminal: bool, **environment: str) -> str:
    """What all verbs print on stdout and stderr, together."""
    kept = {key: value for key, value in os.environ.items() if key not in PLAIN}
    done = subprocess.Popen(
        [sys.executable, str(HERE / "terminal_verbs.py"), str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=(ends := pty.openpty() if terminal else os.pipe())[1],
        stderr=subprocess.STDOUT,
        env={**kept, "PYTHONPATH": str(HERE), "COLUMNS": "120", **environment},
    )
    os.close(ends[1])
    said = b""
    while True:
        try:
            more = os.read(ends[0], 65536)
        except OSError:  # how a terminal tells that the other side is closed
            break
        if not more:
            break
        said += more
    os.close(ends[0])
    assert done.wait(timeout=600) == 0, said.decode(errors="replace")
    return said.decode()


def of_each(said: str) -> dict[str, str]:
    """By verb with its words, what it printed; the code it exited with is its last character."""
    found = {}
    for argv in VERBS:
        words = " ".join(argv)
        _, _, rest = said.partition(f"<{words}>")
        printed, _, code = rest.partition(f"<{words}: ")
        found[words] = printed + code[:1]
    return found


def colours(said: str) -> set[int]:
    codes = re.findall(r"\x1b\[([0-9;]*)m", said)
    return COLOURS & {int(word) for words in codes for word in words.split(";") if word}


@pytest.fixture
def told(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    terminal, environment = request.param
    each = of_each(every_verb(tmp_path, terminal, **environment))
    ends = {words: printed[-1:] for words, printed in each.items()}
    assert ends == {**dict.fromkeys(ends, "0"), "run small.toml --out small": "1", "doctor": "3", "report absent": "4"}
    return each


@pytest.mark.parametrize("told", [(True, {"TERM": "xterm-256color"})], indirect=True, ids=["terminal"])
def test_a_terminal_gets_colours(told: dict[str, str]) -> None:
    assert {words for words, said in told.items() if colours(said)} >= {"doctor", "run small.toml --out small"}
    assert "\x1b" in told["help exit-codes"], "a page is laid out"


@pytest.mark.parametrize("told", [(True, {"TERM": "xterm-256color", "NO_COLOR": "1"})], indirect=True, ids=["NO_COLOR"])
def test_no_color_is_honoured_by_every_verb(told: dict[str, str]) -> None:
    assert {words: colours(said) for words, said in told.items() if colours(said)} == {}


@pytest.mark.parametrize(
    "told",
    [(True, {"TERM": "dumb"}), (False, {"TERM": "xterm-256color"}), (False, {})],
    indirect=True,
    ids=["dumb terminal", "pipe", "pipe without TERM"],
)
def test_elsewhere_no_verb_prints_an_escape_code(told: dict[str, str]) -> None:
    assert {words for words, said in told.items() if "\x1b" in said} == set()
    assert "[6/6] block 2" in told["run small.toml --out small"], "a line a trial"
    assert "| code | meaning |" in told["help exit-codes"], "a page as it is written"
