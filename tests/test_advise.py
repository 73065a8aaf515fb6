"""Advice: by made-up runs whose truth is known, and by tolls made by hand."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import advice_examples
import isolating
import synthetic_programme
from synthetic import AGAIN, ARMS, DOCKER, LXC, NATIVE, PUBLISHED, UML, Recipe, measured_elsewhere, write_run
from test_knee import TEXT as SEARCH
from test_servers import measured as two_servers
from virtoll.analysis.advice import Candidate, better, comes_before, ranked
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.metrics import load_metrics
from virtoll.analysis.objectives import held, objective_of
from virtoll.analysis.ratios import Toll
from virtoll.analysis.verdicts import Kind, Verdict
from virtoll.catalogue import features
from virtoll.cli import main
from virtoll.errors import StudyError
from virtoll.features import no, partly, yes
from virtoll.record.model import Arm
from virtoll.record.rules import Decide
from virtoll.report.advice import Advice, Known, advise
from virtoll.report.advising import answer, as_json, as_text
from virtoll.report.findings import Findings, find
from virtoll.report.untold import _begun, untold

RATE = load_metrics("request")["rate_per_s"]
# Of a virtoll that has a driver for one type of Xen's guests, and of the others documents alone.
KNOWN = Known(features(), {"proxy"})


def toll(low: float, value: float, high: float, kind: Kind = "costs", arm: Arm = DOCKER) -> Toll:
    ratio = Estimate(value, low, high, 0.95, "ratio", 5, "")
    return Toll(arm, None, RATE, ratio, math.nan, None, 0.03, 1, Verdict(kind, kind))


def candidate(label: str, **tolls: Toll | None) -> Candidate:
    return Candidate(Arm(label=label, platform="docker", network="routed"), tolls=tolls)


# -- the rules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (toll(0.88, 0.90, 0.92), toll(0.78, 0.80, 0.82), 1),
        (toll(0.78, 0.80, 0.82), toll(0.88, 0.90, 0.92), -1),
        (toll(0.78, 0.86, 0.89), toll(0.88, 0.90, 0.92), 0),  # they overlap
        (toll(0.993, 0.994, 0.995, "same"), toll(0.98, 0.985, 0.99, "same"), 0),  # apart, within the margin
        (None, toll(0.78, 0.80, 0.82), 1),
        (toll(0.78, 0.80, 0.82), None, -1),
        (None, toll(0.90, 0.95, 0.99, "unsure"), 0),
        (toll(1.1, 1.2, 1.3, "gains"), None, 1),
        (None, None, 0),
        (toll(0.9, 0.9, 0.9, "unsure"), toll(0.8, 0.8, 0.8, "unsure"), 0),  # knees of 18 and 16 users in all blocks
        (toll(0.9, 0.9, 0.9, "unsure"), toll(0.78, 0.80, 0.82), 0),
        (toll(1.0, 1.0, 1.0, "same"), toll(0.78, 0.80, 0.82), 1),  # native's own, as native is
    ],
)
def test_who_is_better_in_a_part(one: Toll | None, other: Toll | None, told: int) -> None:
    assert better(one, other) == told
    assert better(other, one) == -told


def test_a_chain_of_overlaps_leaves_a_tie_for_each_neighbour() -> None:
    a = candidate("a", run=toll(0.95, 0.97, 0.99))
    b = candidate("b", run=toll(0.88, 0.92, 0.96))
    c = candidate("c", run=toll(0.80, 0.85, 0.89))
    places = {place.label: place for place in ranked([c, b, a])}
    assert [places[label].rank for label in "abc"] == [1, 1, 3]
    assert places["c"].before == ("a",)  # b is not shown to be better, though a is
    assert places["a"].tied == ("b",)


def test_better_here_and_worse_there_is_a_tie() -> None:
    one = candidate("one", x=toll(0.90, 0.92, 0.94), y=toll(0.50, 0.52, 0.54))
    other = candidate("other", x=toll(0.70, 0.72, 0.74), y=toll(0.80, 0.82, 0.84))
    assert not comes_before(one, other)
    assert not comes_before(other, one)
    assert [place.rank for place in ranked([one, other])] == [1, 1]


def test_who_was_not_measured_together_is_not_ranked() -> None:
    places = ranked([candidate("a", x=toll(0.9, 0.92, 0.94)), candidate("b", y=toll(0.1, 0.12, 0.14))])
    assert [(place.rank, place.before) for place in places] == [(1, ()), (1, ())]


def test_a_circle_of_three_runs_has_no_first() -> None:
    wide, low, high = toll(0.5, 0.7, 0.95), toll(0.5, 0.52, 0.54), toll(0.8, 0.82, 0.84)
    a = candidate("a", x=high, y=wide, z=low)
    b = candidate("b", x=low, y=high, z=wide)
    c = candidate("c", x=wide, y=low, z=high)
    assert [place.rank for place in ranked([a, b, c])] == [1, 1, 1]


def test_needs_alone_part_those_that_fit_from_the_others() -> None:
    known = {"run": toll(0.9, 0.92, 0.94)}
    fit = Candidate(DOCKER, {"resize": yes("it does", "s")}, tolls=known)
    perhaps = Candidate(LXC, {"resize": partly("with care", "s")}, tolls=known)
    unfit = Candidate(UML, {"resize": no("it does not", "s")}, tolls=known)
    assert [place.candidate.standing for place in ranked([unfit, perhaps, fit])] == ["fits", "open", "does not fit"]
    assert Candidate(DOCKER, {"resize": yes("it does", "s")}).standing == "open"  # nothing valid is known of it


# -- over made-up runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("advise") / "run", Recipe(blocks=8))


found = cache(find)  # of one run most tests ask, and none changes what was found


def of(made: Path, *objectives: str, needs: tuple[str, ...] = ()) -> Advice:
    return advise([found(made)], objectives, needs, KNOWN)


def ranks(advice: Advice) -> dict[str, tuple[str, int]]:
    return {place.label: (place.candidate.standing, place.rank) for place in advice.places}


def test_the_truth_of_a_run_is_found(made: Path) -> None:
    told = ranks(of(made))
    assert AGAIN.label not in told
    assert told[NATIVE.label] == told[LXC.label] == told[DOCKER.label] == ("fits", 1)  # 0.995 and 0.985, within 3 %
    assert (told[PUBLISHED.label][1], told[UML.label][1], told["qemu-tcg+routed"][1]) == (4, 5, 6)
    said = answer(of(made))
    assert said.startswith("Take any of native+host, lxc+routed (0.99")
    assert "docker+published, uml+routed and qemu-tcg+routed come after" in said


def test_every_place_names_its_figures(made: Path) -> None:
    text = as_text(of(made))
    (after,) = [line for line in text.splitlines() if line.strip().startswith("after uml")]
    assert "of native's throughput in run" in after
    assert "0.16" in after
    assert "0.07" in after


def test_needs_leave_out_and_name_the_source(made: Path) -> None:
    advice = of(made, needs=("own-kernel", "live-migration"))
    assert {label for label, (standing, _) in ranks(advice).items() if standing == "fits"} == {"qemu-tcg+routed"}
    assert answer(advice).startswith("Take qemu-tcg+routed (0.07")
    assert "live-migration: yes: to a QEMU that was started alike [qemu.org" in as_text(advice)
    told = {one.what: one for one in untold(advice)}
    assert told["kvm+routed"].command == "virtoll run proxy --platforms kvm"
    assert told["xen-pv"].command == "virtoll run proxy --platforms xen-pv"
    assert "openvz" not in told  # has no kernel of its own


def test_an_objective_goes_by_the_interval_under_the_worst_condition(made: Path) -> None:
    usual = as_json(of(made, "p99 < 200 s"))
    assert {one["standing"] for one in usual["candidates"]} == {"fits"}
    strict = as_json(of(made, "latency_p99 < 1 us"))
    assert {one["standing"] for one in strict["candidates"]} == {"does not fit"}
    (held,) = strict["candidates"][0]["objectives"]
    assert held["low"] > 0.001
    assert held["condition"]


def test_a_bound_within_the_interval_is_not_decided(made: Path) -> None:
    (held,) = as_json(of(made, "p99 < 1 us"))["candidates"][0]["objectives"]
    advice = of(made, f"p99 < {held['value'] * 1.0000001:.6f} ms")
    (native,) = [place.candidate for place in advice.places if place.label == NATIVE.label]
    assert native.standing == "open"
    assert any(one.what.startswith("p99") and one.what.endswith(f"of {NATIVE.label} in run") for one in untold(advice))


def test_an_interval_that_decides_is_not_printed_as_if_it_held_the_bound(made: Path) -> None:
    """A low end of 393.25 ms was printed as 393, beside a bound of 393.13 that it had missed."""
    for candidate in as_json(of(made, "p99 < 1 us"))["candidates"]:
        bound = candidate["objectives"][0]["low"] * (1 - 3e-4)
        said = as_text(of(made, f"p99 < {bound:.9f} ms"))
        missed = re.findall(r"missed: [0-9.,]+ \[([0-9.,]+), [0-9.,]+\] ms", said)
        assert missed
        assert all(float(low.replace(",", "")) > bound for low in missed), said


@pytest.mark.parametrize("word", ["rate", "rate_per_s", "throughput"])
def test_more_is_better_of_a_rate(made: Path, word: str) -> None:
    """`throughput` is what reports call it."""
    assert {one["standing"] for one in as_json(of(made, f"{word} > 1"))["candidates"]} == {"fits"}
    with pytest.raises(StudyError, match="more of rate is better"):
        of(made, "rate < 1")


def test_cpu_time_can_be_asked_for(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["advise", str(made), "--objective", "cpu_s_per_1000 < 1000", "--json"])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["candidates"][0]["objectives"][0]["told"] == "met"


@pytest.mark.parametrize(
    ("objective", "needs", "told"),
    [
        ("p98 < 2 ms", (), "there is no 'p98' here; there are"),
        ("p99 < 2", (), "lacks its unit"),
        ("p99", (), "is no objective"),
        ("p99 < 2 ms", ("own_kernel",), "there is no feature 'own_kernel'"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(
    made: Path, objective: str, needs: tuple[str, ...], told: str
) -> None:
    with pytest.raises(StudyError, match=told) as refused:
        of(made, objective, needs=needs)
    assert "latency_p99" in str(refused.value) or "own-kernel" in str(refused.value) or "ms" in str(refused.value)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["advise", *argv])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_that_a_rate_is_no_capacity_is_told_whatever_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Native's CPU time says so, of which no objective speaks."""
    made = write_run(tmp_path / "run", Recipe(blocks=2, arms=(NATIVE, DOCKER)))
    study = json.loads((made / "study.json").read_text())
    study["base"]["limits.vcpus"] = 8
    (made / "study.json").write_text(json.dumps(study))
    for objective in ("cpu_s_per_1000 < 1000", "rate > 1"):
        _, out, _ = run(capsys, str(made), "--objective", objective)
        assert "of its CPU: the rate says there how quickly users and service answer each other" in out, objective


