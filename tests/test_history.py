"""A folder of runs over time: its series, its changes of level and of environment, its page and its exports."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from synthetic import AGAIN, DOCKER, LXC, NATIVE, PUBLISHED, TRUTH, UML, Recipe, excluding, write_run
from test_exit_codes import code_of
from test_foreign_runs import EVIL, Elements, changed, poisoned
from test_plan_bounds import altered
from virtoll.analysis.change_points import LEAST_PART, can_find, change_points, pettitt
from virtoll.errors import StoreError, StudyError
from virtoll.report import history_forms as forms
from virtoll.report.history import History, history
from virtoll.report.history_page import _point_rows, write_page

pytestmark = pytest.mark.usefixtures("helped")

# -- changes of level -------------------------------------------------------------------------------------


def test_pettitts_statistic_is_his() -> None:
    """Against its definition, a sum over pairs of signs; and a p that exact enumeration of 6 values gives."""
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, 14)
    by_pairs = [abs(sum(np.sign(values[:t][:, None] - values[t:]).sum(axis=1))) for t in range(3, 12)]
    at, p = pettitt(values, rng)
    assert at == 3 + int(np.argmax(by_pairs))
    assert 0 < p <= 1
    apart = np.array([0.0, 1, 2, 10, 11, 12])
    _, p = pettitt(apart, rng)
    assert p == pytest.approx(2 / 20, abs=0.01)  # of 6 values cut in half, 2 of the 20 ways are as far apart


def test_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(4)
    logs = np.concatenate([rng.normal(0, 0.005, 12), rng.normal(-0.03, 0.005, 9), rng.normal(0.02, 0.005, 11)])
    found = change_points(list(logs))
    assert [each.at for each in found] == [12, 21]
    first = found[0].ratio
    assert first.low is not None
    assert first.high is not None
    assert first.low < np.exp(-0.03) < first.high


@pytest.mark.parametrize("odd_at", [0, 4, 9, 11])
def test_one_odd_run_is_no_change(odd_at: int) -> None:
    logs = np.random.default_rng(odd_at).normal(0, 0.01, 12)
    logs[odd_at] = 3.0
    assert change_points(list(logs)) == ()


def test_of_nine_runs_nothing_is_asked() -> None:
    assert change_points([0.0] * 4 + [1.0] * 5) == ()
    assert len(change_points([0.0] * 5 + [1.0] * 5)) == 1


def test_equal_runs_seldom_change_and_more_stretches_do_not_add_up() -> None:
    rng = np.random.default_rng(9)
    series = rng.normal(0, 0.01, (150, 12))
    alone = sum(bool(change_points(list(logs))) for logs in series)
    pages = sum(any(change_points(list(logs), 5) for logs in page) for page in series.reshape(30, 5, 12))
    assert alone <= 14  # of 150 at 5 %; the seed is fixed
    assert pages <= 4


@pytest.mark.parametrize(
    ("runs", "stretches", "found"), [(10, 1, True), (10, 6, False), (14, 6, True), (14, 200, False)]
)
def test_it_is_known_of_how_few_runs_no_change_can_be_shown(runs: int, stretches: int, found: bool) -> None:
    assert can_find(runs, stretches) is found
    clearest = [0.0, 0.001] * (runs // 4) + [0.0] * (runs // 2 - runs // 4 * 2)
    logs = [*clearest, *(each + 1 for each in clearest)]
    assert bool(change_points(logs, stretches)) is found


def test_among_many_stretches_a_change_can_still_be_shown() -> None:
    """Of a programme's probes, on several platforms in several environments, there are hundreds on a page."""
    logs = [0.0, 0.001] * 15 + [1.0, 1.001] * 15
    for stretches in (500, 2000):
        [found] = change_points(logs, stretches)
        assert (found.at, round(found.p, 3)) == (30, 0.01)
    assert change_points([0.0, 0.001] * 30, 2000) == ()


def test_ties_are_no_change() -> None:
    assert change_points([0.0] * 20) == ()
    assert LEAST_PART > 1


