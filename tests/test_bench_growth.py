"""bench.growth: the exponent of known data, its options, its plots; and that what it times is what is meant."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench.__main__ as bench_main
from bench import growth
from bench._verbs import Cost, reached
from bench.generator import Cell
from bench.generator import Reading as Measured
from bench.growing import arms, curves, generator
from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort
from bench.growing.report import write
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure_all
from virtoll.catalogue import catalogue
from virtoll.study.file import read_study

SIZES = (1, 10, 100, 1000, 10_000)


def readings(power: float, *, fixed: float = 0.0, noise: float = 0.0, rounds: int = 3) -> list[Reading]:
    drawn = random.Random(1)
    return [Reading(x, (fixed + 3 * x**power) * drawn.lognormvariate(0, noise)) for x in SIZES for _ in range(rounds)]


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    found = curves.exponent(readings(power))
    assert found.value == pytest.approx(power)
    assert found.half_width == pytest.approx(0, abs=1e-6)
    assert found.n == 9


def test_only_the_upper_half_decides() -> None:
    told = readings(1.0, fixed=30)  # flat up to 10, linear from 100 on
    assert {reading.x for reading in curves.upper_half(told)} == {100, 1000, 10_000}
    assert curves.exponent(told).value == pytest.approx(1, abs=0.03)
    assert {reading.x for reading in curves.upper_half(told[:6])} == {1, 10}


def test_the_interval_is_the_slopes() -> None:
    # By hand: two values of log x, 0 and 1, twice each; residuals of a tenth. Error of the slope: sqrt(0.04 / 2 / 1).
    told = [Reading(math.exp(x), math.exp(x + error)) for x in (0, 1) for error in (-0.1, 0.1)]
    found = curves.exponent(told)
    assert found.value == pytest.approx(1)
    assert found.half_width == pytest.approx(4.3027 * math.sqrt(0.02), rel=1e-4)  # t of two degrees of freedom, 97.5 %


def test_what_has_no_exponent_is_refused() -> None:
    with pytest.raises(ValueError, match="two values of x"):
        curves.exponent([Reading(3, 1), Reading(3, 2)])
    with pytest.raises(ValueError, match="positive"):
        curves.exponent([Reading(1, 1), Reading(2, 0)])
    two = curves.exponent([Reading(1, 1), Reading(2, 4)])
    assert two.value == pytest.approx(2)
    assert two.half_width is None


@pytest.mark.parametrize(
    ("value", "half", "most", "word"),
    [
        (1.05, 0.01, 1, "reached"),
        (-0.3, 0.01, 0, "reached"),
        (1.2, 0.1, 1, "MISSED"),
        (1.2, 0.3, 1, "CANNOT TELL"),
        (1.2, None, 1, "CANNOT TELL"),
    ],
)
def test_verdicts(value: float, half: float | None, most: float, word: str) -> None:
    low, high = (None, None) if half is None else (value - half, value + half)
    assert curves.verdict(Estimate(value, low, high, 0.95, "", 9, ""), most) == word


def growth_of(power: float) -> Growth:
    both = {"ours": readings(power, noise=0.1), "wrk & co": readings(0.5)}
    panels = [Panel("CPU, ms", both, most=1, told=["10k not measured: <files>"]), Panel("rate", both)]
    return Growth("shape", "How it grows", "connections", panels)


def test_the_words_say_medians_exponents_and_what_was_left_out() -> None:
    text = "\n".join(curves.lines(growth_of(2)))
    assert "target <= 1: MISSED" in text
    assert text.count("target") == 2, "the rate has none"
    assert "10k not measured: <files>" in text
    assert not curves.reached(growth_of(2))
    assert curves.reached(growth_of(1))


def test_one_size_alone_is_told_and_drawn_and_reaches_nothing() -> None:
    alone = Growth("one", "One", "arms", [Panel("ms", {"lxc": [Reading(4, 7.0)]}, most=0)])
    assert "one size alone has no exponent" in "\n".join(curves.lines(alone))
    assert not curves.reached(alone)
    assert curves.drawn(alone).startswith("<svg")


def test_a_plot_is_an_svg_with_its_axes_and_exponents() -> None:
    root = ET.fromstring(curves.drawn(growth_of(1)))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"connections", "CPU, ms", "rate"} <= text
    assert any(words is not None and words.startswith("wrk & co: exponent 0.50") for words in text)


def test_what_goes_to_programs_holds_every_reading() -> None:
    told = curves.as_json(growth_of(2))
    ours = told["panels"][0]["series"]["ours"]
    assert (len(ours["readings"]), ours["verdict"]) == (len(SIZES) * 3, "MISSED")


# -- options ------------------------------------------------------------------------------------------------------


def test_options() -> None:
    assert growth.options([]).only == list(growth.GROWTHS)
    given = growth.options(["--only", "report", "--only", "arms", "--quick"])
    assert (given.only, given.quick, given.rounds) == (["arms", "report"], True, 3)
    for wrong in (["--only", "nothing"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            growth.options(wrong)


def test_each_round_has_every_size_in_an_order_of_its_own() -> None:
    drawn = Effort(rounds=5).shuffled(range(8))
    orders = [[size for number, size in drawn if number == each] for each in range(1, 6)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


def test_main_prints_draws_and_tells_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for power, code in ((1, 0), (2, 1)):
        monkeypatch.setattr(growth, "measured", lambda names, effort, power=power: [growth_of(power)])
        assert growth.main(["--plots", str(tmp_path), "--json", str(tmp_path / "all.json")]) == code
    assert "How it grows" in capsys.readouterr().out
    assert (tmp_path / "all.json").stat().st_size > 0
    ET.parse(tmp_path / "growth-shape.svg")


def test_the_page_shows_the_plots() -> None:
    outcome = bench_main.Outcome("growth", "How", "text", 0, ("growth-arms.svg",))
    assert "![growth-arms](growth-arms.svg)" in bench_main.document([outcome])
    assert "growth" in bench_main.names()
    assert set(bench_main.DRAWS) <= set(bench_main.names())


# -- what is measured ---------------------------------------------------------------------------------------------


def test_arms_come_in_turn_under_names_of_their_own() -> None:
    kinds = read_study(arms._STUDY, "growth.toml", catalogue()).arms
    many = [entry.arm for entry in arms.many(kinds, 40)]
    assert len({arm.label for arm in many}) == 40
    assert [arm.platform for arm in many[:4]] == ["native", "docker", "lxc", "native"]
    assert [arm.role for arm in many].count("baseline") == 1


def test_the_reports_run_is_whole_for_the_analysis(tmp_path: Path) -> None:
    write(tmp_path / "run", 100, 400)
    trials = measure_all(read_run(tmp_path / "run"))
    assert len(trials) == 100
    for trial in trials:
        assert {"cpu_s_per_1000", "cpu_s_per_1000_inside", "memory_peak_mib", "latency_p99_ms"} <= set(trial.values)
    rows = sum(len(series.t_ns) for series in read_run(tmp_path / "run").samples("b01-t001", "outside").values())
    assert rows == 400 * 8 // 10


def test_the_generator_is_compared_within_rounds_and_its_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, cell: Cell, *_rest: object) -> Measured | None:
        if cell.connections == 100 and name == "wrk":
            return None
        return Measured(1000.0, 10.0 if name == "wrk" else 5.0 * cell.connections)

    monkeypatch.setattr(generator, "run", run)
    monkeypatch.setattr(generator, "serving", lambda _name: nullcontext(SimpleNamespace(client=None, offer=None)))
    (found,) = generator.measure(Effort(quick=True, rounds=2))
    cpu, ratio, rate = found.panels
    assert {(reading.x, reading.cost) for reading in ratio.series["ratio"]} == {(1, 0.5), (10, 5.0)}
    assert len(cpu.series["virtoll-load"]) == len(rate.series["virtoll-load"]) == 6
    assert sorted(cpu.told) == [f"round {number}: wrk failed with 100 connections" for number in (1, 2)]
    assert not curves.reached(found), "a ratio that grows tenfold a decade"


def test_sizes_beyond_the_limit_of_open_files_are_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "most_files", lambda: 50)
    monkeypatch.setattr(generator, "run", lambda *_: Measured(1000.0, 10.0))
    monkeypatch.setattr(generator, "serving", lambda _name: nullcontext(SimpleNamespace(client=None, offer=None)))
    (found,) = generator.measure(Effort(quick=True, rounds=1))
    assert list(found.panels[0].told) == ["100 not measured: a process may open 50 files (ulimit -Hn)"]
    assert {reading.x for reading in found.panels[0].series["wrk"]} == {1, 10}


def test_who_waits_for_its_own_helper_is_slow_and_not_disturbed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not reached("a verb", [Cost(wall_s=5.0, own_s=1.0, helpers_s=4.8, peak_mib=1.0)], 3.0)
    assert capsys.readouterr().out.endswith("MISSED\n")
    assert not reached("a verb", [Cost(wall_s=9.0, own_s=1.0, helpers_s=4.8, peak_mib=1.0)], 3.0)
    assert "CANNOT TELL" in capsys.readouterr().out
    assert not reached("a verb", [Cost(wall_s=5.0, own_s=1.0, helpers_s=1.0, peak_mib=1.0)], 3.0)
    assert "CANNOT TELL" in capsys.readouterr().out
    assert reached("a verb", [Cost(wall_s=2.9, own_s=1.0, helpers_s=1.0, peak_mib=1.0)], 3.0)
