"""Runs that end by what they find where trials are lost: what is counted, waited for, promised and advised."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from synthetic import AGAIN, LXC, NATIVE, Recipe, write_run
from test_deciding import PROBED, TWENTY, Bench, half_width_of
from virtoll.errors import PlatformError
from virtoll.record.model import PlannedTrial
from virtoll.record.rules import Compared, Look, Precision
from virtoll.record.store import RunDirectory
from virtoll.report import ending
from virtoll.report.contents import method
from virtoll.report.findings import find
from virtoll.report.running import RunningTable
from virtoll.run.deciding import _narrowed, _piloted

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_programmes_answer_does_not_promise_for_the_run_what_holds_for_a_row(bench: Bench) -> None:
    bench.spread = 0.005
    bench.run("--decide", "5%", text=PROBED)
    (told,) = ending.told(find(bench.out))
    assert "in each of its 2 quantities, at most 5 of 100 such runs would call any arm different" in told
    assert "That holds for each quantity by itself" in " ".join(method(find(bench.out)))


def test_steins_interval_is_as_narrow_as_was_told_where_the_pilot_lost_pairs(bench: Bench) -> None:
    bench.spread = 0.05

    def flaky(trial: PlannedTrial) -> None:
        if trial.arm.platform == "docker" and trial.block in (1, 2, 3):
            raise PlatformError("it did not boot this time")

    bench.before = flaky
    bench.run("--precision", "2%")
    first, last = RunDirectory(bench.out).looks()
    assert "± 2 % needs" in first.why
    assert "by docker+routed, of which 3 of the pilot's 8 blocks hold nothing" in first.why
    assert last.ends
    (toll,) = find(bench.out).answering()
    assert half_width_of(toll) <= math.log(1.02) * (1 + 1e-9), (first.why, half_width_of(toll), toll.ratio)


@pytest.mark.parametrize("killed_in", ["b10-t0029", "b13-t0038", None])
def test_a_look_that_a_kill_took_away_is_the_pilots_however_late_it_is_taken(
    bench: Bench, killed_in: str | None
) -> None:
    """The blocks after the pilot scatter much more: with them in its spread there would be many more blocks."""
    bench.spread = 0.05
    whole = Bench(bench.directory / "whole", bench.monkeypatch, spread=bench.spread)
    whole.directory.mkdir()
    whole.run("--precision", "2%")
    first, _ = RunDirectory(whole.out).looks()
    assert first.blocks > 13
    bench.__post_init__()

    def scatters(trial: PlannedTrial) -> None:
        bench.tolls["docker"] = 1.25 if trial.block <= 8 else 1.25 + 0.5 * (trial.block % 2)

    bench.before = scatters
    if killed_in is not None:
        bench.fail[killed_in] = KeyboardInterrupt()
    bench.run("--precision", "2%")
    (bench.out / "looks.jsonl").write_text("")
    bench.fail.clear()
    assert bench.go_on() == 0
    looks = RunDirectory(bench.out).looks()
    assert [look.block for look in looks] == [8, first.blocks]
    assert looks[0].why == first.why
    assert (looks[0].compared, looks[0].ends) == (first.compared, False)
    assert bench.blocks == first.blocks


def test_blocks_beyond_a_pilot_without_a_spread_stay_in_the_run(bench: Bench) -> None:
    """Its look was lost, and the run went on: it ends, with what there is."""
    bench.spread = 0.02
    bench.fail["b10-t0029"] = KeyboardInterrupt()
    bench.run("--precision", "2%")
    (bench.out / "looks.jsonl").write_text("")
    log = bench.out / "trials.jsonl"
    kept = [line for line in log.read_text().splitlines(keepends=True) if '"platform":"docker"' not in line]
    log.write_text("".join(kept))
    for path in sorted((bench.out / "trials").iterdir()):
        if f'"id":"{path.name}"' not in "".join(kept):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    bench.tolls["docker"] = -1.0
    bench.fail.clear()
    bench.before = _no_docker
    bench.go_on()
    looks = RunDirectory(bench.out).looks()
    assert looks[0].ends
    assert "no arm with a spread" in looks[0].why
    assert find(bench.out).run.plan.blocks == bench.blocks


def _no_docker(trial: PlannedTrial) -> None:
    if trial.arm.platform == "docker":
        raise PlatformError("it did not boot")


def test_a_run_in_its_second_stage_is_not_told_to_begin_anew(bench: Bench) -> None:
    bench.spread, bench.tolls["docker"] = 0.05, 1.035
    bench.fail["b10-t0029"] = KeyboardInterrupt()
    bench.run("--precision", "2%")
    (look,) = RunDirectory(bench.out).looks()
    assert not look.ends
    assert not look.compared[0].decided
    assert look.compared[0].words.endswith("% in the pilot")
    (toll,) = find(bench.out).answering()
    assert toll.verdict.kind != "unsure" or toll.verdict.words.endswith(f"until all {look.blocks} blocks are there")


@pytest.mark.parametrize(
    ("killed_in", "computed", "not_there"),
    [
        ("b03-t0008", "will be computed once", "Still in its pilot"),
        ("b10-t0029", "was computed once", "They are not all there"),
    ],
)
def test_who_stops_a_run_before_its_number_of_blocks_is_not_promised_their_intervals(
    bench: Bench, killed_in: str, computed: str, not_there: str
) -> None:
    """It was told to be as good as one of a fixed number, and in its pilot that a number had been computed."""
    bench.spread, bench.fail[killed_in] = 0.05, KeyboardInterrupt()
    bench.run("--precision", "2%")
    (told,), promised = ending.told(find(bench.out)), ending.promise(find(bench.out))
    assert not_there in told
    assert "if what it showed had a say in where it stopped, its intervals are too narrow." in told
    assert computed in promised
    assert "where somebody stopped who liked what he saw, they are too narrow." in promised
    bench.fail.clear()
    bench.go_on()
    (told,), promised = ending.told(find(bench.out)), ending.promise(find(bench.out))
    assert told.endswith("so the intervals are as good as with a fixed number.")
    assert "too narrow" not in told + promised


def test_a_width_that_was_missed_is_told_by_the_report(bench: Bench) -> None:
    """Pairs were lost after the pilot; it was told while the run went on, and never again."""
    bench.spread = 0.05

    def flaky(trial: PlannedTrial) -> None:
        if trial.arm.platform == "docker" and trial.block > 8 and trial.block % 2:
            raise PlatformError("it did not boot this time")

    bench.before = flaky
    bench.run("--precision", "2%")
    _, last = RunDirectory(bench.out).looks()
    widest = last.why.partition("; the widest interval is ")[2]
    assert widest.endswith(" %, of docker+routed")
    (told,) = ending.told(find(bench.out))
    assert f" But the widest interval is {widest}. What the arms cost" in told


def test_an_arm_that_lacks_one_probe_is_not_said_to_be_beyond_comparison(bench: Bench) -> None:
    bench.spread = 0.005

    def broken(trial: PlannedTrial) -> None:
        if trial.arm.platform == "docker" and trial.condition["probe"] == "clock":
            raise PlatformError("no clock")

    bench.before = broken
    bench.run("--decide", "5%", text=PROBED)
    look = RunDirectory(bench.out).looks()[-1]
    assert look.ends
    assert "(docker+routed cannot be compared, and is not waited for)" not in look.why
    assert "(docker+routed in " in look.why


def test_the_running_tables_pilot_is_the_reports(bench: Bench) -> None:
    bench.spread = 0.02

    def flaky(trial: PlannedTrial) -> None:
        if trial.arm.role == "baseline" and trial.block == 3:
            raise PlatformError("it did not start this time")

    bench.before = flaky
    bench.run("--precision", "2%", text=TWENTY)
    directory, findings = RunDirectory(bench.out), find(bench.out)
    (toll,) = findings.answering()
    table = RunningTable(directory.records(), findings.rule)
    docker = next(row for row in table.rows() if row.arm.platform == "docker")
    assert docker.half_width == pytest.approx(math.expm1(half_width_of(toll)))


def test_an_arm_that_the_pilot_lacks_is_named_by_its_look(bench: Bench) -> None:
    bench.spread, bench.tolls["lxc"] = 0.02, 1.0

    def late(trial: PlannedTrial) -> None:
        if trial.arm.platform == "lxc" and trial.block <= 7:
            raise PlatformError("not yet")

    bench.before = late
    bench.run("--precision", "2%", text=TWENTY + '[[arms]]\nplatform = "lxc"\n')
    first = RunDirectory(bench.out).looks()[0]
    lxc = next(toll for toll in find(bench.out).answering() if toll.arm.platform == "lxc")
    assert lxc.ratio is not None
    assert lxc.ratio.n > 2
    assert lxc.ratio.low is not None or "lxc" in first.why, (first.why, lxc.verdict.words)


def test_a_condition_that_the_pilot_lacks_is_named_by_its_look(bench: Bench) -> None:
    """Its interval was none for want of what the pilot lacked, and no look had said so."""
    bench.spread = 0.05

    def late(trial: PlannedTrial) -> None:
        if trial.arm.platform == "docker" and trial.block <= 8 and trial.condition["load.connections"] == 1:
            raise PlatformError("not yet")

    bench.before = late
    bench.run("--precision", "2%", text=TWENTY + '[factors]\n"load.connections" = [1, 100]\n')
    assert "; no interval where later blocks hold what the pilot lacks: docker+routed under 1 of 2 conditions" in (
        RunDirectory(bench.out).looks()[0].why
    )


def test_a_probe_that_the_pilot_lacks_is_named_by_its_look(bench: Bench) -> None:
    bench.spread = 0.05

    def broken(trial: PlannedTrial) -> None:
        if trial.condition["probe"] == "clock":
            raise PlatformError("no clock")

    bench.before = broken
    bench.run("--precision", "2%", text=PROBED)
    (first, *_) = RunDirectory(bench.out).looks()
    assert "; no interval where later blocks hold what the pilot lacks: any arm in probe clock" in first.why


def test_two_quantities_of_one_name_are_two_comparisons(bench: Bench) -> None:
    """The second took the first's place, which scatters more and asks for more blocks."""

    def scatters(trial: PlannedTrial) -> None:
        bench.tolls["docker/clock"] = 1 + 0.2 * (trial.block % 2)

    bench.before = scatters
    bench.run("--precision", "2%", "--blocks", "9", text=PROBED)
    first, last = RunDirectory(bench.out).looks()
    rule = Precision(half_width=0.02, pilot=8, most=9)
    findings = find(bench.out, blocks=8)
    for metric in findings.judged:
        table = findings.tolls(metric.name)
        named = tuple(replace(toll, metric=replace(toll.metric, title="Time")) for toll in table.overall)
        findings._tolls[metric.name] = replace(table, overall=named)
    clock, other = findings.answering()
    assert clock.metric.probe == "clock"
    assert _piloted(rule, 8, findings).why.partition(",")[0] == first.why.partition(",")[0]
    assert "the widest interval is" in last.why
    assert "the widest interval is" in _narrowed(rule, 8, [clock, other]).why


def test_an_open_loops_percentile_is_that_of_the_first_look(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Recipe(arms=(NATIVE, AGAIN, LXC), blocks=4, factors={}))
    log = directory / "trials.jsonl"
    log.write_text(log.read_text().replace('"loop":"closed"', '"loop":"open"'))
    findings = find(directory)
    assert findings.headline.name == "latency_p99_ms"
    seen = Compared(arm=LXC.label, metric="latency_p90_ms", ratio=1.0, half_width=0.1, decided=False, words="")
    look = Look(block=3, taken_at="", compared=(seen,), blocks=4, ends=False, why="")
    for looks, headline in (((look,), "latency_p90_ms"), ((_blind(look), look), "latency_p90_ms")):
        assert replace(findings, run=replace(findings.run, looks=looks)).headline.name == headline
    assert replace(findings, run=replace(findings.run, looks=(_blind(look),))).headline.name == "latency_p99_ms"


def _blind(look: Look) -> Look:
    """A look at which nothing could be compared."""
    (each,) = look.compared
    return look.model_copy(update={"compared": (each.model_copy(update={"metric": "rate_per_s", "ratio": None}),)})
