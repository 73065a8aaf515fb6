"""Trials that are lost for what the service did in them: the others are the better ones, and a report says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import synthetic_programme
from synthetic import AGAIN, DOCKER, LXC, NATIVE, Recipe, write_run
from virtoll.analysis.objectives import AmbiguousError, held, objective_of
from virtoll.errors import StudyError
from virtoll.record.model import (
    ALL_THERE,
    GENERATOR_HEADROOM,
    HEADROOM_FOR_ALL,
    MAY_BE_MEASURED,
    ORIGIN_HEADROOM,
    Check,
    Phase,
    TrialRecord,
)
from virtoll.record.store import INTERRUPTED
from virtoll.report.advice import Known, advise
from virtoll.report.advising import as_json, as_text
from virtoll.report.findings import find
from virtoll.report.reservations import reservations

RECIPE = Recipe(arms=(NATIVE, AGAIN, LXC, DOCKER), blocks=8, factors={"load.connections": [100]}, skip_kvm=False)
LOST = (1, 3, 4, 6, 8)
WINDOW, PROVE, TEARDOWN = (Phase(name=name, start_ns=0, duration_ns=1) for name in ("window", "prove", "teardown"))


def changed(run: Path, change: Callable[[TrialRecord], TrialRecord]) -> Path:
    """The run, with Docker's trials of five blocks of eight changed."""
    path = run / "trials.jsonl"

    def records() -> Iterator[TrialRecord]:
        for line in path.read_text("utf-8").splitlines():
            record = TrialRecord.model_validate_json(line)
            is_lost = record.trial.arm.label == DOCKER.label and record.trial.block in LOST
            yield change(record) if is_lost else record

    path.write_text("".join(f"{record.model_dump_json()}\n" for record in records()), encoding="utf-8")
    return run


def invalid_for(check: str) -> Callable[[TrialRecord], TrialRecord]:
    failed = Check(name=check, passed=False, detail="it did not")
    return lambda record: record.model_copy(
        update={"status": "invalid", "reason": f"{check}: it did not", "checks": [*record.checks, failed]}
    )


def failed_with(reason: str, *phases: Phase) -> Callable[[TrialRecord], TrialRecord]:
    update: dict[str, Any] = {"status": "failed", "reason": reason, "measured": None, "phases": list(phases)}
    return lambda record: record.model_copy(update=update)


FAILING = {
    "few answers": invalid_for("requests were answered"),
    "wrong answers": invalid_for("answered correctly after"),
    "instance died": invalid_for("the instance lived to the end"),
    "service died": invalid_for("squid lived to the end"),
    "some never answered": invalid_for(ALL_THERE),
    "broke off": failed_with("the instance ended in the window", WINDOW, TEARDOWN),
}
NOT_ITS_OWN = {
    "clock": invalid_for("the clock held"),
    "before the window": failed_with("Docker did not start"),
    "after the window": failed_with("cannot unmount /x: target is busy", WINDOW, PROVE, TEARDOWN),
    "another server": invalid_for("web beside it: nginx lived to the end"),
    "interrupted": failed_with(f"{INTERRUPTED} by Ctrl-C", WINDOW),
}


@pytest.mark.parametrize("change", FAILING.values(), ids=FAILING)
def test_an_arm_whose_service_failed_its_users_in_most_trials_is_not_recommended_by_the_others(
    change: Callable[[TrialRecord], TrialRecord], tmp_path: Path
) -> None:
    """It crashed in five blocks of eight, and was *to be taken*, for it was fast in three."""
    findings = find(changed(write_run(tmp_path / "run", RECIPE), change))
    (told,) = (each for each in reservations(findings) if each.startswith(DOCKER.label))
    assert re.search(r"failed its users(, or was lost in its window,)? in 5 of 8 trials", told)
    assert "the better ones" in told
    advice = advise([findings], ["rate > 100 req/s"], [], Known({}, ()))
    standings = {place.label: place.candidate.standing for place in advice.places}
    assert standings == {NATIVE.label: "fits", LXC.label: "fits", DOCKER.label: "open"}
    assert f"{DOCKER.label}" in as_text(advice).split("Open:")[1]
    assert "it failed its users" in as_text(advice)
    (docker,) = (each for each in as_json(advice)["candidates"] if each["arm"] == DOCKER.label)
    assert docker["failed"][0]["why"].startswith("failed its users")
    (objective,) = docker["objectives"]
    assert objective["told"] == "cannot tell"


