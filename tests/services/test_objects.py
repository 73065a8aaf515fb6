from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.lab.client import Answer
from virtoll.offers import HttpObject
from virtoll.services import objects


def test_content_counts_up_in_lines_of_sixteen_bytes() -> None:
    assert objects.content(40) == b"100000000000000\n100000000000001\n10000000"


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_shorter_object_is_the_beginning_of_a_longer_one(one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert len(objects.content(short)) == short
    assert objects.content(long).startswith(objects.content(short))


@pytest.mark.parametrize("lengths", [(), (1,), (16, 17, 15), (1000, 10_000, 1_000_000, 1000)])
def test_the_shell_script_makes_the_same_bytes(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    subprocess.run(["sh", "-c", objects.shell_script(str(tmp_path), lengths)], check=True)
    made = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "o").iterdir()}
    assert made == {str(length): objects.sha256(length) for length in lengths}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(200, 100, objects.sha256(100), {}), None),
        (Answer(404, 9, "x", {}), "status 404; expected 200"),
        (Answer(200, 99, objects.sha256(99), {}), "99 bytes came; expected 100"),
        (Answer(200, 100, "f00", {}), "the bytes differ: sha256 f00"),
    ],
)
def test_the_first_thing_wrong_with_an_answer_is_named(answer: Answer, words: str | None) -> None:
    problems = list(objects.problems_of("here", answer, HttpObject(100)))
    assert len(problems) == (words is not None)
    assert words is None or words in problems[0].what
