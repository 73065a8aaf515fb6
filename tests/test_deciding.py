"""Runs that end by what they find: from the command line to the report, on fakes; and that they err as they say."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from made_up_studies import METRIC
from on_fakes import STUDY, on_fakes
from synthetic import DOCKER, LXC, PUBLISHED
from virtoll import cli
from virtoll.analysis.estimates import Summary, summarise
from virtoll.analysis.ratios import Row, Toll, judge_family, over_conditions, summary_under
from virtoll.analysis.rules import FIXED, AtAnyTime, Rule, Sequential, TwoStage, rule_of
from virtoll.analysis.stopping import GroupSequential, mixture_half_width, stein_half_width
from virtoll.catalogue import catalogue
from virtoll.errors import PlatformError
from virtoll.fakes import FakeExperiment
from virtoll.platforms.base import platforms
from virtoll.record.model import Plan, PlannedTrial
from virtoll.record.rules import Decide, Precision
from virtoll.record.store import RunDirectory
from virtoll.report.contents import method
from virtoll.report.findings import find
from virtoll.run.progress import LiveProgress
from virtoll.run.rule import MOST_BLOCKS, Asked, in_time_left, with_room
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan
from virtoll.trial.labs import InTurn

pytestmark = pytest.mark.usefixtures("undrawn")

TWENTY = STUDY.replace("blocks = 2", "blocks = 20\nseed = 4")
_OVERHEAD_S = {name: cls.expected_overhead_s for name, cls in platforms().items()}
IN_TURN = TWENTY.replace("seed = 4", 'seed = 4\ndesign = "rotation"')


def virtoll(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert isinstance(end.value.code, int)
    return end.value.code


@dataclass
class Bench:
    """`virtoll run` on a fake lab: docker takes ``toll`` times native's time, with noise of ``spread``."""

    directory: Path
    monkeypatch: pytest.MonkeyPatch
    tolls: dict[str, float] = field(default_factory=lambda: {"native": 1.0, "docker": 1.25})
    spread: float = 0.01
    fail: dict[str, Any] = field(default_factory=dict)
    performed: list[str] = field(default_factory=list)
    before: Callable[[PlannedTrial], None] = lambda _trial: None

    def __post_init__(self) -> None:
        on_fakes(self.monkeypatch, {})

        @contextmanager
        def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
            yield FakeExperiment(
                self.tolls, spread=self.spread, fail=self.fail, performed=self.performed, before=self.before
            )

        self.monkeypatch.setattr(Stage, "lab", lab)

    def stand_in_turn(self) -> None:
        """Arms beside each other, each block in labs of its own, as where they are real."""

        @contextmanager
        def lab(_stage: Stage, _images: object, pending: Sequence[PlannedTrial]) -> Iterator[InTurn]:
            with ExitStack() as labs:
                yield InTurn(lambda _trials: nullcontext(FakeExperiment(self.tolls)), pending, labs)

        self.monkeypatch.setattr(Stage, "lab", lab)

    @property
    def out(self) -> Path:
        return self.directory / "run"

    def run(self, *options: str, text: str = TWENTY) -> int:
        path = self.directory / "small.toml"
        path.write_text(text)
        return virtoll("run", str(path), "--out", str(self.out), *options)

    def go_on(self, *options: str) -> int:
        return virtoll("run", str(self.out), *options)

    @property
    def blocks(self) -> int:
        return max(record.trial.block for record in RunDirectory(self.out).records())

    @property
    def page(self) -> str:
        return (self.out / "report" / "index.html").read_text().replace("\u00a0", " ")


def half_width_of(toll: Toll) -> float:
    """Of its interval, on the logarithmic scale."""
    assert toll.ratio is not None
    assert toll.ratio.low is not None
    assert toll.ratio.high is not None
    return math.log(toll.ratio.high / toll.ratio.low) / 2


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


