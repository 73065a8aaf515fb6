"""Variance components: known ones are found, what cannot be told is a sentence, and the advice that follows holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_studies import MACHINES, ROTATION, components_seen, observations, studies
from on_fakes import on_fakes
from synthetic import AGAIN, DOCKER, NATIVE, Recipe, write_run
from test_deciding import IN_TURN, virtoll
from virtoll.analysis.components import ALIKE, NO_PARTS, ONE_WINDOW, Cell, Components, components, components_of
from virtoll.analysis.estimates import Floats
from virtoll.analysis.narrowing import Pace, narrowing, pace_of
from virtoll.analysis.ratios import log_ratios, over_conditions
from virtoll.fakes import FakeExperiment
from virtoll.record.model import Phase, PlannedTrial
from virtoll.report import narrowing as words
from virtoll.report.answer import answer
from virtoll.report.build import as_json, write_report
from virtoll.report.findings import Findings, find
from virtoll.report.sections.components import VarianceComponents
from virtoll.run.stage import Stage

pytestmark = pytest.mark.usefixtures("undrawn")

STUDIES = 2000
WINDOW, BETWEEN = 0.08, 0.03


def made(
    rng: np.random.Generator,
    blocks: int = 8,
    windows: int = 12,
    *,
    conditions: int = 1,
    between: float = BETWEEN,
    window: float = WINDOW,
    paired: bool = True,
    lost: float = 0.0,
) -> Components | str:
    """The components of one study whose own are known: standard deviations of a round, and between blocks."""
    cells: dict[tuple[int, int], Cell] = {}
    logs = np.full((blocks, conditions), math.nan)
    for b, c in np.ndindex(blocks, conditions):
        n = windows if rng.random() >= lost else int(rng.integers(1, windows))
        sides = ("both",) if paired else ("arm", "native")
        cell = {side: rng.normal(0, window / math.sqrt(len(sides)), n) for side in sides}
        logs[b, c] = sum(float(samples.mean()) for samples in cell.values())
        cells[b, c] = {side: samples - samples.mean() for side, samples in cell.items()}
    logs += rng.normal(0, between, (blocks, 1))
    return components(logs, cells)


def known(found: Components | str) -> Components:
    assert isinstance(found, Components), found
    return found


def near(values: Sequence[float], truth: float) -> bool:
    """Whether their mean is the truth, by four of its standard errors."""
    return abs(float(np.mean(values)) - truth) <= 4 * float(np.std(values, ddof=1)) / math.sqrt(len(values))


# -- known components --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{}, {"lost": 0.4}, {"paired": False}, {"conditions": 3}, {"conditions": 3, "lost": 0.3}, {"blocks": 3}],
    ids=str,
)
def test_known_components_are_found_on_average(how: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    found = [known(made(rng, **how)) for _ in range(STUDIES // 2)]  # tells a divisor of n from one of n - 1
    assert near([each.window for each in found], WINDOW**2)
    assert near([each.between for each in found], BETWEEN**2)
    assert all(each.of_blocks >= 0 for each in found)


def test_without_any_between_the_estimate_is_as_often_below_0_and_told_as_0() -> None:
    rng = np.random.default_rng(8)
    found = [known(made(rng, between=0.0)) for _ in range(STUDIES)]
    assert near([each.between for each in found], 0.0)
    below = [each for each in found if each.between < 0]
    assert 0.5 < len(below) / STUDIES < 0.7
    assert all((each.of_blocks, each.share) == (0.0, 1.0) for each in below)


@pytest.mark.parametrize("between", [0.0, BETWEEN])
def test_the_interval_of_the_windows_share_holds_it(between: float) -> None:
    rng = np.random.default_rng(9)
    explained = WINDOW**2 / 12
    share = explained / (explained + between**2)
    intervals = [known(made(rng, between=between)).share_interval for _ in range(STUDIES)]
    held = np.mean([each is not None and each[0] <= share <= each[1] for each in intervals])
    if between:
        assert 0.935 <= held <= 0.965
    else:
        assert held >= 0.965, "capped at all of it"


def test_components_of_ratios_of_totals_are_those_of_logs_where_noise_is_small() -> None:
    values = studies(MACHINES["deployments differ"], ROTATION, np.ones(2), 400, np.random.default_rng(3))
    found = [known(components_seen(study, 1)) for study in values]
    logs = np.log(values[..., 1] / values[..., 0])
    assert np.mean([each.window for each in found]) == pytest.approx(logs.var(axis=2, ddof=1).mean(), rel=0.05)
    assert np.mean([each.between for each in found]) == pytest.approx(2 * 0.03**2, rel=0.1)


# -- what cannot be told -----------------------------------------------------------------------------------


def test_one_window_a_deployment_tells_nothing() -> None:
    assert made(np.random.default_rng(1), windows=1) == ONE_WINDOW


def test_one_block_has_windows_and_no_share() -> None:
    found = known(made(np.random.default_rng(1), blocks=1))
    assert found.window > 0
    assert math.isnan(found.between)
    assert found.share_interval is None


def test_no_scatter_at_all_is_no_component() -> None:
    assert made(np.random.default_rng(1), window=0.0, between=0.0) == ALIKE


def test_blocks_of_which_no_windows_are_known_are_not_guessed() -> None:
    cells: dict[tuple[int, int], Cell] = {(0, 0): {"both": np.array([-1.0, 1.0])}}
    assert components(np.zeros((2, 1)), cells) == NO_PARTS


def test_blocks_that_are_all_alike_have_no_scatter_but_their_windows() -> None:
    """Of windows that scatter, blocks that do not can be chance alone: all of it is the windows'."""
    cell: Cell = {"both": np.array([-0.1, 0.0, 0.1])}
    found = known(components(np.zeros((4, 1)), dict.fromkeys(((b, 0) for b in range(4)), cell)))
    assert (found.observation, found.of_blocks, found.share) == (0.0, 0.0, 1.0)
    assert found.share_interval == (1.0, 1.0)
    assert math.isnan(known(made(np.random.default_rng(1), blocks=1)).share)


