"""Advice where not all is shown: arms that lack a run, a condition or blocks; what an arm has, and not its platform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import advice_examples
import synthetic_programme
from synthetic import DOCKER, LXC, NATIVE, PUBLISHED, Recipe, excluding, write_run
from test_advise import KNOWN, candidate, of, ranks, run, toll
from test_conference import run_of as conference
from test_knee import TEXT as SEARCH
from test_plan_bounds import altered, ended_below
from undisturbed import undisturbed
from virtoll.analysis.advice import comes_before, ranked
from virtoll.analysis.conditions import Condition
from virtoll.cli.parser import make_parser
from virtoll.cli.shells import completion
from virtoll.features import FEATURES
from virtoll.record.model import LEVEL, Arm, Plan
from virtoll.report.advice import Advice, advise
from virtoll.report.advising import answer, as_json, as_text
from virtoll.report.findings import find
from virtoll.report.untold import untold

FAST, SLOW = Condition((("load.connections", 1),)), Condition((("load.connections", 100),))
SMALL = Recipe(arms=(NATIVE, LXC, DOCKER), blocks=4, factors={"load.connections": [1, 100]}, bulk=False)


def told_of(advice: Advice, label: str) -> dict[str, str]:
    """By part, what the objective was told of an arm."""
    (place,) = [one for one in advice.places if one.label == label]
    return {name: one.told for name, each in place.candidate.held.items() for one in each}


# -- a run that an arm is not in -----------------------------------------------------------------------------


def test_an_objective_of_a_run_that_lacks_the_arm_is_not_met(tmp_path: Path) -> None:
    """The knee is told by the search alone, in which LXC is not: nobody knows whether it carries so many."""
    proxy = write_run(tmp_path / "proxy", SMALL)
    search = advice_examples.search_of(tmp_path / "search", SEARCH.replace("blocks = 6", "blocks = 2"))
    advice = advise([find(proxy), find(search)], ["knee > 200 requests/s"], [], KNOWN)
    assert ranks(advice)[LXC.label][0] == "open"
    assert ranks(advice)[DOCKER.label][0] == "fits"
    assert LXC.label not in answer(advice)
    assert told_of(advice, LXC.label) == {"search": "not measured"}
    (one,) = [one for one in untold(advice) if one.what == f"knee > 200 requests/s of {LXC.label} in search"]
    assert (one.why, one.command) == ("it is not in this run", "virtoll run carries.toml --platforms lxc")


@pytest.mark.parametrize("blocks", [2, 3, 5, 6])
def test_blocks_that_all_say_the_same_decide_no_objective_however_many_they_are(tmp_path: Path, blocks: int) -> None:
    """Of three, five or six the mean may be off in its last digit: an interval of that width met any bound."""
    recipe = Recipe(arms=(NATIVE, DOCKER), blocks=blocks, factors={"load.connections": [1]}, bulk=False)

    def alike(record: dict[str, Any]) -> None:
        for phase in record["phases"]:
            phase["duration_ns"] = 100_000_000

    made = altered(write_run(tmp_path / "run", recipe), alike)
    assert told_of(of(made, "deploy_s < 5 s"), DOCKER.label) == {"run": "cannot tell"}


# -- conditions of which an arm tells nothing ----------------------------------------------------------------


def lost_at_100(tmp_path: Path, arm: Arm, **changes: Any) -> Path:
    """A run in which all of an arm's trials at 100 connections are spoilt."""
    recipe = replace(SMALL, **changes)
    trials = find(write_run(tmp_path / "first", recipe)).run.plan.trials
    spoilt = {t.id: "failed" for t in trials if t.arm == arm and t.condition["load.connections"] == 100}
    return write_run(tmp_path / "run", replace(recipe, spoilt=spoilt))


