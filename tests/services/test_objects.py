from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Answer
from virtoll.offers import HttpObject
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.services import objects


def test_content_counts_up_in_lines_of_sixteen_bytes() -> None:
    assert objects.content(40) == b"100000000000000\n100000000000001\n10000000"


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_shorter_object_is_the_beginning_of_a_longer_one(one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert len(objects.content(short)) == short
    assert objects.content(long).startswith(objects.content(short))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 65_536, 65_537, 1_000_000])
def test_the_agent_makes_the_same_bytes(tmp_path: Path, length: int) -> None:
    """Also where there was a longer file, and over the end of what it writes at once."""
    path = tmp_path / "new" / "object"
    agent = [str(binary("virtoll-agent")), "serve"]
    with agent_on_stdio(LocalHost(), agent, log=tmp_path / "log", confinement=Confinement(), platform="here") as (
        there,
        _,
    ):
        there.fill(str(path), 3 * 10**6)
        there.fill(str(path), length)
        for begin in (0, 7, 16, 10**6 + 3):
            there.fill(str(tmp_path / "piece"), length, begin)
            assert hashlib.sha256((tmp_path / "piece").read_bytes()).hexdigest() == objects.sha256(length, begin)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == objects.sha256(length)
    assert path.stat().st_mode & 0o777 == 0o644


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