def test_where_rounds_are_paired_in_some_blocks_only_a_window_counts_once() -> None:
    """After a kill between the seals of a turn, one arm's windows are made anew, and are no rounds."""
    rng = np.random.default_rng(4)
    cells: dict[tuple[int, int], Cell] = {
        (b, 0): {"both": rng.normal(0, 0.1, 200)}
        if b < 3
        else {side: rng.normal(0, 0.1 / math.sqrt(2), 200) for side in ("arm", "native")}
        for b in range(4)
    }
    found = known(components(rng.normal(0, 0.01, (4, 1)), cells))
    assert found.window == pytest.approx(0.1**2, rel=0.15)
    assert not found.is_paired


def test_two_blocks_give_no_advice() -> None:
    found = known(made(np.random.default_rng(1), blocks=2))
    summary = over_conditions(np.array([[0.1], [0.2]]))
    assert summary is not None
    assert narrowing(found, summary, Pace(60, 40)) is None


# -- what would narrow it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["quiet", "drift", "deployments differ", "bimodal deployments"])
def test_what_is_foretold_comes(machine: str) -> None:
    """Twice the rounds, or more blocks: half-widths of 400 studies each; where rounds are not alike, to a tenth."""
    rng = np.random.default_rng(5)
    truth = np.ones(2)
    told = []
    for study in studies(MACHINES[machine], ROTATION, truth, 400, rng):
        summary = over_conditions(observations(study[None])[0])
        assert summary is not None
        told.append(narrowing(known(components_seen(study, 1)), summary, Pace(50, 39)))
    more = told[0].more if told[0] else 0
    for design, which in (
        (replace(ROTATION, rounds=32), "windows"),
        (replace(ROTATION, blocks=ROTATION.blocks + more), "blocks"),
    ):
        logs = observations(studies(MACHINES[machine], design, truth, 400, rng))[..., 0]
        came = np.median([_half(study) for study in logs])
        assert np.median([getattr(each, which) for each in told]) == pytest.approx(came, rel=0.1), which


def _half(logs: Floats) -> float:
    summary = over_conditions(logs[:, None])
    assert summary is not None
    return summary.half_width()


def test_the_cheaper_way_follows_from_what_a_block_costs_beside_its_windows() -> None:
    """Where windows are all of the scatter: rounds, if a deployment takes long; blocks, if it takes no time."""
    rng = np.random.default_rng(2)
    found = known(made(rng, blocks=20, between=0.0))
    summary = over_conditions(rng.normal(0, WINDOW / math.sqrt(12), (20, 1)))
    assert summary is not None
    slow, quick = narrowing(found, summary, Pace(100, 10)), narrowing(found, summary, Pace(10.0, 10.0))
    assert slow is not None
    assert slow.by_windows
    assert (slow.more, slow.windows_s, slow.blocks_s) == (2, 200, 200)
    assert slow.here is not None
    assert slow.here > 22, "an extended run's intervals are wider"
    assert quick is not None
    assert quick.blocks == pytest.approx(quick.windows, rel=0.05)
    differ = known(made(rng, blocks=20, between=0.5))
    summary = over_conditions(rng.normal(0, 0.5, (20, 1)))
    assert summary is not None
    told = narrowing(differ, summary, Pace(100, 10))
    assert told is not None
    assert not told.by_windows