def test_an_arm_that_failed_under_a_condition_is_open(tmp_path: Path) -> None:
    made = lost_at_100(tmp_path, LXC, truth={NATIVE.label: 1.0, DOCKER.label: 0.7, LXC.label: 1.5})
    advice = of(made)
    assert ranks(advice)[LXC.label] == ("open", 1)
    assert answer(advice).startswith("Take native+host: it fits, and comes before docker+routed.")
    assert "run: throughput is not known at 100 connections, and the ratio is of the others" in as_text(advice)
    (one,) = [one for one in untold(advice) if one.what == "lxc+routed at 100 connections in run"]
    assert one.why == "failed: the guest never answered within 60 s"
    (lxc,) = [one for one in as_json(advice)["candidates"] if one["arm"] == LXC.label]
    assert lxc["lost"] == [{"part": "run", "condition": "100 connections"}]


def live(record: dict[str, Any]) -> None:
    """What viewers tell in open loop: how old what came was. LXC's do not at 100 connections in its first block."""
    trial, measured = record["trial"], record["measured"]
    window, quantity = measured["windows"][0], {"title": "Media age", "unit": "ms", "better": "less"}
    measured |= {"name": "ll-hls-viewers", "loop": "open", "quantities": {"media_age_ms": quantity}}
    is_at_100 = trial["condition"]["load.connections"] == 100
    is_silent = is_at_100 and trial["block"] == 1 and trial["arm"]["label"] == LXC.label
    window["values"] = {} if is_silent else {"media_age_ms": window["duration_ns"] / window["work"]}


def test_an_arm_whose_headline_is_not_told_under_a_condition_is_open(tmp_path: Path) -> None:
    """Its trials are valid, and the age was taken from all: LXC was to be taken, by one connection alone."""
    made = altered(write_run(tmp_path / "run", replace(SMALL, truth={**SMALL.truth, LXC.label: 1.5})), live)
    advice = of(made)
    assert find(made).headline.name == "ll-hls-viewers.media_age_ms"
    assert ranks(advice)[LXC.label] == ("open", 1)
    assert LXC.label not in answer(advice)
    assert "run: media age is not known at 100 connections, and the ratio is of the others" in as_text(advice)
    (one,) = [one for one in untold(advice) if one.what == "lxc+routed at 100 connections in run"]
    assert one.why == "in 1 of 4 trials it is not known: the others may be the better ones"
    (lxc,) = [one for one in as_json(advice)["candidates"] if one["arm"] == LXC.label]
    assert lxc["lost"] == [{"part": "run", "condition": "100 connections"}]


def test_a_headline_that_native_does_not_tell_either_is_no_arms_fault(tmp_path: Path) -> None:
    """That docker has no valid trial there, where native has, is."""

    def change(record: dict[str, Any]) -> None:
        live(record)
        if record["trial"]["condition"]["load.connections"] == 100:
            record["measured"]["windows"][0]["values"] = {}
            if record["trial"]["arm"]["label"] == DOCKER.label:
                record |= {"status": "invalid", "reason": "the generator was the limit"}

    recipe = replace(SMALL, factors={"load.connections": [1, 10, 100]})
    told = ranks(of(altered(write_run(tmp_path / "run", recipe), change)))
    assert [told[arm.label][0] for arm in (NATIVE, LXC, DOCKER)] == ["fits", "fits", "open"]


def test_a_condition_that_native_lost_too_is_no_arms_fault(tmp_path: Path) -> None:
    trials = find(write_run(tmp_path / "first", SMALL)).run.plan.trials
    spoilt = {t.id: "failed" for t in trials if t.condition["load.connections"] == 100}
    advice = of(write_run(tmp_path / "run", replace(SMALL, spoilt=spoilt)))
    assert {standing for standing, _ in ranks(advice).values()} == {"fits"}
    assert answer(advice).count("of native's throughput, over 1 of 2 conditions)") == 2


def test_ratios_of_other_conditions_are_not_compared() -> None:
    easy = replace(candidate("easy", run=toll(0.94, 0.95, 0.96)), under={"run": frozenset({FAST})})
    both = replace(candidate("both", run=toll(0.84, 0.85, 0.86)), under={"run": frozenset({FAST, SLOW})})
    same = replace(both, under=easy.under)
    assert not comes_before(easy, both)
    assert [place.rank for place in ranked([easy, both])] == [1, 1]
    assert comes_before(easy, same)


