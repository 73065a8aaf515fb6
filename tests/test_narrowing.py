"""What would narrow an interval is advice that comes true: of the time that it takes, and the words that do it."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_studies import studies as made_up
from on_fakes import on_fakes
from synthetic import DOCKER
from test_calibration import run as calibrated
from test_deciding import IN_TURN, virtoll
from virtoll.analysis.narrowing import pace_of
from virtoll.errors import PlatformError
from virtoll.fakes import FakeExperiment
from virtoll.record.model import Phase, PlannedTrial, TrialRecord
from virtoll.report import narrowing as words
from virtoll.report.findings import Findings, find
from virtoll.report.narrowing import _half
from virtoll.run.stage import Stage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import simulate

pytestmark = pytest.mark.usefixtures("undrawn")

SECOND = 10**9
PROBED = IN_TURN.partition("[service]")[0] + '[[probes]]\nname = "clock"\n[[arms]]' + IN_TURN.partition("[[arms]]")[2]

SERVERS = "".join(
    f'[servers.{name}.service]\nname = "{service}"\n[servers.{name}.load]\nname = "http"\n'
    for name, service in {"first": "nginx", "second": "apache", "third": "nginx"}.items()
)
OF_THREE = IN_TURN.partition("[service]")[0] + SERVERS + "[[arms]]" + IN_TURN.partition("[[arms]]")[2]


@dataclass
class Bench:
    """`virtoll run` on fakes whose windows scatter by 15 %; ``lost``: the blocks in which docker fails,
    ``killed``: the one that is interrupted.
    """

    directory: Path
    lost: set[int] = field(default_factory=set)
    killed: int | None = None

    def run(self, *options: str, text: str = IN_TURN) -> Findings:
        path = self.directory / "small.toml"
        path.write_text(text)
        virtoll("run", str(path), "--out", str(self.directory / "run"), *options)
        return find(self.directory / "run")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = Bench(tmp_path)
    on_fakes(monkeypatch, {})

    def drift(now_s: float) -> float:
        return math.exp(float(np.random.default_rng(round(now_s * 1000)).normal(0, 0.15)))

    def before(trial: PlannedTrial) -> None:
        if trial.block in found.lost and trial.arm.platform == "docker":
            raise PlatformError("it does not come up")
        if trial.block == found.killed:
            raise KeyboardInterrupt

    @contextmanager
    def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        tolls = {"native": 1.0, "docker": 1.02}
        yield FakeExperiment(tolls, rounds=6, drift=drift, native_latency_ns=1000, before=before)

    monkeypatch.setattr(Stage, "lab", lab)
    return found


def timed(record: TrialRecord, at_s: int) -> TrialRecord:
    """With phases as a trial in rotation has them: ten seconds to deploy, then 20 of windows."""
    start = (record.trial.block * 1000 + at_s) * SECOND
    phases = [Phase(name="deploy", start_ns=start, duration_ns=10 * SECOND)]
    phases += [Phase(name="window", start_ns=start + at * SECOND, duration_ns=SECOND) for at in (10, 29)]
    return record.model_copy(update={"phases": phases})


def test_a_blocks_time_holds_the_programme_that_explains_its_service(bench: Bench) -> None:
    """A block more deploys it once more: 30 s of the service, and 100 s later as much of the probes."""
    findings = bench.run("--explain", "--blocks", "3")
    assert findings.explanation is not None
    mine = replace(findings.run, records=tuple(timed(record, 0) for record in findings.run.records))
    probes = tuple(timed(record, 100) for record in findings.explanation.run.records)
    pace = pace_of(mine, beside=probes)
    assert pace is not None
    assert (pace.block_s, pace.windows_s) == (130, 20)


def of_three(bench: Bench) -> Findings:
    """Three servers, 100 s after each other, in eight blocks of 230 s."""
    at_s = {"first": 0, "second": 100, "third": 200}
    records = bench.run("--blocks", "8", text=OF_THREE).run.records
    write(bench, [timed(record, at_s[record.trial.condition["server"]]) for record in records])
    return find(bench.directory / "run")


def write(bench: Bench, records: Sequence[TrialRecord]) -> None:
    (bench.directory / "run" / "trials.jsonl").write_text("".join(f"{r.model_dump_json()}\n" for r in records))


def test_twice_the_rounds_and_a_block_more_are_of_all_servers(bench: Bench) -> None:
    """They were of one server, in a third of the time that they take."""
    for server in of_three(bench).servers.values():
        toll = words.widest(server)
        assert toll is not None
        found = words.of_toll(server, toll)
        assert found is not None
        assert (found.windows_s, found.more, found.blocks_s) == (8 * 60, 2, 2 * 230)
        assert "--blocks 10”" in words.told(server)[0]


def test_who_is_searched_for_its_knee_takes_its_time_in_a_block_and_has_no_rounds(bench: Bench) -> None:
    findings = of_three(bench)
    study = findings.run.study
    third = study["servers"]["third"]
    searched = {**third, "base": {**third["base"], "knee.objective": ["failed < 1 %"]}}
    all_of_them = replace(findings.run, study={**study, "servers": {**study["servers"], "third": searched}})
    server = replace(findings.servers["first"], among=all_of_them)
    toll = words.widest(server)
    assert toll is not None
    found = words.of_toll(server, toll)
    assert found is not None
    assert (found.windows_s, found.blocks_s) == (8 * 40, 230)


def test_a_run_in_which_another_server_is_still_to_come_is_going_on(bench: Bench) -> None:
    findings = of_three(bench)
    assert words.told(findings.servers["first"])
    last = {("third", 8)}
    write(bench, [r for r in findings.run.records if (r.trial.condition["server"], r.trial.block) not in last])
    assert words.told(find(bench.directory / "run").servers["first"]) == []


def test_blocks_that_an_arm_lost_are_made_and_paid_for_too(bench: Bench) -> None:
    bench.lost = {2, 5}
    findings = bench.run("--blocks", "9")
    toll = words.widest(findings)
    assert toll is not None
    assert toll.ratio is not None
    assert toll.ratio.n == 7
    found, pace = words.of_toll(findings, toll), pace_of(findings.run)
    assert found is not None
    assert pace is not None
    assert found.windows_s == pytest.approx(9 * pace.windows_s)
    (told,) = words.told(findings)
    assert f"{found.more} more block" in told
    assert f"--blocks {9 + found.more}”" in told


def test_a_run_whose_last_block_was_interrupted_is_going_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its turn is sealed, and comes again: what would narrow it is told of what is there then."""
    whole = words.told(bench.run("--blocks", "9"))
    assert whole
    shutil.rmtree(bench.directory / "run")
    bench.killed = 9
    assert words.told(bench.run("--blocks", "9")) == []
    bench.killed = None
    virtoll("run", str(bench.directory / "run"))
    findings = find(bench.directory / "run")
    assert {record.trial.id[-1] for record in findings.run.records if record.trial.block == 9} > {"r"}
    assert words.told(findings) != []