def test_of_the_blocks_that_come_as_many_are_lost() -> None:
    """Half of twenty hold nothing: two more give one observation more, and as many pairs take twice the blocks."""
    rng = np.random.default_rng(2)
    found = known(made(rng, blocks=10, between=0.0))
    summary = over_conditions(rng.normal(0, WINDOW / math.sqrt(12), (10, 1)))
    assert summary is not None
    all_held, half_held = narrowing(found, summary, Pace(100, 20)), narrowing(found, summary, Pace(100, 10), 10)
    assert all_held is not None
    assert half_held is not None
    assert (all_held.more, half_held.more) == (2, 2)
    one_more = replace(summary, n=11, error=summary.deviation / math.sqrt(11))
    assert half_held.blocks == pytest.approx(one_more.half_width())
    assert half_held.blocks > all_held.blocks
    assert all_held.here is not None
    assert half_held.here is not None
    assert all_held.by_windows
    assert half_held.by_windows
    assert half_held.here == 2 * all_held.here


# -- in the report -----------------------------------------------------------------------------------------


class Scattering:
    """A fake lab whose windows and deployments scatter; runs of it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, window: float, deployment: float) -> None:
        self.directory, self.window, self.deployment = directory, window, deployment
        on_fakes(monkeypatch, {})

        def drift(now_s: float) -> float:
            return math.exp(float(np.random.default_rng(round(now_s * 1000)).normal(0, self.window)))

        @contextmanager
        def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
            yield FakeExperiment(
                {"native": 1.0, "docker": 1.02}, spread=self.deployment, rounds=6, drift=drift, native_latency_ns=1000
            )

        monkeypatch.setattr(Stage, "lab", lab)

    def run(self, *options: str, text: str = IN_TURN) -> Findings:
        path = self.directory / "small.toml"
        path.write_text(text)
        assert virtoll("run", str(path), "--out", str(self.directory / "run"), *options) == 0
        return find(self.directory / "run")


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scattering:
    return Scattering(tmp_path, monkeypatch, window=0.15, deployment=0.001)


def entry(findings: Findings, quantity: str = "rate_per_s", arm: str = DOCKER.label) -> dict[str, Any]:
    found = as_json(findings, write_report(findings))
    json.dumps(found, allow_nan=False)
    (mine,) = [each for each in found["components"] if (each["arm"], each["quantity"]) == (arm, quantity)]
    return dict(mine)


def test_a_run_in_rotation_tells_its_components(wide: Scattering) -> None:
    findings = wide.run("--blocks", "12")
    found = entry(findings)
    assert found["in_rounds"]
    assert (found["windows"], found["blocks"]) == (6, 12)
    assert found["window_sd"] == pytest.approx(0.15 * math.sqrt(2), rel=0.25)
    assert found["block_sd"] ** 2 == pytest.approx(
        components_of(findings.matrix, "rate_per_s", DOCKER).observation  # type: ignore[union-attr]
    )
    page = (findings.run.directory / "report" / "index.html").read_text()
    assert "Where does the scatter come from?" in page
    assert "Searle, Casella &amp; McCulloch 1992" in page
    table = (findings.run.directory / "report" / "tables" / "components.md").read_text()
    assert "| CPU per 1,000 requests | docker+routed |" in table
    assert entry(findings, "cpu_s_per_1000")["windows"] == 6


def test_beside_an_answer_that_cannot_tell_stands_what_would_narrow_it(wide: Scattering, capsys: Any) -> None:
    findings = wide.run("--blocks", "7")
    (told,) = words.told(findings)
    assert told in answer(findings)
    assert told.replace(" ± ", " ") in " ".join(capsys.readouterr().out.split()).replace(" ± ", " ")
    assert told.startswith("docker+routed’s throughput is known to ± ")
    assert "twice the rounds (rounds = 32 under [rotation]) would give about ± " in told
    assert f"more blocks (“virtoll run {wide.directory}/small.toml --blocks " in told
    assert f"(“virtoll run {findings.run.directory} --blocks " in told
    assert "as far as 7 blocks tell" in told


def test_an_interval_that_is_narrow_enough_needs_no_advice(wide: Scattering) -> None:
    wide.window = 0.001
    findings = wide.run("--blocks", "7")
    assert words.widest(findings) is None
    assert words.told(findings) == []


def test_where_a_rule_ended_the_run_nothing_is_said_of_extending_it(wide: Scattering) -> None:
    findings = wide.run("--decide", "1%", "--blocks", "6")
    (told,) = words.told(findings)
    assert "by a fixed number of as many blocks" in told
    assert "Gone on with" not in told
    assert "--decide" not in told


def test_while_blocks_are_still_to_come_nothing_is_advised(wide: Scattering) -> None:
    findings = wide.run("--blocks", "7")
    log = findings.run.directory / "trials.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    assert words.told(find(findings.run.directory)) == []


def test_of_an_arm_without_a_ratio_no_scatter_is_told(wide: Scattering) -> None:
    """That of the blocks without a 0, or in which something was served, is of the better ones."""
    findings = wide.run("--blocks", "7")
    matrix = findings.matrix
    (condition,) = matrix.conditions
    cells = matrix.across(DOCKER, condition)
    cells[0, 0].values["rate_per_s"] = 0.0
    cells[1, 0].drop("cpu_s_per_1000", "nothing was served")
    cells[1, 0].censored.add("cpu_s_per_1000")
    of_zeros, of_failed = (findings.components(name, DOCKER) for name in ("rate_per_s", "cpu_s_per_1000"))
    assert of_zeros == "no ratio: 1 pair holds a 0 or less"
    assert of_failed == "no ratio: in 1 pair it is of a window in which nothing was served"
    assert {toll.verdict.words for toll in findings.answering()} == {of_zeros}
    assert isinstance(findings.components("rate_per_s", AGAIN), Components)


def test_scatter_is_of_the_conditions_that_the_ratio_is_over(wide: Scattering) -> None:
    text = IN_TURN + '\n[factors]\n"load.connections" = [7, 20]\n'
    matrix = wide.run("--blocks", "6", text=text).matrix
    one, both = (known(components_of(matrix, "rate_per_s", DOCKER, among)) for among in (matrix.conditions[:1], None))
    assert one.observation == pytest.approx(np.var(log_ratios(matrix, "rate_per_s")[:, 2, 0], ddof=1))
    assert both.of_windows == pytest.approx(one.of_windows / 2, rel=0.5)


def test_two_blocks_show_what_is_not_known(wide: Scattering) -> None:
    findings = wide.run("--blocks", "2")
    assert words.told(findings) == []
    (table,) = VarianceComponents().tables(findings)
    assert "not known (of 2 blocks:" in table.markdown()


def test_windows_without_any_scatter_are_a_sentence(wide: Scattering) -> None:
    wide.window = wide.deployment = 0.0
    findings = wide.run("--blocks", "3")
    assert entry(findings)["missing"] == ALIKE
    assert words.told(findings) == []


def test_blocks_of_one_window_say_that_nothing_is_known(tmp_path: Path) -> None:
    findings = find(write_run(tmp_path / "r", Recipe(arms=(NATIVE, AGAIN, DOCKER), blocks=3)))
    assert entry(findings)["missing"] == ONE_WINDOW
    assert VarianceComponents().tables(findings) == []
    (told,) = VarianceComponents().method(findings)
    assert told == f"**Where the scatter comes from is not known**: {ONE_WINDOW}."


def test_a_probes_windows_are_no_rounds(wide: Scattering) -> None:
    text = IN_TURN.partition("[service]")[0] + '[[probes]]\nname = "clock"\n[[arms]]' + IN_TURN.partition("[[arms]]")[2]
    findings = wide.run("--blocks", "3", text=text)
    found = components_of(findings.matrix, findings.judged[0].name, DOCKER)
    assert isinstance(found, str) or not found.is_paired


def test_the_pace_is_the_records(wide: Scattering) -> None:
    """Of a block: from its first phase to its last; of its windows: each turn's from its first to its last."""
    run = wide.run("--blocks", "2").run
    second = 10**9
    records = []
    for at, record in enumerate(run.records):
        start = (record.trial.block * 1000 + at % 3) * second
        phases = [Phase(name="deploy", start_ns=start, duration_ns=second)]
        phases += [
            Phase(name="window", start_ns=start + (10 + 3 * r) * second, duration_ns=second // 2) for r in range(6)
        ]
        records.append(
            record.model_copy(
                update={"phases": [*phases, Phase(name="teardown", start_ns=start + 40 * second, duration_ns=0)]}
            )
        )
    pace = pace_of(replace(run, records=tuple(records)))
    assert pace == Pace(block_s=42, windows_s=17.5)
    assert pace_of(replace(run, records=())) is None