def test_nothing_fits(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(made), "--objective", "p99 < 1 us", "--need", "own-kernel")
    assert code == 1
    assert out.startswith("Nothing that was measured fits: native+host (own-kernel: no, p99 < 1 us: ")


def test_what_is_no_run_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(tmp_path / "none"))[0] == 4
    assert run(capsys, str(tmp_path))[0] == 4


def test_a_run_given_twice_counts_once(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, str(made), f"{made}/", "--json")
    assert len(json.loads(out)["parts"]) == 1


def test_an_arm_whose_trials_are_all_invalid_is_told(tmp_path: Path) -> None:
    recipe = Recipe(arms=(NATIVE, LXC, DOCKER), blocks=2, factors={"load.connections": [1]}, bulk=False)
    plan = find(write_run(tmp_path / "first", recipe)).run.plan
    spoilt = {trial.id: "invalid" for trial in plan.trials if trial.arm == DOCKER}
    made = write_run(tmp_path / "run", Recipe(**{**vars(recipe), "spoilt": spoilt}))
    advice = advise([find(made)], [], [], KNOWN)
    (lost,) = [one for one in untold(advice) if one.what == "docker+routed in run"]
    assert "the generator was the limit" in lost.why
    assert lost.command == f"virtoll run {made} --blocks 4"
    (docker,) = [place for place in advice.places if place.label == DOCKER.label]
    assert docker.candidate.tolls == {}
    assert docker.candidate.standing == "open"
    assert "docker+routed\n       nothing of it can be compared with native" in as_text(advice)