# -- --decide ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TWENTY, IN_TURN], ids=["blocks", "rotation"])
def test_a_run_ends_at_the_look_that_decides_every_arm(bench: Bench, text: str, capsys: Any) -> None:
    assert bench.run("--decide", "5%", text=text) == 0
    looks = RunDirectory(bench.out).looks()
    assert [look.block for look in looks] == list(range(4, bench.blocks + 1))
    assert bench.blocks < 20
    assert [look.ends for look in looks] == [False] * (len(looks) - 1) + [True]
    assert [(each.arm, each.decided) for each in looks[-1].compared] == [("docker+routed", True)]
    told = capsys.readouterr().out
    assert "it ends when every arm is decided, different or within 5 % (looks after 4 to 20 blocks)" in told
    assert "every arm is decided" in told
    assert f"ended by its rule after {bench.blocks} of at most 20 blocks" in told
    assert "The run is not complete" not in bench.page


def test_the_interval_is_the_repeated_one_of_the_look_it_ended_at(bench: Bench) -> None:
    bench.run("--decide", "5%")
    findings = find(bench.out)
    (toll,) = findings.answering()
    logs = np.log(findings.matrix.values("rate_per_s")[:, :, 0])
    summary = summarise(logs[:, 2] - logs[:, :2].mean(axis=1))
    half = GroupSequential(tuple(range(4, 21))).half_width(summary)
    assert summary.n == bench.blocks
    assert half_width_of(toll) == pytest.approx(half)
    assert half > 1.5 * summary.half_width()
    assert toll.verdict.kind == "costs"
    assert toll.ratio is not None
    assert "repeated interval" in toll.ratio.method
    assert findings.margin == 0.05
    how = " ".join(method(findings))
    assert "group-sequential t test" in how
    assert "Bonferroni" in how
    assert f"it took {len(findings.run.looks)} look" in how
    assert "Holm" not in how


def test_equal_arms_are_decided_too(bench: Bench) -> None:
    bench.tolls["docker"] = 1.0
    assert bench.run("--decide", "5%") == 0
    assert RunDirectory(bench.out).looks()[-1].compared[0].words == "no difference shown (within 5 %)"
    assert bench.blocks < 20


def test_what_is_never_decided_ends_with_the_plan(bench: Bench, capsys: Any) -> None:
    bench.tolls["docker"], bench.spread = 1.05, 0.2
    assert bench.run("--decide", "1%", "--blocks", "6") == 0
    look = RunDirectory(bench.out).looks()[-1]
    assert (look.block, look.ends, look.compared[0].decided) == (6, True, False)
    assert look.why == "all 6 blocks are there; undecided: docker+routed"
    assert "and this run has at most 6: begin a new one with --blocks" in capsys.readouterr().out


def test_a_budget_says_how_many_blocks_there_may_be(bench: Bench) -> None:
    bench.run("--decide", "5%", "--budget", "60m", text=TWENTY.replace("blocks = 20", "blocks = 2"))
    rule = RunDirectory(bench.out).plan.rule
    assert isinstance(rule, Decide)
    assert 20 < rule.looks[-1] <= 100


def test_a_budget_is_filled_and_blocks_that_were_asked_for_bound_it() -> None:
    study = read_study(TWENTY, "twenty.toml", catalogue())
    assert with_room(study, Asked(budget_s=60)).blocks == MOST_BLOCKS
    assert with_room(study, Asked(budget_s=60, blocks=20)).blocks == 20
    assert with_room(study, Asked()).blocks == 20