# -- folders ----------------------------------------------------------------------------------------------

ARMS = (NATIVE, AGAIN, LXC, DOCKER)
RECIPE = Recipe(arms=ARMS, blocks=4, bulk=False, factors={"load.connections": [1, 100]})
SLOWER = {**TRUTH, DOCKER.label: TRUTH[DOCKER.label] * 0.9}


def begun(run: Path, day: int, **comparable: Any) -> Path:
    def change(environment: Any) -> None:
        environment["created_at"] = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)).isoformat()
        environment["comparable"].update(comparable)

    changed(run / "environment.json", change)
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 runs of a study, docker slower from the seventh on, two in another environment after them; one of another
    study; one that is damaged.
    """
    place = tmp_path_factory.mktemp("runs")
    for number in range(16):
        recipe = replace(RECIPE, seed=number + 1, truth=SLOWER if number >= 6 else TRUTH)
        below = place / "2026" if number < 8 else place
        kernel = {"kernel": "6.2"} if number >= 14 else {}
        begun(write_run(below / f"run-{number:02}", recipe), number, **kernel)
    other = begun(write_run(place / "other", replace(RECIPE, seed=99)), 3)
    changed(other / "study.json", lambda study: study["base"].update({"load.requests": 5}))
    broken = write_run(place / "broken", replace(RECIPE, blocks=2))
    (broken / "trials.jsonl").write_text("{}\n")
    return place


@pytest.fixture(scope="module")
def told(folder: Path, helped: None) -> History:
    return history(folder)


def test_runs_that_asked_for_the_same_are_a_series(told: History, folder: Path) -> None:
    assert [len(each.runs) for each in told.series] == [16, 1]
    assert [run.directory.name for run in told.series[0].runs] == [f"run-{n:02}" for n in range(16)]
    assert told.series[0].environments == (1,) * 14 + (2,) * 2
    [(path, why)] = told.left_out
    assert path == folder / "broken"
    assert "is damaged" in why


def test_a_change_of_level_is_told_and_nothing_else(told: History) -> None:
    [(_, line, point, change)] = forms.changed(told)
    assert (line.arm.label, point.run.directory.name, change.at) == (DOCKER.label, "run-06", 6)
    assert change.ratio.low is not None
    assert change.ratio.high is not None
    assert change.ratio.low < 0.9 < change.ratio.high
    [sentence] = forms.sentences(told)[1:]
    assert sentence.startswith("docker+routed: Throughput, to native, is worse by 9.9 % [")
    assert "from run-06 (2026-01-07) on (p = " in sentence
    [(run, number, differs)] = told.series[0].moves()
    assert (run.directory.name, number) == ("run-14", 2)
    assert differs == ["kernel: was 6.1.0-42-amd64, is 6.2"]


def test_what_was_made_otherwise_where_a_level_changes_is_told(tmp_path: Path) -> None:
    """Half the CPUs from the seventh run on: no machine and no version did that."""
    for number in range(12):
        recipe = replace(RECIPE, seed=number + 1, blocks=2, truth=SLOWER if number >= 6 else TRUTH)
        run = begun(write_run(tmp_path / f"run-{number:02}", recipe), number)
        if number < 6:
            changed(run / "study.json", lambda study: study["base"].update({"limits.vcpus": 2}))
    found = history(tmp_path)
    assert len(found.series) == 1
    [words] = [line for line in forms.sentences(found) if line.startswith("docker+routed")]
    assert words.endswith(" Different under test from there on: limits.vcpus: 2 in run-05, 1 in run-06.")
    [one] = forms.as_json(found)["configured_changes"]
    assert (Path(one["run"]).name, one["differs"]) == ("run-06", ["limits.vcpus: 2 in run-05, 1 in run-06"])
    assert "Where what is under test changed" in write_page(found).read_text("utf-8")


def test_changes_are_within_one_environment(tmp_path: Path) -> None:
    """As many runs, and as large a change, but every run from then on has another environment: nothing is asked."""
    for number in range(12):
        recipe = replace(RECIPE, seed=number + 1, blocks=2, truth=SLOWER if number >= 6 else TRUTH)
        begun(write_run(tmp_path / f"{number:02}", recipe), number, kernel="6.2" if number >= 6 else "6.1")
    found = history(tmp_path)
    assert found.asked == 0
    assert forms.sentences(found)[1:] == [
        "No change is asked for: no arm has 10 runs of one study in one environment, over the same conditions."
    ]


def slower_at_100(record: dict[str, Any]) -> None:
    """UML's windows are twice as long at 100 connections."""
    trial = record["trial"]
    if trial["arm"]["label"] == UML.label and trial["condition"]["load.connections"] == 100:
        record["measured"]["windows"][0]["duration_ns"] *= 2