def failing(made: Path, arm: Arm, blocks: Collection[int], check: str) -> Path:
    """The run, with an arm's trials of these blocks invalid for a check."""
    lines = made / "trials.jsonl"
    records = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    for record in records:
        if record["trial"]["arm"]["label"] == arm.label and record["trial"]["block"] in blocks:
            record |= {"status": "invalid", "reason": f"{check}: 97 of 100"}
            record["checks"].append({"name": check, "passed": False, "detail": "97 of 100"})
    lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return made


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("requests were answered", "cannot tell"),
        ("answered correctly after", "cannot tell"),
        ("generator headroom", "met"),
    ],
)
def test_an_objective_is_not_met_by_the_trials_in_which_the_service_did_not_fail(
    check: str, told: str, tmp_path: Path
) -> None:
    """It failed its users in five blocks of eight, which are not valid, and was fast in three: that was *met*."""
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=8, factors={"load.connections": [1]})
    findings = find(failing(write_run(tmp_path / "run", recipe), DOCKER, range(1, 6), check))
    one = held(findings.matrix, objective_of("throughput > 1 req/s", findings.matrix.metrics), DOCKER)
    assert one.told == told
    assert one.why == (f"the service failed its users in 5 of 8 trials ({check}: 97 of 100)" if told != "met" else "")