@pytest.mark.parametrize("text", [TWENTY, IN_TURN], ids=["blocks", "rotation"])
def test_what_is_left_of_a_budget_is_measured_too(bench: Bench, text: str, capsys: Any) -> None:
    """Estimates are generous: of half an hour eight minutes were left, and intervals as much wider. That time alone has
    a say in it, so that they are those of a fixed number.
    """
    if text == IN_TURN:
        bench.stand_in_turn()
    study = read_study(text, "text.toml", catalogue())
    planned = make_plan(replace(study, blocks=2), [entry.arm for entry in study.arms], _OVERHEAD_S)
    budget = f"{3.5 * planned.estimate_s / 2:.0f}s"
    assert bench.run("--budget", budget, "--blocks", "30", text=text) == 0  # fakes take no time
    directory = RunDirectory(bench.out)
    assert directory._read(Plan, "plan.json").blocks < 5
    plan = directory.plan
    added = [each.blocks for each in directory._extensions()]
    assert plan.blocks == bench.blocks == added[-1] > 5
    assert all(each.by_time for each in directory._extensions())
    assert (plan.extended, rule_of(plan)) == ((), FIXED)
    assert {record.sitting for record in directory.records()} == {1}
    assert {record.status for record in directory.records()} == {"valid"}
    assert "The run is not complete" not in bench.page
    assert "The number of blocks is what the budget had time for" in bench.page
    assert "time budget" not in capsys.readouterr().out
    assert bench.go_on("--budget", "60m") == 0
    assert bench.blocks == plan.blocks, "who has seen the results does not have more by time alone"


@pytest.mark.parametrize(("left_s", "blocks"), [(3.1, None), (3.2, 5), (6.4, 5), (12.7, 6), (3000.0, 20)])
def test_so_many_blocks_fit_into_the_time_that_is_left(left_s: float, blocks: int | None) -> None:
    """Half of them, so that none is cut short; then half of what is left."""
    study = read_study(TWENTY, "twenty.toml", catalogue())
    plan = make_plan(replace(study, blocks=4), [entry.arm for entry in study.arms], _OVERHEAD_S)
    more = in_time_left(plan, study, left_s, 1.0)
    assert (None if more is None else more.blocks) == blocks
    ruled = plan.model_copy(update={"rule": Precision(half_width=0.02, pilot=8, most=20)})
    assert in_time_left(ruled, study, left_s, 1.0) is None


def test_a_killed_run_goes_on_by_the_same_rule_and_takes_no_look_twice(bench: Bench, capsys: Any) -> None:
    bench.tolls["docker"], bench.spread = 1.05, 0.06
    whole = Bench(bench.directory / "whole", bench.monkeypatch, bench.tolls, bench.spread)
    whole.directory.mkdir()
    whole.run("--decide", "5%")
    bench.__post_init__()
    bench.fail["b06-t0017"] = KeyboardInterrupt()
    assert bench.run("--decide", "5%") == 130
    before = [look.block for look in RunDirectory(bench.out).looks()]
    assert before == [4, 5]
    bench.fail.clear()
    assert bench.go_on() == 0
    looks = RunDirectory(bench.out).looks()
    assert [look.block for look in looks] == list(range(4, bench.blocks + 1))
    assert looks[-1].ends
    assert bench.blocks == whole.blocks or "b06-t0017r" in bench.performed
    done = len(bench.performed)
    assert bench.go_on() == 0, "it has ended"
    assert len(bench.performed) == done
    capsys.readouterr()
    assert bench.go_on("--dry-run") == 0
    assert capsys.readouterr().out.startswith("0 trials are left")


def planned_of(out: str) -> dict[str, Any]:
    """The event that tells the plan, of all that were told."""
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (planned,) = (event for event in events if event["event"] == "planned")
    return dict(planned)