def test_arms_that_were_asked_other_conditions_are_told_as_such(tmp_path: Path) -> None:
    """As by an [[exclude]] for some platforms: LXC was never planned at 100 connections."""
    recipe = replace(SMALL, truth={NATIVE.label: 1.0, LXC.label: 0.9, DOCKER.label: 0.7})
    made = excluding(
        write_run(tmp_path / "run", recipe), lambda t: t.arm == LXC and t.condition["load.connections"] == 100
    )
    advice = of(made)
    told = {place.label: place for place in advice.places}
    assert told[LXC.label].candidate.standing == "fits"
    assert told[DOCKER.label].before == (NATIVE.label,)
    assert "of native's throughput are not of the same conditions" in as_text(advice)
    assert "of native's throughput, over 1 of 2 conditions: costs" in as_text(advice)


# -- one block, and bounds -----------------------------------------------------------------------------------


def test_one_block_decides_no_bound(tmp_path: Path) -> None:
    """Of an interval it does not, so neither of a search that ended at a bound."""
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("most = 100000", "most = 1000")
    made = advice_examples.search_of(tmp_path / "run", text)
    lines = (made / "trials.jsonl").read_text("utf-8").splitlines(keepends=True)
    (made / "trials.jsonl").write_text("".join(lines[:2]), encoding="utf-8")  # killed after the first block
    advice = of(made, "knee > 900 requests/s")
    assert told_of(advice, NATIVE.label) == {"run": "cannot tell"}
    (one,) = [one for one in untold(advice) if one.what.endswith(f"of {NATIVE.label} in run")]
    assert one.why == "the search ended at a bound: at least 1,000 (one block)"
    assert one.command == f"virtoll run {made}"


@pytest.mark.parametrize(
    ("block", "told"), [(0, "at a bound: at least 1,000"), (1, "below its least in 1 of 2 trials")]
)
def test_a_bound_names_the_trials_that_ended_below(tmp_path: Path, block: int, told: str) -> None:
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("most = 100000", "most = 1000")
    made = altered(advice_examples.search_of(tmp_path / "run", text), ended_below("native", block, 100.0))
    candidates = as_json(of(made, "knee > 500 requests/s"))["candidates"]
    (one,) = next(each for each in candidates if each["arm"] == NATIVE.label)["objectives"]
    assert told in one["why"]
    assert one["told"] == ("met" if block == 0 else "cannot tell")


def test_arms_whose_searches_all_ended_at_the_most_fit_and_are_not_told_apart(tmp_path: Path) -> None:
    """Native was taken, for docker's bounds gave no ratio, as if nothing were known of it."""
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("most = 100000", "most = 1000")
    advice = of(advice_examples.search_of(tmp_path / "run", text), "knee > 900 requests/s")
    assert ranks(advice) == {NATIVE.label: ("fits", 1), DOCKER.label: ("fits", 1)}
    assert answer(advice) == "Take any of native+host and docker+routed: they fit, and cannot be told apart yet."
    assert "run: knee: no ratio: in 2 pairs it is a bound, and no value" in as_text(advice)


def test_an_arm_below_the_least_is_not_shown_to_fit(tmp_path: Path) -> None:
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("most = 100000", "most = 1000")
    made = altered(advice_examples.search_of(tmp_path / "run", text), ended_below("docker", 1, 100.0))
    assert ranks(of(made)) == {NATIVE.label: ("fits", 1), DOCKER.label: ("open", 1)}


@pytest.mark.parametrize(
    ("blocks", "told", "why"),
    [((1, 2), "missed", "it did not answer"), ((1,), "cannot tell", "it did not answer in 1 of 2 trials")],
)
def test_a_search_that_found_nobody_at_home_has_no_knee(
    tmp_path: Path, blocks: tuple[int, ...], told: str, why: str
) -> None:
    """As of a server beside others; of all trials of an arm that was a crash."""

    def silent(record: dict[str, Any]) -> None:
        if record["trial"]["arm"]["platform"] == "docker" and record["trial"]["block"] in blocks:
            record |= {"status": "invalid", "reason": "0 answered", "outcome": "did not answer"}

    made = altered(advice_examples.search_of(tmp_path / "run", SEARCH.replace("blocks = 6", "blocks = 2")), silent)
    candidates = as_json(of(made, "knee > 200 requests/s"))["candidates"]
    (one,) = next(each for each in candidates if each["arm"] == DOCKER.label)["objectives"]
    assert (one["told"], one["why"]) == (told, why)