def test_two_runs_are_compared_by_the_arms_they_share(made: Path, tmp_path: Path) -> None:
    slow = {arm.label: 1.0 for arm in ARMS} | {LXC.label: 0.5}
    other = write_run(tmp_path / "other", Recipe(blocks=6, truth=slow, seed=3))
    told = ranks(advise([find(made), find(other)], [], [], KNOWN))
    assert told[LXC.label][1] > told[DOCKER.label][1]  # within 3 % here, half as fast there
    assert told[UML.label][1] < told["qemu-tcg+routed"][1]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=2, factors={}, bulk=False)
    made = [write_run(tmp_path / str(n) / "proxy", replace(recipe, seed=n)) for n in (1, 2)]
    assert [part.name for part in advise([find(each) for each in made], [], [], KNOWN).parts] == list(map(str, made))


def test_one_block_ranks_nobody(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", Recipe(arms=(NATIVE, UML), blocks=1, bulk=False))
    advice = advise([find(made)], ["rate > 1"], [], KNOWN)
    assert ranks(advice) == {NATIVE.label: ("open", 1), UML.label: ("open", 1)}
    assert any("one block has no interval" in one.why or "n = 1" in one.why for one in untold(advice))


def test_programs_read_all_of_it(made: Path) -> None:
    told: dict[str, Any] = as_json(of(made, "p99 < 200 s", needs=("resize",)))
    docker = next(one for one in told["candidates"] if one["arm"] == DOCKER.label)
    assert docker["ratios"][0]["low"] < docker["ratios"][0]["value"] < docker["ratios"][0]["high"]
    assert docker["needs"]["resize"]["answer"] == "yes"
    assert json.loads(json.dumps(told)) == told


# -- other kinds of run --------------------------------------------------------------------------------------


def test_of_a_programme_each_probe_is_a_part(tmp_path: Path) -> None:
    advice = advise(
        [find(synthetic_programme.write_programme(tmp_path / "run", synthetic_programme.Recipe()))],
        [],
        ["own-kernel"],
        KNOWN,
    )
    parts = {part.name for part in advice.parts}
    assert "run, linpack" in parts
    assert len(parts) > 5
    told = {place.label: place for place in advice.places}
    assert told[UML.label].candidate.standing == told["qemu-tcg+routed"].candidate.standing == "fits"
    assert told[UML.label].rank == told["qemu-tcg+routed"].rank == 1  # clock and first-touch here, linpack there
    assert json.loads(json.dumps(as_json(advice)))["candidates"][0]["rank"] == 1


def test_what_asks_for_no_platforms_cost_is_refused(tmp_path: Path) -> None:
    run = isolating.run_of(tmp_path / "run", quick=True)
    with pytest.raises(StudyError, match="it asks what neighbours take, and of no platform's cost"):
        advise([find(run)], [], [], KNOWN)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "ADVICE.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    advice_examples.write_all(Path("runs"))
    examples = re.findall(r"^```\n\$ virtoll (.+)\n((?s:.+?))\n```$", page, re.MULTILINE)
    assert [words.split()[0] for words, _ in examples] == ["advise", "plan"]
    for words, shown in examples:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(words))
        assert ended.value.code == 0
        assert capsys.readouterr().out.rstrip() == shown