@pytest.fixture(scope="module")
def relieved(tmp_path_factory: pytest.TempPathFactory, helped: None) -> History:
    """20 runs, docker slower from the eleventh on, until which an [[exclude]] took 100 connections from UML."""
    place, recipe = tmp_path_factory.mktemp("relieved"), replace(RECIPE, arms=(NATIVE, DOCKER, UML), blocks=2)
    for number in range(20):
        truth = SLOWER if number >= 10 else TRUTH
        run = write_run(place / f"run-{number:02}", replace(recipe, seed=number + 1, truth=truth))
        begun(altered(run, slower_at_100), number)
        if number < 10:
            excluding(run, lambda trial: trial.arm == UML and trial.condition["load.connections"] == 100)
    return history(place)


def test_that_an_arm_is_asked_other_conditions_is_no_change_of_its_level(relieved: History) -> None:
    """It was worse by 29 % from there on. Docker, which is asked the same throughout, is."""
    (series,) = relieved.series
    assert [(line.arm.label, point.run.directory.name) for _, line, point, _ in forms.changed(relieved)] == [
        (DOCKER.label, "run-10")
    ]
    assert relieved.asked == 3, "stretches: one of docker, two of UML"
    assert list(forms.without(series)) == ["run-10: uml+routed is told over 100 connections too, in Throughput"]
    page = write_page(relieved).read_text("utf-8")
    assert "run-10: uml+routed is told over 100 connections too, in Throughput" in page
    uml = next(line for line in series.lines if line.arm == UML)
    assert [row["environment"] for row in _point_rows(uml)] == ["0"] * 10 + ["1"] * 10


def test_exports_tell_apart_what_is_over_other_conditions(relieved: History) -> None:
    told = {(row["arm"], row["conditions"]) for row in forms.rows(relieved)}
    both = "1 connection; 100 connections"
    assert told == {(DOCKER.label, both), (UML.label, "1 connection"), (UML.label, both)}
    samples = forms.as_openmetrics(relieved).decode().splitlines()
    assert sum('arm="uml+routed"' in line and 'conditions="1 connection"' in line for line in samples) == 3 * 10
    items = {(line.split()[0], line.split()[1]) for line in forms.for_zabbix(relieved).lines}
    keys = {host: {key.partition(",")[2].partition(",")[0] for of, key in items if of == host} for host, _ in items}
    assert keys == {'"docker-routed"': {"rate_per_s"}, '"uml-routed"': {"rate_per_s", "rate_per_s_"}}


def test_an_arm_that_is_asked_less_from_a_run_on_is_told_so(tmp_path: Path) -> None:
    for number in range(2):
        run = begun(write_run(tmp_path / f"{number}", replace(RECIPE, seed=number + 1, blocks=2)), number)
    excluding(run, lambda trial: trial.arm == LXC and trial.condition["load.connections"] == 1)
    (series,) = history(tmp_path).series
    assert list(forms.without(series)) == ["1: lxc+routed is told no more over 1 connection, in Throughput"]