@pytest.mark.parametrize("change", NOT_ITS_OWN.values(), ids=NOT_ITS_OWN)
def test_what_is_lost_for_another_reason_is_no_failing_of_the_service(
    change: Callable[[TrialRecord], TrialRecord], tmp_path: Path
) -> None:
    findings = find(changed(write_run(tmp_path / "run", RECIPE), change))
    assert not any(each.startswith(DOCKER.label) for each in reservations(findings))
    advice = advise([findings], ["rate > 100 req/s"], [], Known({}, ()))
    assert {place.candidate.standing for place in advice.places} == {"fits"}


def test_where_only_arms_that_failed_are_open_nothing_is_said_to_speak_against_none(tmp_path: Path) -> None:
    run = changed(write_run(tmp_path / "run", RECIPE), FAILING["service died"])
    said = as_text(advise([find(run)], ["rate > 1000000 req/s"], [], Known({}, ()))).splitlines()[0]
    assert "Nothing speaks against" not in said


@pytest.mark.parametrize(
    ("check", "who"),
    [
        (GENERATOR_HEADROOM, "the generator"),
        (HEADROOM_FOR_ALL, "the generator"),
        (ORIGIN_HEADROOM, "the origin"),
    ],
)
def test_the_fastest_trials_are_lost_with_the_origins_headroom_as_with_the_generators(
    check: str, who: str, tmp_path: Path
) -> None:
    """Where the two share a CPU the origin's proof fails first, and nothing was said."""
    (told,) = reservations(find(changed(write_run(tmp_path / "run", RECIPE), invalid_for(check))))
    assert told.startswith(f"{who} had no headroom in 5 trials, the fastest of {DOCKER.label}")


def test_where_a_tool_was_slow_that_is_told_on_top(tmp_path: Path) -> None:
    def full(record: TrialRecord) -> TrialRecord:
        detail = f"used 99% of 1 CPU, as the host books it: ab 2.3 {MAY_BE_MEASURED}"
        checks = [*record.checks, Check(name=GENERATOR_HEADROOM, passed=None, detail=detail)]
        return record.model_copy(update={"checks": checks})

    (told,) = reservations(find(changed(write_run(tmp_path / "run", RECIPE), full)))
    assert " used nearly all of the CPU time that it can use in 5 valid trials, of docker+routed: it may be" in told
    assert reservations(find(write_run(tmp_path / "other", RECIPE))) == []


def outside(record: TrialRecord) -> TrialRecord:
    """As a program of others tells it: fifty time-outs of 10,000, percentiles of its own, which are twice as long."""
    assert record.measured is not None
    window = record.measured.window
    events = window.events["request"].model_copy(
        update={"failures": {"timeout": 50}, "censored": 50, "percentiles_ns": {"p50": 20 * 10**6, "p99": 80 * 10**6}}
    )
    windows = [window.model_copy(update={"events": {"request": events}})]
    return record.model_copy(
        update={"measured": record.measured.model_copy(update={"instrument": "wrk", "windows": windows})}
    )


def quick(record: TrialRecord) -> TrialRecord:
    """The same, of a trial in which nothing failed."""
    assert record.measured is not None
    window = record.measured.window
    percentiles = {"percentiles_ns": {"p50": 10 * 10**6 + record.trial.position, "p99": 40 * 10**6}}
    events = window.events["request"].model_copy(update=percentiles)
    windows = [window.model_copy(update={"events": {"request": events}})]
    return record.model_copy(
        update={"measured": record.measured.model_copy(update={"instrument": "wrk", "windows": windows})}
    )