def test_a_calibration_is_no_study_to_run_anew(bench: Bench) -> None:
    noisy = calibrated(bench.directory / "noisy", quick=True, spread=0.2)
    assert words.widest(noisy) is not None
    assert words.told(noisy) == []


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ((), "under the probe “clock”"),
        (("--quick",), "under the probe “clock”, of [[quick.probes]] where there are any"),
    ],
)
def test_a_probes_windows_are_set_where_the_run_has_them_from(bench: Bench, options: Sequence[str], where: str) -> None:
    quick = '[quick]\nblocks = 4\n[[quick.probes]]\nname = "clock"\nwindows = 5\n'
    findings = bench.run("--blocks", "4", *options, text=PROBED + quick)
    (toll,) = (toll for toll in findings.answering() if toll.metric.probe == "clock" and toll.arm == DOCKER)
    assert where in words._of_windows(findings, toll)[1]


def test_what_is_ready_made_is_copied_before_it_is_changed(bench: Bench) -> None:
    findings = bench.run("--blocks", "7")
    (mine,) = words.told(findings)
    assert "copy" not in mine
    run = replace(findings.run, study={**findings.run.study, "command": "web --quick"})
    (told,) = words.told(replace(findings, run=run))
    assert "(rounds = 32 under [quick.rotation] in a copy of virtoll/studies/web.toml)" in told


def test_what_is_foretold_is_of_as_many_arms_as_it_takes_the_time_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of two arms follow each other faster than those of seven, and resemble each other more."""
    made: list[int] = []

    def studies(machine: Any, design: Any, truth: Any, count: int, rng: np.random.Generator) -> Any:
        made.append(len(truth))
        return made_up(machine, design, truth, count, rng)

    monkeypatch.setattr(simulate, "studies", studies)
    found = simulate.foretold("autocorrelated rounds", 60, 1, 10.0)
    assert set(made) == {len(simulate.EQUAL)}
    assert found["share"] == pytest.approx(0.3, abs=0.1)


def test_a_wide_interval_is_told_without_an_exponent() -> None:
    assert [_half(math.log(1 + half)) for half in (0.021, 0.16, 1.6)] == ["± 2.1 %", "± 16 %", "± 160 %"]