@pytest.mark.parametrize("hosts", [False, True])
def test_a_reboot_is_no_other_environment(hosts: bool, tmp_path: Path) -> None:
    """What memory a kernel leaves is another page or two at each boot: of a machine that is booted for each run no two
    were of one environment, and no change could be found.
    """
    for number in range(12):
        recipe = replace(RECIPE, seed=number + 1, blocks=2, truth=SLOWER if number >= 6 else TRUTH)
        machine = {"memory_bytes": 16_000_000_000 + 4096 * number}
        here: dict[str, Any] = {"machine": machine}
        begun(write_run(tmp_path / f"{number:02}", recipe), number, **({"hosts": {"node1": here}} if hosts else here))
    found = history(tmp_path)
    [(_, line, point, _)] = forms.changed(found)
    assert (line.arm.label, point.run.directory.name) == (DOCKER.label, "06")
    assert len({row["environment_digest"] for row in forms.rows(found)}) == 1
    more = {"machine": {"memory_bytes": 17_000_000_000}}
    begun(write_run(tmp_path / "12", replace(RECIPE, seed=13, blocks=2)), 13, **more)
    assert history(tmp_path).series[0].environments == (1,) * 12 + (2,), "that is another machine"


def test_stretches_that_are_too_short_for_so_many_are_told_apart(tmp_path: Path) -> None:
    """Ten runs of six arms: docker is at a tenth from the sixth on, and no test could show it."""
    slower = {**TRUTH, DOCKER.label: TRUTH[DOCKER.label] * 0.1}
    recipe = replace(RECIPE, arms=(NATIVE, AGAIN, LXC, DOCKER, PUBLISHED, UML), blocks=2)
    for number in range(10):
        truth = slower if number >= 5 else TRUTH
        begun(write_run(tmp_path / f"{number:02}", replace(recipe, seed=number + 1, truth=truth)), number)
    found = history(tmp_path, ["rate_per_s", "generator_cpus", "total_time_s"])
    assert found.blind == found.asked > 5
    (_, said) = forms.sentences(found)
    assert said == (
        f"In {found.asked} of {found.asked} stretches of one environment no change could be shown yet: "
        "they hold too few runs for so many at once."
    )
    assert forms.as_json(found)["stretches_too_short"] == found.asked


def test_a_change_between_runs_that_are_all_alike_has_no_interval(told: History) -> None:
    line = next(line for line in told.series[0].lines if line.arm.label == LXC.label)
    (change,) = change_points([np.log(0.9)] * 6 + [np.log(0.8)] * 6)
    words = forms.change_words(line, line.points[0], change)
    assert "is worse by 11 % (runs that are all alike have no interval) from" in words


def test_each_point_is_its_runs_own_toll(told: History) -> None:
    from virtoll.report.findings import find

    line = next(line for line in told.series[0].lines if line.arm.label == LXC.label)
    toll = find(line.points[3].run.directory).tolls("rate_per_s").total(LXC)
    assert toll is not None
    assert toll.ratio is not None
    mine = line.points[3].ratio
    assert (mine.value, mine.low, mine.high) == (toll.ratio.value, toll.ratio.low, toll.ratio.high)


def test_a_run_with_fewer_conditions_has_no_point(tmp_path: Path) -> None:
    for number in range(3):
        begun(write_run(tmp_path / f"{number}", replace(RECIPE, seed=number + 1)), number)
    lines = (tmp_path / "1" / "trials.jsonl").read_text().splitlines()
    spoilt = [
        line.replace('"status":"valid"', '"status":"invalid"')
        if '"docker+routed"' in line and '"load.connections":100' in line
        else line
        for line in lines
    ]
    (tmp_path / "1" / "trials.jsonl").write_text("".join(f"{line}\n" for line in spoilt))
    found = history(tmp_path)
    counts = {line.arm.label: len(line.points) for line in found.series[0].lines}
    assert counts == {LXC.label: 3, DOCKER.label: 2}
    [one] = forms.as_json(found)["not_told"]
    assert one["reason"] == "measured under 1 of 2 conditions"