def test_what_is_not_told_apart_yet_is_no_tie_of_equals(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", replace(SMALL, blocks=3, noise=0.2))
    assert "cannot be told apart yet" in answer(of(made))


# -- a ramp --------------------------------------------------------------------------------------------------


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the wiring lost is not looked for."""
    undisturbed(monkeypatch)


def cheaper_when_over(at: int) -> Callable[[dict[str, Any]], None]:
    """KVM's ramp missed its objective at all levels from one on."""

    def change(record: dict[str, Any]) -> None:
        if record["trial"]["arm"]["platform"] == "kvm":
            missed = record["measured"]["facts"]["missed"]
            record["measured"]["facts"]["missed"] = missed | {
                str(n): ["loss < 1 %"] for n in (10, 20, 40, 60) if n >= at
            }

    return change


@pytest.mark.usefixtures("unwatched")
def test_levels_that_some_arm_missed_have_no_share_in_the_ratio(tmp_path: Path) -> None:
    """KVM met the objective up to 20 participants, native and the others up to 40."""
    advice = of(conference(tmp_path / "run").path)
    (kvm,) = [place.candidate for place in advice.places if place.label == "kvm+routed"]
    assert {condition.get(LEVEL) for condition in kvm.under["run"]} == {10, 20}
    toll = kvm.tolls["run"]
    assert toll is not None
    assert toll.conditions == 2
    assert "over all levels at which all met the objective of the ramp" in as_text(advice)


@pytest.mark.usefixtures("unwatched")
def test_an_arm_whose_cost_is_not_told_at_a_level_that_all_met_is_open(tmp_path: Path) -> None:
    """Of a browser beside its ten participants KVM served nothing: what it took then is told of none of its trials."""

    browser = {"intended": 1, "offered": 1, "completed": 0, "failures": {}, "censored": 1}

    def unserved(record: dict[str, Any]) -> None:
        for window in record["measured"]["windows"]:
            if record["trial"]["arm"]["platform"] == "kvm" and window["at"] == 10:
                window["events"]["browser"] = browser

    advice = of(altered(conference(tmp_path / "run").path, unserved))
    assert ranks(advice)["kvm+routed"][0] == "open"
    assert "run: CPU of the server is not known at 10 participants, and the ratio is of the others" in as_text(advice)
    assert {standing for label, (standing, _) in ranks(advice).items() if label != "kvm+routed"} == {"fits"}


def frozen_by_block(record: dict[str, Any]) -> None:
    """A little less or more of it in each block."""
    for each in record["measured"]["windows"]:
        each["values"] = {
            name: value * (1 + record["trial"]["block"] / 1000) if "frozen" in name else value
            for name, value in each["values"].items()
        }


@pytest.mark.usefixtures("unwatched")
def test_of_a_ramp_that_all_missed_at_its_top_the_plan_is_named(tmp_path: Path) -> None:
    alike = of(conference(tmp_path / "alike").path, "frozen < 1 %")
    assert {standing for standing, _ in ranks(alike).values()} == {"open"}, "that is no measure of chance"
    made = altered(conference(tmp_path / "run").path, frozen_by_block)
    advice = of(made, "frozen < 1 %")
    assert {standing for standing, _ in ranks(advice).values()} == {"does not fit"}
    (one,) = [one for one in untold(advice) if one.what == "up to which level frozen < 1 % is met in run"]
    assert one.command == f"virtoll plan {made} --users 100 --objective 'frozen < 1 %'"


@pytest.mark.usefixtures("unwatched")
def test_of_a_ramp_that_several_hosts_measured_no_plan_is_named(tmp_path: Path) -> None:
    """`virtoll plan` refuses it: how many users one carries is told of one kind of host."""
    made = conference(tmp_path / "run").path
    plan = Plan.model_validate_json((made / "plan.json").read_text())
    there = [each.model_copy(update={"host": f"node{each.block % 2}"}) for each in plan.trials]
    (made / "plan.json").write_text(plan.model_copy(update={"trials": there}).model_dump_json())
    altered(made, lambda record: record["trial"].update(host=f"node{record['trial']['block'] % 2}"))
    told = untold(of(made, "frozen < 1 %"))
    assert not [one for one in told if one.command.startswith("virtoll plan")]


@pytest.mark.usefixtures("unwatched")
def test_an_arm_that_met_the_objective_nowhere_costs_nothing_that_could_be_compared(tmp_path: Path) -> None:
    advice = of(altered(conference(tmp_path / "run").path, cheaper_when_over(10)))
    told = ranks(advice)
    assert told["kvm+routed"] == ("open", 1)
    (lost,) = [one for one in untold(advice) if one.what == "kvm+routed in run"]
    assert lost.why == "it met the objective of the ramp at no level"
    (docker,) = [place.candidate for place in advice.places if place.label == "docker+routed"]
    assert {condition.get(LEVEL) for condition in docker.under["run"]} == {10, 20, 40}


@pytest.mark.usefixtures("unwatched")
def test_where_no_level_was_met_by_all_no_more_blocks_are_asked_for(tmp_path: Path) -> None:
    """Docker met the objective at 20 participants alone, the others at ten alone."""

    def change(record: dict[str, Any]) -> None:
        met = 20 if record["trial"]["arm"]["platform"] == "docker" else 10
        record["measured"]["facts"]["missed"] = {str(n): ["loss < 1 %"] * (n != met) for n in (10, 20, 40, 60)}

    advice = of(altered(conference(tmp_path / "run").path, change))
    assert {standing for standing, _ in ranks(advice).values()} == {"open", "fits"}
    (one,) = [one for one in untold(advice) if one.what == "docker+routed in run"]
    assert one.why == "there is no level at which all arms met the objective"
    assert one.command.startswith("virtoll report ")


# -- a programme ---------------------------------------------------------------------------------------------


def test_of_a_programme_an_objective_is_told_by_its_own_probe(tmp_path: Path) -> None:
    made = synthetic_programme.write_programme(tmp_path / "run", synthetic_programme.Recipe())
    (metric,) = [each.name for each in find(made).judged if each.probe == "linpack"]
    sign = ">" if find(made).matrix.metrics[metric].better == "more" else "<"
    advice = of(made, f"{metric} {sign} 0.000001" if sign == ">" else f"{metric} < 1000000000")
    assert told_of(advice, NATIVE.label).keys() == {"run, linpack"}
    assert as_text(advice).count(f"{metric} {sign}") >= 1


def test_a_case_that_failed_on_every_arm_meets_no_objective_of_its_probe(tmp_path: Path) -> None:
    """Of what is not the probe's headline the case was none of its conditions, and the others met it."""
    figures = {"throughput_mb_per_s": ("Disk", "MB/s", "more", 900.0), "latency_us": ("Latency", "us", "less", 70.0)}
    disk = synthetic_programme.MadeUp({"operation": ["read", "random-write"]}, figures)
    recipe = synthetic_programme.Recipe(arms=(NATIVE, DOCKER), probes={"disk": disk}, instruments={})
    trials = find(synthetic_programme.write_programme(tmp_path / "first", recipe)).run.plan.trials
    spoilt = {each.id: "no space" for each in trials if each.condition["disk.operation"] == "random-write"}
    made = synthetic_programme.write_programme(tmp_path / "run", replace(recipe, spoilt=spoilt))
    for objective in ("disk.throughput_mb_per_s > 1", "disk.latency_us < 5000"):
        advice = of(made, objective)
        assert told_of(advice, DOCKER.label) == {"run, disk": "not measured"}
        assert "no space at random write" in as_text(advice)


# -- what an arm has -----------------------------------------------------------------------------------------


def test_an_arm_on_its_hosts_network_has_no_devices_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Docker has them, and docker --network host has not."""
    shared = Arm(label="docker+host", platform="docker", network="host")
    truth = {NATIVE.label: 1.0, shared.label: 1.0, DOCKER.label: 0.9}
    made = write_run(tmp_path / "run", replace(SMALL, arms=(NATIVE, shared, DOCKER), truth=truth))
    code, out, _ = run(capsys, str(made), "--need", "own-network")
    assert code == 0
    assert out.startswith("Take docker+routed (")
    assert "own-network: no: in network mode host it has its host's [virtoll list networks]" in out


def test_needs_given_one_by_one_are_all_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last alone was looked at, and what had no kernel of its own was advised."""
    made = write_run(tmp_path / "run", SMALL)
    code, out, _ = run(capsys, str(made), "--need", "own-kernel", "--need", "resize,own-distribution")
    assert code == 1
    assert "needs: own-kernel, resize, own-distribution" in out


def test_a_need_that_is_nearly_right_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(tmp_path / "run", SMALL)
    code, _, err = run(capsys, str(made), "--need", "own_kernel")
    assert code == 2
    assert "there is no feature 'own_kernel'; did you mean 'own-kernel'?" in err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_needs(shell: str) -> None:
    script = completion(make_parser(), shell)
    assert "_virtoll_features" in script
    assert "_virtoll_platforms" in script
    assert " ".join(FEATURES) in script


def test_an_arm_that_no_option_makes_is_given_no_command(tmp_path: Path) -> None:
    """`--platforms docker` measured docker+routed once more, and never what was asked for."""
    lxcfs = Arm(label="lxc+routed (lxcfs)", platform="lxc", network="routed", settings={"lxcfs": True})
    one = write_run(tmp_path / "one", replace(SMALL, blocks=2, arms=(NATIVE, DOCKER)))
    several = replace(SMALL, arms=(NATIVE, DOCKER, PUBLISHED, LXC, lxcfs), truth={**SMALL.truth, lxcfs.label: 0.9})
    other = write_run(tmp_path / "other", replace(several, blocks=3, seed=2))
    commands = {
        told.what: told.command
        for told in untold(advise([find(one), find(other)], ["p99 < 500 ms"], [], KNOWN))
        if told.why == "it is not in this run"
    }
    assert commands == {
        "p99 < 500 ms of docker+published in one": "",
        "p99 < 500 ms of lxc+routed in one": "virtoll run proxy --platforms lxc",
        "p99 < 500 ms of lxc+routed (lxcfs) in one": "",
    }


def test_an_arm_below_the_least_is_not_shown_to_fit_by_another_run_alone(tmp_path: Path) -> None:
    """It carried nothing in any block of the search, and by a run of a proxy, as fast as native, it was to be taken."""
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("most = 100000", "most = 1000")
    search = advice_examples.search_of(tmp_path / "search", text)
    for block in (1, 2):
        altered(search, ended_below("docker", block, 100.0))
    advice = advise([find(write_run(tmp_path / "proxy", SMALL)), find(search)], [], [], KNOWN)
    assert ranks(advice)[DOCKER.label][0] == "open"
    assert "search: it is not shown to meet the objective at anything that was tried" in as_text(advice)


def test_of_one_search_in_vain_it_is_told_that_it_was_one(tmp_path: Path) -> None:
    """11 of 12 deployments may show the contrary."""
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("most = 100000", "most = 1000")
    search = altered(advice_examples.search_of(tmp_path / "search", text), ended_below("docker", 1, 100.0))
    told = "search: it is not shown to meet the objective at anything that was tried in 1 of 2 deployments"
    assert told in as_text(of(search))


def test_a_native_below_the_least_is_not_shown_to_fit(tmp_path: Path) -> None:
    """Nor is any other arm. It was to be taken, "nothing else is shown to fit"."""
    text = SEARCH.replace("blocks = 6", "blocks = 2").replace("least = 100", "least = 50000")
    advice = of(advice_examples.search_of(tmp_path / "run", text))
    told = "is not shown to meet the objective at anything that was tried in run."
    assert answer(advice) == f"Nothing is shown to fit. native+host {told} docker+routed {told}"
    assert ranks(advice) == {NATIVE.label: ("open", 1), DOCKER.label: ("open", 1)}
