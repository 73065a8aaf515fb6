"""Factors that something else in the study overrules: all of their levels would be one and the same treatment."""

from __future__ import annotations

import pytest

from virtoll.catalogue import catalogue
from virtoll.errors import StudyError
from virtoll.study.file import read_study
from virtoll.study.model import Study

RATES = '"load.rate" = ["100 /s", "200 /s"]\n'
ARRIVALS = '"load.arrival" = ["poisson", "constant"]\n'
LENGTHS = '"load.time_limit" = ["1 s", "2 s"]\n'
AMOUNTS = '"load.requests" = [100, 1000]\n'
ROUNDS, TURNS = '"rotation.rounds" = [8, 16]\n', '"rotation.window" = ["1 s", "2 s"]\n'
LOOPS = '"load.loop" = ["closed", "open"]\n"load.connections" = [1, 9]\n'

OPEN = 'loop = "open"\nconnections = 50\n'
IN_TURN = 'design = "rotation"\n'
SEARCHED = '[knee]\nobjective = ["latency_p99 < 20 ms"]\n'
SERVERS = """\
[servers.lean.service]
name = "nginx"
[servers.lean.load]
name = "http"
[servers.broad.service]
name = "apache"
[servers.broad.load]
name = "http"
"""


def of(load: str, settings: str = "") -> str:
    return f'[service]\nname = "nginx"\n[load]\nname = "{load}"\n{settings}'


def of_a_program(loop: str, word: str, seed: str = "fill") -> str:
    words = f'run = ["ask", "{word}"]\nseed = ["{seed}"]\n'
    return of("command", f"loop = \"{loop}\"\n{words}work = {{ read = '(\\d+) done' }}\n")


HTTP = of("http")


def text(factors: str, tables: str = HTTP, top: str = "") -> str:
    heading = f'name = "my"\nnoise_floor = false\nblocks = 2\n{top}'
    return f'{heading}[factors]\n{factors}{tables}[[arms]]\nplatform = "native"\n'


def read(written: str) -> Study:
    return read_study(written, "my.toml", catalogue())


@pytest.mark.parametrize(
    ("written", "told", "remedy"),
    [
        (text(RATES), "no load is in open loop", 'write loop = "open" in [load]'),
        (text(ARRIVALS), "no load is in open loop", 'write loop = "open" in [load]'),
        (text(f'{RATES}"load.loop" = ["closed"]\n', of("http", OPEN)), "no load is in open loop", 'loop = "open"'),
        (text(RATES, SERVERS), "no load is in open loop", 'write loop = "open" in [load]'),
        (text(RATES, of_a_program("closed", "{users}")), "no load is in open loop", 'write loop = "open" in [load]'),
        (text(ARRIVALS, HTTP + SEARCHED), "no load is in open loop", 'write loop = "open" in [load]'),
        (text(AMOUNTS, of("http", OPEN)), "no load is in closed loop", "vary load.time_limit"),
        (text(LENGTHS, top=IN_TURN), "windows in turn are as [rotation] says", "vary rotation.window"),
        (text(AMOUNTS, top=IN_TURN), "windows in turn are as [rotation] says", "vary rotation.window"),
        (text(LENGTHS, of_a_program("open", "{seconds}"), IN_TURN), "windows in turn", "vary rotation.window"),
        (text(LENGTHS, HTTP + SEARCHED), "windows of a search are as [knee] says", "vary knee.window"),
        (text(AMOUNTS, HTTP + SEARCHED), "windows of a search are as [knee] says", "vary knee.window"),
        (text(AMOUNTS, of("ab") + SEARCHED), "windows of a search are as [knee] says", "vary knee.window"),
        (text(LENGTHS, HTTP + SEARCHED, IN_TURN), "windows of a search are as [knee] says", "vary knee.window"),
        (text(ROUNDS, HTTP + SEARCHED, IN_TURN), "windows of a search are as [knee] says", "vary knee.window"),
        (text(TURNS, HTTP + SEARCHED, IN_TURN), "windows of a search are as [knee] says", "vary knee.window"),
    ],
)
def test_a_factor_that_is_overruled_is_refused_where_it_stands(written: str, told: str, remedy: str) -> None:
    """Else the report would have a condition of 5000/s, of a load that was never at a rate."""
    with pytest.raises(StudyError) as caught:
        read(written)
    (problem,) = caught.value.problems
    factor, _, why = problem.what.partition(" would change nothing: ")
    assert told in why
    assert remedy in problem.remedy
    assert factor.removesuffix("_per_s").removesuffix("_ns") in written.splitlines()[int(problem.where[8:]) - 1]


@pytest.mark.parametrize(
    "written",
    [
        text(RATES + LOOPS),
        text(ARRIVALS, of("http", OPEN)),
        text(RATES, f"[load]\n{OPEN}{SERVERS}"),
        text(RATES, SERVERS.replace('"http"\n', f'"http"\n{OPEN}', 1)),
        text(RATES, of_a_program("closed", "{rate}")),
        text(ARRIVALS, of("viewers")),
        text(AMOUNTS + LOOPS),
        text(AMOUNTS, of("ab")),
        text(LENGTHS, of_a_program("closed", "{users}", "{seconds}"), IN_TURN),
        text('"rotation.lead_in" = ["1 s", "2 s"]\n', HTTP + SEARCHED, IN_TURN),
        text(ROUNDS + TURNS, top=IN_TURN),
        text(LENGTHS),
    ],
)
def test_a_factor_that_tells_under_any_condition_is_accepted(written: str) -> None:
    assert read(written).factors


RATE = 'rate = "100 /s"\n'


@pytest.mark.parametrize(
    "written",
    [
        text("", of("http", RATE)),
        text("", of("dnsperf", f'loop = "closed"\n{RATE}').replace("nginx", "unbound")),
        text("", f"[load]\n{RATE}{SERVERS}"),
        text("", SERVERS.replace('"http"\n', f'"http"\n{RATE}', 1)),
    ],
)
def test_a_rate_that_no_load_keeps_to_is_refused_where_it_stands(written: str) -> None:
    """Its user would take what was measured as fast as it was answered for what a hundred a second cost."""
    with pytest.raises(StudyError) as caught:
        read(written)
    (problem,) = caught.value.problems
    assert "keeps to no rate" in problem.what
    assert 'write loop = "open" in [load]' in problem.remedy
    assert written.splitlines()[int(problem.where[8:]) - 1].startswith("rate")


@pytest.mark.parametrize(
    "written",
    [
        text("", of("http", OPEN + RATE)),
        text(LOOPS, of("http", RATE)),
        text("", of_a_program("closed", "{rate}").replace("seed", f"{RATE}seed")),
        text("", f"[load]\n{RATE}" + SERVERS.replace('"http"\n', f'"http"\n{OPEN}', 1)),
    ],
)
def test_a_rate_that_a_load_keeps_to_is_accepted(written: str) -> None:
    assert read(written)


def test_a_study_without_factors_has_rates_too() -> None:
    alone = text("", of("http", RATE)).replace("[factors]\n", "")
    with pytest.raises(StudyError, match="keeps to no rate"):
        read(alone)
    assert read(text("", of("http", OPEN + RATE)).replace("[factors]\n", "")).base["load.rate_per_s"] == 100


def test_a_quick_study_may_ask_in_closed_loop_what_the_whole_one_asks_at_a_rate() -> None:
    written = text("", of("http", OPEN + RATE)) + '[quick.load]\nloop = "closed"\n'
    assert read_study(written, "my.toml", catalogue(), quick=True).base["load.loop"] == "closed"