def test_percentiles_of_a_program_that_does_not_say_where_failures_stand_are_not_judged_by_the_trials_without(
    tmp_path: Path,
) -> None:
    """They were missing in the five trials in which some failed, and of the three others *no difference was shown*."""
    run = write_run(tmp_path / "run", Recipe(**{**vars(RECIPE), "bulk": False}))
    path = run / "trials.jsonl"
    records = [quick(TrialRecord.model_validate_json(line)) for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(f"{record.model_dump_json()}\n" for record in records), encoding="utf-8")
    findings = find(changed(run, outside))
    matrix = findings.matrix
    (toll,) = (each for each in findings.tolls("latency_p99_ms").overall if each.arm.label == DOCKER.label)
    assert toll.ratio is None
    assert "in 5 pairs it lies among what failed, or may" in toll.verdict.words
    docker = next(arm for arm in matrix.arms if arm.label == DOCKER.label)
    assert matrix.absolute("latency_p99_ms", docker, matrix.conditions[0]) is None
    one = held(matrix, objective_of("p99 < 60 ms", matrix.metrics), docker)
    assert (one.told, "or may" in one.why) == ("cannot tell", True)


def test_an_objective_that_may_be_of_several_probes_is_refused_with_their_names(tmp_path: Path) -> None:
    """It was held against the first of them that came."""
    same = {"throughput_mbit_per_s": ("Throughput", "Mbit/s", "more", 900.0)}
    probes = {"bulk": synthetic_programme.MadeUp({}, same), "flow": synthetic_programme.MadeUp({}, same)}
    recipe = synthetic_programme.Recipe(probes=probes, instruments={})
    findings = find(synthetic_programme.write_programme(tmp_path / "run", recipe))
    metrics = findings.matrix.metrics
    for word in ("throughput", "throughput_mbit_per_s"):
        with pytest.raises(AmbiguousError, match=r"may be any of bulk\.throughput_mbit_per_s, flow\."):
            objective_of(f"{word} > 900 Mbit/s", metrics)
        with pytest.raises(StudyError, match=r"may be any of bulk\."):
            advise([findings], [f"{word} > 900 Mbit/s"], [], Known({}, ()))
    assert objective_of("flow.throughput_mbit_per_s > 900 Mbit/s", metrics).metric == "flow.throughput_mbit_per_s"


def test_a_word_of_another_unit_is_not_meant(tmp_path: Path) -> None:
    """Advice by a run of a load was refused, since another run's probes have such a word for megabits."""
    same = {"throughput_mbit_per_s": ("Throughput", "Mbit/s", "more", 900.0)}
    probes = {"bulk": synthetic_programme.MadeUp({}, same), "flow": synthetic_programme.MadeUp({}, same)}
    recipe = synthetic_programme.Recipe(probes=probes, instruments={})
    runs = [
        find(synthetic_programme.write_programme(tmp_path / "probes", recipe)),
        find(write_run(tmp_path / "load", RECIPE)),
    ]
    told = advise(runs, ["throughput > 1 req/s"], [], Known({}, ()))
    (native,) = (place.candidate for place in told.places if place.label == NATIVE.label)
    assert [one.told for each in native.held.values() for one in each] == ["met"]


def test_of_probes_that_fail_no_users_are_spoken_of(tmp_path: Path) -> None:
    run = synthetic_programme.write_programme(tmp_path / "run", synthetic_programme.Recipe(instruments={}))
    findings = find(changed(run, failed_with("the probe ended", WINDOW)))
    (docker,) = (arm for arm in findings.matrix.arms if arm.label == DOCKER.label)
    assert findings.matrix.failed(docker) == ""