def test_each_server_is_a_part(tmp_path: Path) -> None:
    advice = advise([find(two_servers(tmp_path / "run"))], ["p50 < 1 s"], [], KNOWN)
    assert [part.name for part in advice.parts] == ["run, lean", "run, broad"]
    (docker,) = [place for place in advice.places if place.label == DOCKER.label]
    assert docker.before == (NATIVE.label,)  # dearer under one server, and alike under the other
    assert [one.told for each in docker.candidate.held.values() for one in each] == ["met", "met"]


@pytest.mark.parametrize(
    ("changes", "objective", "told"),
    [
        ({"most = 100000": "most = 1000"}, "knee > 900 requests/s", "met"),
        ({"most = 100000": "most = 1000"}, "knee > 2000", "cannot tell"),
        ({"least = 100": "least = 50000"}, "knee > 60000", "missed"),
    ],
)
def test_a_bound_decides_where_it_can(tmp_path: Path, changes: dict[str, str], objective: str, told: str) -> None:
    text = SEARCH.replace("blocks = 6", "blocks = 2")
    for old, new in changes.items():
        text = text.replace(old, new)
    advice = advise([find(advice_examples.search_of(tmp_path / "run", text))], [objective], [], KNOWN)
    assert {one.told for place in advice.places for each in place.candidate.held.values() for one in each} == {told}
    assert "bound" in as_text(advice) or "below its least" in as_text(advice)


# -- commands that run -----------------------------------------------------------------------------------------


def unsure_of_docker(tmp_path: Path, *, elsewhere: dict[str, Any] | None = None, **changes: Any) -> tuple[Path, Advice]:
    """Advice on an objective whose bound lies within docker's interval; six blocks that hold a value would tell.

    ``elsewhere``: what is noted of how the host was reached that measured it, where another did.
    """
    recipe = Recipe(**{"arms": (NATIVE, DOCKER), "blocks": 8, "factors": {"load.connections": [1]}, **changes})
    made = write_run(tmp_path / "run", recipe)
    if elsewhere is not None:
        measured_elsewhere(made, elsewhere)
    (docker,) = [one for one in as_json(of(made, "p99 < 1 us"))["candidates"] if one["arm"] == DOCKER.label]
    (held,) = docker["objectives"]
    bound = held["value"] + (held["high"] - held["value"]) / 1.2
    return made, of(made, f"p99 < {bound:.9f} ms")