def test_order_is_by_time_and_not_by_name(tmp_path: Path) -> None:
    for number, day in enumerate((5, 1, 3)):
        begun(write_run(tmp_path / f"{number}", replace(RECIPE, seed=number + 1, blocks=2)), day)
    assert [run.directory.name for run in history(tmp_path).series[0].runs] == ["1", "2", "0"]


def test_of_a_run_and_its_copies_the_longest_is_told(tmp_path: Path) -> None:
    """It was the one whose path comes first: a copy of a run that was gone on with since stood in its place."""
    whole = begun(write_run(tmp_path / "b", RECIPE), 1)
    shutil.copytree(whole, tmp_path / "c")
    begun(write_run(tmp_path / "a", replace(RECIPE, sealed=16)), 1)
    found = history(tmp_path)
    assert [run.directory.name for run in found.series[0].runs] == ["b"]
    assert {point.ratio.n for line in found.series[0].lines for point in line.points} == {4}
    assert [(path.name, why) for path, why in found.left_out] == [
        (name, f"it is the same run as {whole}, or a copy of it") for name in "ac"
    ]


def test_where_there_is_nothing_it_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StoreError, match="no run directory under it"):
        history(tmp_path)
    with pytest.raises(StoreError, match="no such folder"):
        history(tmp_path / "nowhere")
    with pytest.raises(StudyError, match="no run has a metric"):
        history(folder, ["nothing"])