def test_a_program_is_told_of_an_extension_with_what_it_adds_to(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run(text=TWENTY.replace("blocks = 20", "blocks = 2")) == 0
    before = RunDirectory(bench.out).plan
    capsys.readouterr()
    assert bench.go_on("--blocks", "5", "--dry-run", "--json") == 0
    planned = planned_of(capsys.readouterr().out)
    assert (planned["trials"], planned["blocks"], planned["sealed"]) == (3 * 5, 5, 3 * 2)
    assert planned["estimate_s"] == pytest.approx(before.estimate_s * 5 / 2)
    assert bench.go_on("--blocks", "5", "--json") == 0
    assert planned_of(capsys.readouterr().out) == planned


def test_blocks_that_a_rule_left_out_are_not_told_as_sealed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("--decide", "5%") == 0
    assert bench.blocks < 20
    capsys.readouterr()
    for options in (("--dry-run", "--json"), ("--json",)):
        assert bench.go_on(*options) == 0
        assert planned_of(capsys.readouterr().out)["sealed"] == 3 * bench.blocks


def test_a_trial_that_comes_again_is_not_told_as_sealed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.fail["b02-t0005"] = KeyboardInterrupt()
    assert bench.run(text=TWENTY.replace("blocks = 20", "blocks = 2")) == 130
    assert len(RunDirectory(bench.out).records()) == 5
    bench.fail.clear()
    capsys.readouterr()
    for options in (("--dry-run", "--json"), ("--json",)):
        assert bench.go_on(*options) == 0
        planned = planned_of(capsys.readouterr().out)
        assert (planned["trials"], planned["sealed"]) == (6, 4)


def test_a_look_that_a_kill_left_out_is_taken_when_it_goes_on(bench: Bench) -> None:
    bench.run("--decide", "5%")
    done, blocks = len(bench.performed), bench.blocks
    log = bench.out / "looks.jsonl"
    whole = log.read_text()
    log.write_text(whole[: len(whole) // 2].rpartition("\n")[0] + whole[:10])  # torn in the middle of a line
    assert bench.go_on() == 0
    assert len(bench.performed) == done
    assert RunDirectory(bench.out).looks()[-1].block == blocks


def test_an_arm_that_never_works_holds_up_no_one(bench: Bench) -> None:
    text = TWENTY + '[[arms]]\nplatform = "lxc"\n'
    bench.tolls["lxc"] = 1.0

    def broken(trial: PlannedTrial) -> None:
        if trial.arm.platform == "lxc":
            raise PlatformError("it never boots")

    bench.before = broken
    assert bench.run("--decide", "5%", text=text) == 1
    look = RunDirectory(bench.out).looks()[-1]
    assert look.ends
    assert "lxc+routed cannot be compared, and is not waited for" in look.why
    assert bench.blocks < 20


def test_without_any_spread_nothing_is_decided(bench: Bench, capsys: Any) -> None:
    bench.spread = 0.0
    assert bench.run("--decide", "5%", "--blocks", "5") == 0
    look = RunDirectory(bench.out).looks()[-1]
    assert look.compared[0].half_width is None
    assert "its 5 blocks are all alike" in look.compared[0].words
    assert "cannot tell yet" in capsys.readouterr().out


def test_a_budget_that_is_over_before_the_first_look_says_so(bench: Bench, capsys: Any) -> None:
    bench.run("--decide", "5%", "--blocks", "4")
    directory = RunDirectory(bench.out)
    lines = (bench.out / "trials.jsonl").read_text().splitlines(keepends=True)
    (bench.out / "trials.jsonl").write_text("".join(lines[:6]))
    (bench.out / "looks.jsonl").write_text("")
    for trial in directory.plan.trials[6:]:
        for path in sorted((bench.out / "trials" / trial.id).iterdir()):
            path.unlink()
        (bench.out / "trials" / trial.id).rmdir()
    capsys.readouterr()
    assert bench.go_on("--budget", "1ns") == 1
    told = capsys.readouterr().out
    assert bench.blocks == 2, "by the pace of those that it has, none could end in time"
    assert "ended it before its first look, which is after 4 blocks" in told
    assert "Not looked at yet" in told


PROBED = """
name = "probed"
blocks = 12
seed = 3
[[probes]]
name = "clock"
[[probes]]
name = "unix-pipe"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""


def test_a_programme_ends_when_every_probe_is_decided(bench: Bench) -> None:
    bench.tolls |= {"docker": 1.0, "docker/clock": 1.2}
    bench.spread = 0.005
    assert bench.run("--decide", "5%", text=PROBED) == 0
    look = RunDirectory(bench.out).looks()[-1]
    assert {each.metric.partition(".")[0] for each in look.compared} == {"clock", "unix-pipe"}
    assert all(each.decided for each in look.compared)
    assert look.ends
    assert bench.blocks < 12
    assert "every arm is decided" in bench.page


# -- --precision ------------------------------------------------------------------------------------------


def test_the_number_of_blocks_is_computed_once_after_the_pilot(bench: Bench, capsys: Any) -> None:
    bench.spread = 0.05
    assert bench.run("--precision", "2%") == 0
    first, last = RunDirectory(bench.out).looks()
    assert (first.block, first.ends) == (8, False)
    assert (last.block, last.ends) == (first.blocks, True)
    assert bench.blocks == first.blocks
    assert f"± 2 % needs {first.blocks} blocks, by docker+routed, which scatters most" in capsys.readouterr().out
    findings = find(bench.out)
    (toll,) = findings.answering()
    logs = np.log(findings.matrix.values("rate_per_s")[:, :, 0])
    half = stein_half_width(summarise(logs[:8, 2] - logs[:8, :2].mean(axis=1)), first.blocks)
    assert half_width_of(toll) == pytest.approx(half)
    assert half <= math.log(1.02)
    assert toll.ratio is not None
    assert toll.ratio.n == first.blocks
    assert "Stein" in " ".join(method(findings))


def test_a_run_that_is_killed_in_its_second_stage_keeps_its_number(bench: Bench, capsys: Any) -> None:
    bench.spread = 0.05
    bench.fail["b10-t0029"] = KeyboardInterrupt()
    assert bench.run("--precision", "2%") == 130
    (first,) = RunDirectory(bench.out).looks()
    assert find(bench.out).run.plan.blocks == first.blocks
    bench.fail.clear()
    bench.spread = 0.2  # however it scatters from now on
    assert bench.go_on() == 0
    assert bench.blocks == first.blocks
    assert [look.block for look in RunDirectory(bench.out).looks()] == [8, first.blocks]


def test_more_blocks_than_there_may_be_are_told_with_what_to_expect(bench: Bench) -> None:
    bench.spread = 0.1
    assert bench.run("--precision", "2%", "--blocks", "10") == 0
    first = RunDirectory(bench.out).looks()[0]
    assert first.blocks == bench.blocks == 10
    assert "and there are at most 10: these will give about ±" in first.why
    assert "begin a new run with --blocks" in first.why


def test_a_pilot_without_spread_ends_with_what_is_missing(bench: Bench) -> None:
    bench.spread = 0.0
    bench.run("--precision", "2%")
    (look,) = RunDirectory(bench.out).looks()
    assert look.ends
    assert "no arm with a spread" in look.why
    assert bench.blocks == 8


# -- extended without a plan ------------------------------------------------------------------------------


def test_a_run_that_is_extended_has_always_valid_intervals(bench: Bench, capsys: Any) -> None:
    assert bench.run("--blocks", "5") == 0
    assert rule_of(RunDirectory(bench.out).plan) is FIXED
    assert bench.go_on("--blocks", "9") == 0
    plan = RunDirectory(bench.out).plan
    assert (plan.blocks, plan.extended, bench.blocks) == (9, (5,), 9)
    assert len({trial.id for trial in plan.trials}) == 9 * 3
    findings = find(bench.out)
    (toll,) = findings.answering()
    logs = np.log(findings.matrix.values("rate_per_s")[:, :, 0])
    summary = summarise(logs[:, 2] - logs[:, :2].mean(axis=1))
    assert half_width_of(toll) == pytest.approx(mixture_half_width(summary))
    assert "Extended without a plan from 5 to 9 blocks" in capsys.readouterr().out
    assert "always-valid intervals" in bench.page
    alone = "What the report of the first 5 blocks called different is not in these 5: it went by plain intervals"
    assert alone in " ".join(method(findings))


# -- refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--decide", "5"], "'5' is not per cent: write a number and %, as in 5%"),
        (["--decide", "0.05"], "is not per cent"),
        (["--precision", "two%"], "is not per cent"),
        (["--decide", "0%"], "is not from 0.1 to 50 %"),
        (["--precision", "80%"], "is not from 0.1 to 50 %"),
        (["--decide", "5%", "--precision", "2%"], "not both"),
        (["--decide", "5%", "--blocks", "3"], "the first look is after 4 blocks, and there are at most 3"),
        (["--decide", "5%", "--blocks", "1001"], "1,000 times at most, and there may be 1,001 blocks"),
        (["--precision", "2%", "--blocks", "8"], "the pilot alone is 8 blocks, and there are at most 8"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(bench: Bench, capsys: Any, options: list[str], told: str) -> None:
    assert bench.run(*options) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not bench.out.exists()


def test_beside_neighbours_no_rule_is_taken(bench: Bench, capsys: Any) -> None:
    assert virtoll("run", "isolation", "--quick", "--decide", "5%", "--out", str(bench.out)) == 2
    assert "asks what neighbours do to an arm" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--decide", "4%"], ["--precision", "2%"], ["--blocks", "30"], ["--blocks", "3"]], ids=" ".join
)
def test_a_runs_rule_is_not_changed(bench: Bench, capsys: Any, options: list[str]) -> None:
    bench.run("--decide", "5%")
    assert bench.go_on(*options) == 2
    assert "was fixed before its first trial" in capsys.readouterr().err
    assert bench.go_on("--decide", "5%") == 0, "its own is no change"


def test_the_rule_is_in_the_plan_and_in_the_command(bench: Bench, capsys: Any) -> None:
    bench.run("--decide", "2.5 %", "--blocks", "6")
    plan = json.loads((bench.out / "plan.json").read_text())
    assert plan["rule"] == {"kind": "group-sequential", "margin": 0.025, "looks": [4, 5, 6], "spending": "pocock"}
    study = json.loads((bench.out / "study.json").read_text())
    assert study["margin"] == 0.025
    assert study["command"].endswith("--decide 2.5%")
    capsys.readouterr()
    assert virtoll("run", str(bench.directory / "small.toml"), "--precision", "2%", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "at most 300 trials in 100 blocks" in told
    assert "the number of blocks is told after a pilot of 8 (at most 100)" in told


def test_looks_are_told_to_programs(bench: Bench, capsys: Any) -> None:
    bench.run("--decide", "5%", "--json")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    looks = [event["look"] for event in events if event["event"] == "look"]
    assert looks[-1]["ends"] is True
    assert {each["arm"] for each in looks[-1]["compared"]} == {"docker+routed"}


# -- while it runs ----------------------------------------------------------------------------------------


def shown(live: LiveProgress) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(live._render())
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_running_table_shows_widths_what_is_decided_and_when_the_rest_will_be(bench: Bench) -> None:
    bench.spread = 0.05
    bench.tolls["docker"] = 1.05
    bench.run("--decide", "5%")
    directory = RunDirectory(bench.out)
    plan, records, looks = directory.plan, directory.records(), directory.looks()
    live = LiveProgress(Console(file=io.StringIO(), width=160))
    live.planned(plan, records[:9])
    assert "it ends when every arm is decided" in shown(live)
    assert "9/60 trials, at most" in shown(live)
    docker = next(row for row in live._rows if row.arm.platform == "docker")
    assert docker.half_width is None, "no look yet, and so no interval"
    widths: list[float] = []
    for look in looks:
        for record in records[3 * (look.block - 1) : 3 * look.block]:
            live.trial_sealed(record)
        live.looked(look)
        docker = next(row for row in live._rows if row.arm.platform == "docker")
        assert docker.half_width is not None
        assert docker.half_width == pytest.approx(math.expm1(look.compared[0].half_width or 0))
        widths.append(docker.half_width)
        assert look.compared[0].words in shown(live)
        assert f"look after {look.block} blocks: {look.why}" in shown(live)
        assert f"{3 * look.block}/{3 * look.blocks} trials" in shown(live)
    assert widths[-1] < widths[0]
    assert "nothing left" in shown(live)


def test_lines_tell_each_look_and_the_expected_end(bench: Bench, capsys: Any) -> None:
    bench.spread = 0.05
    bench.run("--precision", "2%")
    told = capsys.readouterr().out
    blocks = RunDirectory(bench.out).looks()[0].blocks
    assert "at most 300 trials in 100 blocks, seed 4; at most" in told
    assert f"about {blocks} blocks in all, " in told
    assert f"[{3 * blocks}/{3 * blocks}]" in told
    assert "(nothing left)" in told


# -- that they err as they say ----------------------------------------------------------------------------

ARMS = (DOCKER, LXC, PUBLISHED)
MOST, STUDIES = 12, 400


def _alarms(rule: Rule, blocks: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
    """In how many studies of equal arms one was called different at any of the looks, and by plain intervals."""
    alarms = plain = 0
    for _ in range(STUDIES):
        native = rng.normal(0, 0.02, MOST)
        logs = [rng.normal(0, 0.02, MOST) - native for _ in ARMS]  # they share native: not independent
        alarm, by_plain = False, False
        for n in blocks:
            rows = [
                Row(arm, None, over_conditions(one[:n, None]), None, 1) for arm, one in zip(ARMS, logs, strict=True)
            ]
            alarm |= any(toll.verdict.kind in ("costs", "gains") for toll in judge_family(METRIC, rows, 1e-9, "", rule))
            by_plain |= any(toll.verdict.kind in ("costs", "gains") for toll in judge_family(METRIC, rows, 1e-9, ""))
        alarms, plain = alarms + alarm, plain + by_plain
    return alarms, plain


@pytest.mark.parametrize("rule", [Sequential(Decide(margin=0.05, looks=tuple(range(4, MOST + 1)))), AtAnyTime()])
def test_over_all_looks_at_most_one_table_in_twenty_errs(rule: Rule) -> None:
    alarms, plain = _alarms(rule, range(4, MOST + 1), np.random.default_rng(7))
    most = STUDIES * 0.05 + 3 * math.sqrt(STUDIES * 0.05 * 0.95)
    assert alarms <= most
    assert plain > most, "else the test could not tell"


def test_steins_intervals_cover_with_the_number_of_blocks_taken_from_several_arms() -> None:
    rule, rng = TwoStage(Precision(half_width=0.02, pilot=8, most=400)), np.random.default_rng(8)
    target, covered = math.log(1.02), 0
    for _ in range(STUDIES):
        native = rng.normal(0, 0.03, 400)
        logs = [rng.normal(0, spread, 400) - native for spread in (0.02, 0.03, 0.04)]
        n = max(rule.needed(summarise(one[:8])) for one in logs)
        summaries = [summary_under(rule, one[:n, None]) for one in logs]
        assert all(s is not None and rule.half_width(s) <= target * (1 + 1e-9) for s in summaries)
        covered += sum(s is not None and abs(s.mean) <= rule.half_width(s) for s in summaries)
    share = covered / STUDIES / 3
    assert abs(share - 0.95) < 3 * math.sqrt(0.95 * 0.05 / STUDIES)


def test_no_rule_gives_a_number_without_support() -> None:
    decide, two = (
        Sequential(Decide(margin=0.05, looks=(4, 5, 6))),
        TwoStage(Precision(half_width=0.02, pilot=8, most=9)),
    )
    lacking = [
        (decide, Summary(0.1, 0.01, 3), "the first look is after 4 blocks, and it has 3"),
        (decide, Summary(0.1, math.nan, 1), "one block has no spread"),
        (decide, Summary(0.1, 0.0, 5), "all alike"),
        (AtAnyTime(), Summary(0.1, 0.01, 3), "an always-valid interval needs at least"),
        (two, Summary(0.1, math.nan, 9), "no spread is known"),
        (two, Summary(0.1, 0.0, 9), "all alike"),
    ]
    for rule, summary, told in lacking:
        assert told in rule.lacks(summary)
        interval = rule.interval(summary, "t interval")
        assert (interval.low, interval.high) == (None, None)
        (toll,) = judge_family(METRIC, [Row(DOCKER, None, summary, None, 1)], 0.03, "", rule)
        assert toll.verdict.kind == "unsure"
        assert told in toll.verdict.words
