"""A study file of any shape is a study or a StudyError, and a run directory of any content a report or a StoreError."""

from __future__ import annotations

import json
import math
import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzzing import JSON, ODD, changed, edited, fuzzed
from synthetic import DOCKER, NATIVE, Recipe, write_run
from virtoll.catalogue import catalogue
from virtoll.errors import StoreError, StudyError
from virtoll.record.store import RunDirectory
from virtoll.report.build import build_report
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import conditions

STUDIES = [path.read_text() for path in sorted((Path(__file__).parent.parent / "src/virtoll/studies").glob("*.toml"))]
SHORT = min(STUDIES, key=len)
LITERALS = [
    *(
        '""',
        "[]",
        "{}",
        "0",
        "-1",
        "true",
        "nan",
        "inf",
        "1e400",
        "[[]]",
        "[1, [2]]",
        "1979-05-27",
        '"none"',
        "99999999999",
    ),
    *('"9e9 s"', '"' + "9" * 400 + ' s"', '"1 kB"', "{a = {b = 1}}", "[{}]", '["x", 1, nan]', '"\\u0000"'),
]


@cache
def known() -> Any:
    return catalogue()


def toml(value: Any) -> str:
    """A TOML literal of a JSON value; TOML has no null."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    return '"null"' if value is None else json.dumps(value)


def expect_study(text: str) -> None:
    for quick in (False, True):
        try:
            study = read_study(text, "x.toml", known(), quick=quick)
        except StudyError:
            continue
        assert sensible(study)


def sensible(study: Study) -> bool:
    assert len(conditions(study)) * len(study.arms) * study.blocks <= 1_000_000
    numbers = [value for value in study.base.values() if isinstance(value, float)]
    return all(math.isfinite(number) for number in numbers)


@fuzzed(30)
@given(st.data())
def test_a_study_with_other_values(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(STUDIES)).splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key, equals, _old = lines[at].partition("=")
        if equals and data.draw(st.booleans()):
            lines[at] = f"{key}= {data.draw(st.sampled_from(LITERALS) | JSON.map(toml))}"
        else:
            lines[at] = data.draw(st.sampled_from(["", "[load]", "[[probes]]", "[quick]", "[factors]", lines[at - 1]]))
    expect_study("\n".join(lines))


@fuzzed(20)
@given(edited([SHORT]))
def test_a_study_that_was_torn(text: str) -> None:
    expect_study(text)


@fuzzed(20)
@given(st.text(max_size=80) | st.dictionaries(st.sampled_from(
    ["name", "blocks", "seed", "claims", "margin", "noise_floor", "service", "load", "probes", "factors", "exclude",
     "arms", "quick", "limits", "link", "slices", "neighbour"]), JSON, max_size=5,
).map(lambda table: "\n".join(f"{key} = {toml(value)}" for key, value in table.items())))  # fmt: skip
@example("a = " + "[" * 5000)
@example("blocks = 1" + "0" * 5000)
@example('claims = [["x"]]\n[quick]\nload = 1\n')
def test_a_study_of_anything(text: str) -> None:
    expect_study(text)


@pytest.mark.parametrize("literal", LITERALS)
def test_every_value_of_a_study_may_be_wrong(literal: str) -> None:
    lines = SHORT.splitlines()
    for at, line in enumerate(lines):
        key, equals, _ = line.partition("=")
        if equals and not key.strip().startswith("#") and at % 6 == len(literal) % 6:
            expect_study("\n".join([*lines[:at], f"{key}= {literal}", *lines[at + 1 :]]))


def test_a_programme_of_more_cases_than_anybody_runs_is_refused() -> None:
    many = ", ".join(str(n) for n in range(1, 400))
    text = 'name = "x"\n[[arms]]\nplatform = "native"\n[[probes]]\nname = "linpack"\n'
    text += f"order = [{many}]\nthreads = [{many}]\nwindows = [{many}]\n"
    with pytest.raises(StudyError, match="cases"):
        read_study(text, "x.toml", known())


def test_a_plan_of_more_trials_than_anybody_runs_is_refused() -> None:
    text = STUDIES[next(at for at, text in enumerate(STUDIES) if 'name = "proxy"' in text)]
    assert "blocks = 10\n" in text
    with pytest.raises(StudyError, match="trials"):
        read_study(text.replace("blocks = 10\n", "blocks = 100_000_000\n"), "x.toml", known())


# -- run directories --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=2, samples_per_trial=10, factors={"load.connections": [1, 100]})
    return write_run(tmp_path_factory.mktemp("fuzzed") / "r", recipe)


def expect_report(directory: Path) -> None:
    try:
        build_report(directory)
        RunDirectory(directory).unsealed()
    except StoreError:
        assert (directory / "trials").is_dir()
    (others,) = [path for path in directory.parent.iterdir() if path != directory]
    assert others.read_text() == "untouched", "nothing is written outside"


@pytest.mark.parametrize("file", ["study.json", "plan.json", "environment.json", "trials.jsonl"])
@fuzzed(4)
@given(data=st.data())
def test_a_run_with_other_values(file: str, run: Path, undrawn: None, tmp_path: Path, data: st.DataObject) -> None:
    directory = fresh(run, tmp_path)
    lines = (run / file).read_text().splitlines() if file.endswith("l") else [(run / file).read_text()]
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = json.dumps(data.draw(changed(json.loads(lines[at]))))
    (directory / file).write_text("\n".join(lines) + "\n")
    expect_report(directory)


@pytest.mark.parametrize("file", ["study.json", "trials.jsonl"])
@fuzzed(4)
@given(data=st.data())
def test_a_run_that_was_torn(file: str, run: Path, undrawn: None, tmp_path: Path, data: st.DataObject) -> None:
    directory = fresh(run, tmp_path)
    (directory / file).write_text(data.draw(edited([(run / file).read_text()])), errors="replace")
    expect_report(directory)


@pytest.mark.parametrize("name", ["latency", "outside"])
@fuzzed(4)
@given(data=st.data())
def test_tables_that_were_damaged(name: str, run: Path, undrawn: None, tmp_path: Path, data: st.DataObject) -> None:
    directory = fresh(run, tmp_path)
    path = next((directory / "trials").glob(f"*/{name}.parquet"))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
    expect_report(directory)


def fresh(run: Path, place: Path) -> Path:
    """A copy of the run, alone beside a file that nobody may write to."""
    for old in place.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    (place / "beside").write_text("untouched")
    return shutil.copytree(run, place / "r")


def test_odd_words_are_odd() -> None:
    """The words that the examples are made of are what they are there for."""
    assert any(len(word) > 4300 for word in ODD), "int() refuses more digits than that with a ValueError"
    assert tomllib.loads("a = inf")["a"] == math.inf