def test_a_folder_that_cannot_be_looked_into_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's runs were left out of another's history without a word, or were no runs at all."""
    begun(write_run(tmp_path / "runs" / "mine", RECIPE), 1)
    (tmp_path / "runs" / "roots").mkdir()
    really = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "roots":
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert history(tmp_path / "runs").left_out == ((tmp_path / "runs/roots", "cannot be read: Permission denied"),)
    with pytest.raises(StoreError, match="that can be read: Permission denied"):
        history(tmp_path / "runs/roots")


def test_no_link_is_followed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(folder)
    with pytest.raises(StoreError, match="no run directory under it"):
        history(tmp_path / "runs")
    shutil.copytree(folder / "run-09", tmp_path / "runs" / "one")
    (tmp_path / "runs" / "history.html").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="symbolic link"):
        write_page(history(tmp_path / "runs"))
    assert not (tmp_path / "victim").exists()


# -- forms ------------------------------------------------------------------------------------------------


def test_exports_hold_the_same_rows(told: History, tmp_path: Path) -> None:
    rows = list(forms.rows(told))
    assert len(rows) == 2 * 17
    in_csv = list(csv.DictReader(io.StringIO(forms.as_csv(told).decode())))
    (tmp_path / "h.parquet").write_bytes(forms.as_parquet(told))
    in_parquet = pq.read_table(tmp_path / "h.parquet").to_pylist()
    for row, text, typed in zip(rows, in_csv, in_parquet, strict=True):
        assert typed == row
        assert float(text["ratio"]) == row["ratio"]
        assert text["change"] == ("" if row["change"] is None else repr(row["change"]))
    assert sum(row["change"] is not None for row in rows) == 1


def test_openmetrics_is_well_formed(told: History) -> None:
    lines = forms.as_openmetrics(told).decode().split("\n")
    assert lines[-2:] == ["# EOF", ""]
    samples = [line for line in lines if line.startswith("virtoll_ratio_to_native{")]
    assert len(samples) == len(list(forms.rows(told)))
    name, _, rest = samples[0].rpartition("} ")
    assert name.startswith('virtoll_ratio_to_native{study="proxy",metric="rate_per_s",arm="lxc+routed",run="')
    value, at = rest.split(" ")
    assert 0.9 < float(value) < 1.1
    assert int(at) == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    families = [line.split("{")[0] for line in lines if line and not line.startswith("#")]
    assert list(dict.fromkeys(families)) == [f"virtoll_ratio_to_native{end}" for end in ("", "_low", "_high")]
    assert [at for at, (one, other) in enumerate(pairwise(families)) if one != other] == [33, 67], "none interleaved"


LINE = re.compile(
    r'"([0-9A-Za-z_. -]+)" (virtoll\.ratio(?:\.low|\.high)?)\[([0-9A-Za-z_.-]+),(\w+),([0-9a-f]{8})\] (\d+) (\d+) (\S+)'
)


def test_zabbix_is_told_each_ratio_at_its_runs_time(told: History) -> None:
    found = forms.for_zabbix(told)
    lines = [LINE.fullmatch(line) for line in found.file.decode().splitlines()]
    assert all(lines)
    rows = list(forms.rows(told))
    values = {(m[1], m[2], m[3], m[4], int(m[6])): float(m[8]) for m in lines if m}
    assert len(values) == sum(row[key] is not None for row in rows for key in ("ratio", "low", "high")), "none is twice"
    first = rows[0]
    at = int(first["begun"].timestamp())
    mine = {key[1]: value for key, value in values.items() if key[0] == "lxc-routed" and key[4] == at}
    assert mine["virtoll.ratio"] == pytest.approx(first["ratio"])
    assert mine["virtoll.ratio.low"] == pytest.approx(first["low"])
    assert mine["virtoll.ratio.high"] == pytest.approx(first["high"])
    times = [(int(m[6]), int(m[7])) for m in lines if m]
    assert times == sorted(times)
    assert set(found.hosts) == {m[1] for m in lines if m}
    assert len({key[2] for key in values}) == len(told.series), "studies are told apart"
    named = {(row["environment_digest"], int(row["begun"].timestamp())) for row in rows}
    assert {(m[5], int(m[6])) for m in lines if m} == named, "another machine's points are in items of their own"
    assert len({(row["environment"], row["environment_digest"]) for row in rows}) == 2


def test_what_a_database_has_keeps_its_name_when_a_run_is_added(tmp_path: Path) -> None:
    """An earlier one, of another machine, is the first environment from then on. A later one was begun by another
    command, and tells as null what others do not tell.
    """
    recipe = replace(RECIPE, blocks=2)
    for number in (1, 2):
        begun(write_run(tmp_path / f"run-{number}", replace(recipe, seed=number)), number, kernel=f"6.{number}")
    before, lines = forms.for_zabbix(history(tmp_path)), set(forms.as_openmetrics(history(tmp_path)).splitlines())
    begun(write_run(tmp_path / "run-0", replace(recipe, seed=9)), 0, kernel="5.9")
    later = begun(write_run(tmp_path / "run-3", replace(recipe, seed=3)), 3, kernel="6.1", governor=None)
    changed(later / "study.json", lambda study: study.update(command="./proxy.toml"))
    found = history(tmp_path)
    after = forms.for_zabbix(found)
    assert set(before.keys) < set(after.keys)
    assert set(before.lines) < set(after.lines)
    assert lines < set(forms.as_openmetrics(found).splitlines())
    assert found.series[0].environments == (1, 2, 3, 2)
    assert len({key.rpartition(",")[2] for key in after.keys}) == 3
    page = write_page(found).read_text("utf-8")
    for key in after.keys:
        assert key.rpartition(",")[2].removesuffix("]") in page, "who looks at an item finds its environment"


def test_zabbix_has_no_line_of_what_is_missing(tmp_path: Path) -> None:
    begun(write_run(tmp_path / "one", replace(RECIPE, blocks=1)), 0)
    found = forms.for_zabbix(history(tmp_path))
    assert {LINE.fullmatch(line)[2] for line in found.lines} == {"virtoll.ratio"}  # type: ignore[index]


def test_the_verb(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, made = (
        tmp_path / "page.html",
        {name: tmp_path / f"h.{name}" for name in ("csv", "parquet", "openmetrics", "zabbix")},
    )
    options = [word for name, path in made.items() for word in (f"--{name}", str(path))]
    assert code_of("history", str(folder), "--out", str(page), *options, "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out, parse_constant=pytest.fail)
    assert f"`zabbix_sender -z SERVER -T -N -i {made['zabbix']}` sends them" in shown.err
    assert f"virtoll.ratio[proxy,rate_per_s,{found['rows'][0]['environment_digest']}]" in shown.err
    assert found["page"] == str(page)
    section = (Path(__file__).parent.parent / "docs/JSON.md").read_text()
    section = section[section.index("## virtoll history") :].partition("\n## ")[0]
    for key in found:
        assert f"`{key}`" in section, key
    assert all(path.stat().st_size > 100 for path in made.values())
    text = page.read_text("utf-8")
    assert text.count("<svg") == 4  # two series, wide and narrow
    assert "http" not in text.replace("http://www.w3.org", "")
    assert code_of("history", str(folder), "--out", str(page)) == 0
    said = capsys.readouterr().out
    assert "17 runs of 2 studies in 2 environments." in said
    assert "left out" in said


def test_an_arm_that_never_has_a_ratio_is_told_with_the_reason(tmp_path: Path) -> None:
    run = begun(write_run(tmp_path / "one", replace(RECIPE, blocks=2)), 0)
    lines = (run / "trials.jsonl").read_text().splitlines()
    kept = [x.replace('"status":"valid"', '"status":"failed"') if '"lxc+routed"' in x else x for x in lines]
    (run / "trials.jsonl").write_text("".join(f"{line}\n" for line in kept))
    found = history(tmp_path)
    [words] = forms.without(found.series[0])
    assert words == "lxc+routed: none in Throughput (one: not measured)"
    assert words in write_page(found).read_text("utf-8")


def test_a_page_of_one_run_alone(tmp_path: Path) -> None:
    begun(write_run(tmp_path / "one", replace(RECIPE, blocks=2)), 0)
    found = history(tmp_path)
    assert write_page(found) == tmp_path / "history.html"
    assert forms.sentences(found)[0] == "1 run of one study in 1 environment."


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    for name in ("plain", "evil"):
        for number in range(2):
            run = begun(write_run(tmp_path / name / str(number), replace(RECIPE, seed=number, blocks=2)), number)
            if name == "evil":
                for file in ("plan.json", "environment.json"):
                    (run / file).write_text(json.dumps(poisoned(json.loads((run / file).read_text()))))
                lines = (run / "trials.jsonl").read_text().splitlines()
                (run / "trials.jsonl").write_text("".join(json.dumps(poisoned(json.loads(x))) + "\n" for x in lines))
                changed(run / "study.json", lambda study: study.update(name=EVIL, command=EVIL))
            begun(run, number, kernel=f"{number}{EVIL if name == 'evil' else ''}")
    plain, evil = (write_page(history(tmp_path / name)).read_text("utf-8") for name in ("plain", "evil"))
    assert evil.count("&lt;script&gt;alert(1)") > 4
    assert Elements(evil).seen <= Elements(plain).seen | {("tspan", ""), ("tspan", "x"), ("tspan", "dy")}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: changed(run / "environment.json", lambda e: e.update(created_at="yesterday")),
        lambda run: changed(run / "study.json", lambda s: s.update(service="", programme=[7])),
        lambda run: changed(run / "study.json", lambda s: s.update(servers={"a": 7})),
        lambda run: changed(run / "study.json", lambda s: s.update(command="half a pair: \ud800")),
        lambda run: (run / "study.json").write_text("[7]"),
        lambda run: (run / "study.json").unlink(),
        lambda run: (run / "trials.jsonl").write_bytes(b"\xff\xfe\n"),
        lambda run: os.truncate(run / "plan.json", 40),
        lambda run: (run / "trials.jsonl").write_text(""),
    ],
)
def test_one_damaged_run_takes_no_other_with_it(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    for number in range(2):
        begun(write_run(tmp_path / f"{number}", replace(RECIPE, seed=number + 1, blocks=2)), number)
    spoil(tmp_path / "1")
    found = history(tmp_path)
    assert found.runs == 1
    [(path, why)] = found.left_out
    assert path == tmp_path / "1"
    assert why