def command_for_docker(advice: Advice) -> str:
    (one,) = [one for one in untold(advice) if one.what.startswith("p99") and "docker" in one.what]
    return one.command


def test_blocks_that_lost_an_arm_come_on_top_of_those_that_are_needed(tmp_path: Path) -> None:
    """Of a new run: objectives go by plain intervals, and who extends a run until these tell looks as he likes."""
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=8, factors={"load.connections": [1]})
    plan = find(write_run(tmp_path / "first", recipe)).run.plan
    spoilt = {trial.id: "invalid" for trial in plan.trials if trial.arm == DOCKER and trial.block > 3}
    _, advice = unsure_of_docker(tmp_path, spoilt=spoilt)
    assert command_for_docker(advice) == f"virtoll run proxy --blocks {6 * 8 // 3}"


def whether_docker_differs(findings: Findings) -> tuple[str, Verdict]:
    """The command that would tell, and what is known so far."""
    (toll,) = [toll for toll in findings.answering() if toll.arm == DOCKER]
    (one,) = [one for one in untold(advise([findings], [], [], KNOWN)) if one.what.startswith("whether docker")]
    return one.command, toll.verdict


@pytest.mark.parametrize("changes", [{"is_kept": True}, {"rule": Decide(margin=0.03, looks=(4, 5, 6))}])
def test_a_new_run_has_the_blocks_that_a_fixed_number_takes(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Of what would be no extension, the command of one would take two or three times as long."""
    recipe = Recipe(arms=(NATIVE, AGAIN, DOCKER), blocks=6, factors={}, noise=0.04, seed=2)
    whole = find(write_run(tmp_path / "run", recipe))
    begun, verdict = whether_docker_differs(whole)
    assert verdict.needed is not None
    assert verdict.anew is not None
    assert verdict.needed > 1.5 * verdict.anew
    assert begun == f"virtoll run {tmp_path / 'run'} --blocks {verdict.needed}"
    plan = whole.run.plan.model_copy(update={"rule": changes.get("rule")})
    run = replace(whole.run, plan=plan, is_kept="is_kept" in changes)
    told = replace(whole, run=run, matrix=replace(whole.matrix, run=run), _tolls={})
    assert whether_docker_differs(told)[0] == f"virtoll run proxy --blocks {verdict.anew}"


def test_a_run_that_is_not_over_is_gone_on_with(tmp_path: Path) -> None:
    made, advice = unsure_of_docker(tmp_path, sealed=3 * 2)
    assert command_for_docker(advice) == f"virtoll run {made}"


@pytest.mark.parametrize(
    ("notes", "options"),
    [({}, "--cluster tls://HOST:8786 --tls DIRECTORY"), ({"performer": "ab12"}, "--host ssh://root@HOST")],
)
def test_what_others_measured_they_measure_again(tmp_path: Path, notes: dict[str, Any], options: str) -> None:
    _, advice = unsure_of_docker(tmp_path, elsewhere=notes)
    assert command_for_docker(advice) == f"virtoll run proxy --blocks {2 * 8} {options}"


def test_a_copy_that_is_not_whole_is_begun_anew(tmp_path: Path) -> None:
    """It is not gone on with, and that was the command."""
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=8, factors={"load.connections": [1]}, sealed=1)
    there = find(write_run(tmp_path / "run", recipe))
    run = replace(there.run, is_kept=True)
    kept = replace(there, run=run, matrix=replace(there.matrix, run=run), _tolls={})
    told = {one.what: one.command for one in untold(advise([kept], [], [], KNOWN))}
    assert told["docker+routed in run"] == "virtoll run proxy --blocks 16"


def test_a_platform_is_measured_where_the_others_were(tmp_path: Path) -> None:
    """What a server lacks, and what nobody measured there, was to be measured on this machine."""
    made = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), blocks=2, factors={}, bulk=False))
    measured_elsewhere(made, {"performer": "ab12"})
    told = {one.what: one.command for one in untold(of(made))}
    assert told["kvm+routed"] == "virtoll run proxy --platforms kvm --host ssh://root@HOST"
    assert told["xen-pv"] == "virtoll run proxy --platforms xen-pv --host ssh://root@HOST"


@pytest.mark.parametrize(
    ("notes", "options"),
    [({}, "--cluster tls://HOST:8786 --tls DIRECTORY"), ({"performer": "ab12"}, "--host ssh://root@HOST")],
)
def test_what_others_have_yet_to_measure_they_go_on_with(tmp_path: Path, notes: dict[str, Any], options: str) -> None:
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=8, factors={"load.connections": [1]}, sealed=1)
    made = write_run(tmp_path / "run", recipe)
    measured_elsewhere(made, notes)
    told = {one.what: one.command for one in untold(of(made))}
    assert told["docker+routed in run"] == f"virtoll run {made} {options}"


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"command": "proxy"}, "virtoll run proxy --platforms xen-pv"),
        ({"command": "bench/shop.toml --quick --explain"}, "virtoll run bench/shop.toml --quick --platforms xen-pv"),
        ({"command": "proxy --memory 768MiB --decide 5% --platforms lxc"}, "virtoll run proxy --memory 768MiB "
         "--platforms xen-pv"),
        ({"command": "'my shop.toml' --cluster tls://evil:1"}, "virtoll run 'my shop.toml' --platforms xen-pv"),
        ({"command": "--host ssh://evil"}, "virtoll run proxy --platforms xen-pv"),
        ({"command": "proxy 'torn"}, "virtoll run proxy --platforms xen-pv"),
        ({"command": "proxy --memory '1;reboot'"}, "virtoll run proxy --platforms xen-pv"),
        ({"command": 7}, "virtoll run proxy --platforms xen-pv"),
        ({"command": "compare a b --again", "name": "shop-again", "configurations": {"A": {}, "B": {}}}, ""),
    ],
)  # fmt: skip
def test_a_platform_is_measured_as_the_run_was_begun(made: Path, study: dict[str, Any], said: str) -> None:
    """From the same file and as quick; of its options those alone that make it the same study."""
    there = found(made)
    run = replace(there, run=replace(there.run, study={**there.run.study, **study}))
    told = {one.what: one.command for one in untold(advise([run], [], [], KNOWN))}
    assert told["xen-pv"] == said


def test_more_blocks_of_two_configurations_are_those_of_the_same_two(tmp_path: Path) -> None:
    """As of a copy that was kept small, which is not gone on with."""
    _, advice = unsure_of_docker(tmp_path)
    (run,) = advice.runs
    again = {"command": "compare runs/a runs/b --again", "configurations": {"A": {}, "B": {}}}
    assert _begun(replace(run, run=replace(run.run, study={**run.run.study, **again})), advice) == (
        "compare runs/a runs/b --again"
    )


@pytest.mark.parametrize(
    ("command", "begun"),
    [
        ("redis --platforms bubblewrap --decide 5%", "run redis --platforms bubblewrap"),
        ("redis --platforms 'a;b'", "run redis"),
    ],
)
def test_more_blocks_are_of_the_platforms_that_were_asked_for(tmp_path: Path, command: str, begun: str) -> None:
    """The study by itself may not measure that one."""
    _, advice = unsure_of_docker(tmp_path)
    (run,) = advice.runs
    assert _begun(replace(run, run=replace(run.run, study={**run.run.study, "command": command})), advice) == begun


def test_a_platforms_name_from_a_run_is_no_command(made: Path) -> None:
    found = find(made)
    (skipped,) = found.run.environment.skipped
    arm = skipped.arm.model_copy(update={"platform": "kvm; reboot"})
    there = found.run.environment.model_copy(update={"skipped": [skipped.model_copy(update={"arm": arm})]})
    told = untold(advise([replace(found, run=replace(found.run, environment=there))], [], [], KNOWN))
    assert any(one.command == "virtoll run proxy --platforms 'kvm; reboot'" for one in told)


# -- who is named --------------------------------------------------------------------------------------------


def said_of(*places: Candidate) -> str:
    """The answer of a run that compared throughput."""
    part = SimpleNamespace(name="run", metric=RATE, over=("all",))
    advice = SimpleNamespace(places=ranked([Candidate(NATIVE, tolls={"run": None}), *places]), parts=[part])
    return answer(cast(Any, advice))


def test_who_may_be_worse_than_those_behind_is_not_named_among_those_to_take() -> None:
    """The wide one is known to 0.45 to 1.05: neither does the costly one come after it, nor it after that one."""
    costly, wide = (
        candidate("costly", run=toll(0.89, 0.90, 0.91)),
        candidate("wide", run=toll(0.45, 0.7, 1.05, "unsure")),
    )
    said = said_of(candidate("alike", run=toll(0.985, 0.99, 0.995, "same")), costly, wide)
    assert said.startswith("Take any of native+host and alike (0.99")
    assert "costly comes after. wide (0.7" in said
    assert said.endswith("may be better or worse than costly: that is not known.")
    alone = said_of(costly, wide)
    assert alone.startswith("Take native+host: it fits, and comes before costly. wide (0.7")


def test_where_nobody_comes_before_all_each_is_told_by_whom_it_is_preceded() -> None:
    one = candidate("one", x=toll(0.90, 0.92, 0.94))
    other = candidate("other", y=toll(0.90, 0.92, 0.94))
    behind = candidate("behind", x=toll(0.70, 0.72, 0.74))
    last = candidate("last", y=toll(0.70, 0.72, 0.74))
    parts = [SimpleNamespace(name=name, metric=RATE, over=("all",)) for name in ("x", "y")]
    advice = SimpleNamespace(places=ranked([one, other, behind, last]), parts=parts)
    said = answer(cast(Any, advice))
    assert said.endswith("; behind comes after one; last comes after other.")


def test_who_comes_before_another_by_way_of_a_third_is_known_to() -> None:
    """A before B before C, and A and C in no run together; D was compared with nobody but native."""
    a = candidate("a", x=toll(0.95, 0.96, 0.97))
    b = candidate("b", x=toll(0.80, 0.81, 0.82), y=toll(0.95, 0.96, 0.97))
    c = candidate("c", y=toll(0.60, 0.61, 0.62))
    d = candidate("d", z=toll(0.2, 0.9, 1.5, "unsure"))
    parts = [SimpleNamespace(name=name, metric=RATE, over=("all",)) for name in ("x", "y", "z")]
    said = answer(cast(Any, SimpleNamespace(places=ranked([a, b, c, d]), parts=parts)))
    assert said.startswith("Take a (0.96")
    assert "it fits, and comes before b and c. d (0.9" in said
    assert said.endswith("may be better or worse than b and c: that is not known.")


def test_where_nothing_is_shown_to_fit_a_script_is_told(tmp_path: Path) -> None:
    """All trials had failed, and `virtoll advise RUN && deploy` went on."""
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=2, factors={"load.connections": [1]}, bulk=False)
    run = failing(failing(write_run(tmp_path / "run", recipe), DOCKER, range(1, 3), "c"), NATIVE, range(1, 3), "c")
    with pytest.raises(SystemExit) as ended:
        main(["advise", str(run)])
    assert ended.value.code == 1
