"""Service objectives: how they are written, what a window says of them, and that failures are worse than any value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from virtoll.loads.viewers import ViewersLoad
from virtoll.record.knee import Objective
from virtoll.record.model import JOINED, Drain, Events, Quantity, Window
from virtoll.record.objective import missed, parse, values_of

QUANTITIES = ViewersLoad().quantities


def window(
    completed: int, failed: int = 0, values: dict[str, float] | None = None, told_ns: dict[str, int] | None = None
) -> Window:
    events = Events(
        intended=completed + failed,
        offered=completed + failed,
        completed=completed,
        failures={"timeout": failed} if failed else {},
        censored=failed,
        percentiles_ns=told_ns or {},
    )
    return Window(start_ns=0, duration_ns=10**9, work=completed, values=values or {}, events={"request": events})


def value(text: str, of: Window, histogram: list[tuple[int, int, int]] | None) -> float | None:
    objective = parse(text, QUANTITIES)
    return values_of([objective], of, "request", histogram)[objective.metric]


@pytest.mark.parametrize(
    ("text", "metric", "better", "bound", "unit"),
    [
        ("latency_p99 < 20 ms", "latency_p99_ms", "less", 20, "ms"),
        ("latency_p99_ms<20ms", "latency_p99_ms", "less", 20, "ms"),
        ("latency_p999 < 0.5 s", "latency_p999_ms", "less", 500, "ms"),
        ("latency_max < 2 m", "latency_max_ms", "less", 120_000, "ms"),
        ("failed < 0.1 %", "failed_percent", "less", 0.1, "%"),
        ("stalled_percent < 0.1", "stalled_percent", "less", 0.1, "%"),
        ("stalled < 0.1 %", "stalled_percent", "less", 0.1, "%"),
        ("watching > 99 %", "watching_percent", "more", 99, "%"),
        ("stalls < 1 1/h", "stalls_per_hour", "less", 1, "1/h"),
        ("goodput > 0.8 Mbit/s", "goodput_mbit_per_s", "more", 0.8, "Mbit/s"),
    ],
)
def test_an_objective_is_written_as_people_write_it(
    text: str, metric: str, better: str, bound: float, unit: str
) -> None:
    found = parse(text, QUANTITIES)
    assert (found.metric, found.better, found.bound, found.unit, found.text) == (metric, better, bound, unit, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " " * 10**6,
        "latency_p99",
        "latency_p99 20 ms",
        "< 20 ms",
        "latency_p99 < ms",
        "20 ms > latency_p99",
        "a\nb < 1",
    ],
)
def test_what_is_no_objective_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="is no objective: write it so"):
        parse(text, {})


@given(some.text(max_size=60))
def test_any_text_is_an_objective_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(parse(text, QUANTITIES), Objective)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is right


def test_a_bound_in_another_unit_is_not_the_same_number_in_the_metrics_own() -> None:
    """0.8 Gbit/s was told to be written as 0.8 Mbit/s."""
    with pytest.raises(ValueError, match="goodput_mbit_per_s is in Mbit/s, and not in Gbit/s") as told:
        parse("goodput > 0.8 Gbit/s", QUANTITIES)
    assert "0.8 Mbit/s" not in str(told.value)


@pytest.mark.parametrize("text", ["latency_p99 < 0 ms", "failed < 0 %", "stalled < -1 %"])
def test_what_no_window_could_meet_is_no_objective(text: str) -> None:
    """Each arm's knee would be told as below the least."""
    with pytest.raises(ValueError, match="so no window could meet it"):
        parse(text, QUANTITIES)


def test_a_bound_without_end_is_no_objective() -> None:
    """A record could not hold it."""
    with pytest.raises(ValueError, match="is no objective"):
        parse(f"failed < {'9' * 400} %", {})


def test_a_time_is_written_in_any_unit_of_time() -> None:
    of_siege = {"response_time": Quantity("Response time", "s", "less")}
    bounds = {parse(f"response_time < {bound}", of_siege).bound for bound in ("20 ms", "0.02 s", "0.02")}
    assert bounds == {0.02}


def test_a_quantity_that_nobody_judges_is_no_objective() -> None:
    with pytest.raises(ValueError, match="there is no 'colour' here"):
        parse("colour < 3", {"colour": Quantity("Colour", "", None)})


def test_a_percentile_is_that_of_all_that_was_asked_for() -> None:
    """99 of 100 are fast: one failure still lies beyond p99; with two it lies among them."""
    fast = [(0, 10**6, 99)]
    assert value("latency_p99 < 2 ms", window(99, 1), fast) == 1.0
    assert value("latency_p99 < 2 ms", window(99, 2), fast) is None
    assert value("latency_max < 2 ms", window(99, 1), fast) is None
    assert value("failed < 2 %", window(99, 1), fast) == 1.0


@given(
    latencies=some.lists(some.integers(1, 50), max_size=60),
    failed=some.integers(0, 20),
    bound=some.integers(1, 50),
    label=some.sampled_from(["p50", "p90", "p99", "max"]),
)
def test_it_is_met_where_no_more_than_its_share_takes_longer(
    latencies: list[int], failed: int, bound: int, label: str
) -> None:
    """The rule in words, against the rule as it is computed."""
    total = len(latencies) + failed
    if not total:
        return
    histogram = [((ms - 1) * 10**6, ms * 10**6, latencies.count(ms)) for ms in sorted(set(latencies))]
    objective = parse(f"latency_{label} < {bound} ms", {})
    told = values_of([objective], window(len(latencies), failed), "request", histogram)
    longer = sum(ms >= bound for ms in latencies) + failed
    allowed = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}[label]
    assert (not missed([objective], told)) == (total - longer >= math.ceil(round(allowed * total, 6)))


def test_an_instruments_own_percentile_does_where_nothing_failed() -> None:
    assert value("latency_p99 < 2 ms", window(9, 0, told_ns={"p99": 10**6}), None) == 1.0
    with pytest.raises(ValueError, match="latency_p99_ms was not told"):
        value("latency_p99 < 2 ms", window(99, 1, told_ns={"p99": 10**6}), None)
    with pytest.raises(ValueError, match="latency_p90_ms was not told"):
        value("latency_p90 < 2 ms", window(9, 0, told_ns={"p99": 10**6}), None)


def test_a_percentile_of_an_instrument_s_own_is_missed_where_more_failed_than_lie_beyond_it() -> None:
    """Wherever it has them: each search by ab failed at the first overload of which something was refused."""
    assert value("latency_p99 < 2 ms", window(98, 2, told_ns={"p99": 10**6}), None) is None
    assert value("latency_max < 2 ms", window(99, 1, told_ns={"p99": 10**6}), None) is None
    assert value("latency_p50 < 2 ms", window(0, 9), None) is None


def test_a_loads_own_quantity_is_its_windows() -> None:
    assert value("stalled < 1 %", window(9, 0, {"stalled_percent": 0.5}), None) == 0.5
    with pytest.raises(ValueError, match="stalled_percent was not told"):
        value("stalled < 1 %", window(9), None)
    assert value("stalled < 1 %", window(0, 5), None) is None, "nobody began to watch: worse than any stall"
    never = window(9).model_copy(update={"censored": ["stalled_percent"]})
    assert value("stalled < 1 %", never, None) is None, "it is among what never came"


def test_a_quantity_of_the_load_s_own_may_be_called_as_what_others_tell() -> None:
    """A program that prints its p99: that was looked for among the requests, of which it tells nothing, and the search
    failed at its first window.
    """
    own = {"latency_p99_ms": Quantity("P99", "ms", "less"), "failed_percent": Quantity("Failed", "%", "less")}
    objectives = [parse(text, own) for text in ("latency_p99 < 20 ms", "failed < 1 %")]
    told = {"latency_p99_ms": 30.0, "failed_percent": 0.5}
    silent = Window(start_ns=0, duration_ns=10**9, work=5, values=told)
    assert values_of(objectives, silent, "request", None) == told
    assert values_of(objectives, window(0, 5, told), "request", None) == told


def test_a_quantity_of_the_load_s_own_that_is_better_neither_way_hides_what_others_tell() -> None:
    """The check took it for the share of what failed, and each window was judged by the program's own figure."""
    own = {"failed_percent": Quantity("Failed", "%", None)}
    with pytest.raises(ValueError, match="there is no 'failed' here"):
        parse("failed < 1 %", own)
    assert parse("latency_p99 < 20 ms", own).metric == "latency_p99_ms"


@pytest.mark.parametrize(
    ("work", "body_bytes", "under_way", "told"),
    [(0, 0, 2, True), (0, 9, 2, True), (9, 0, 2, True), (9, 9, 2, False), (0, 0, 0, False)],
    ids=["frozen", "nobody plays yet", "played from the buffer", "something came", "nobody waits for anything"],
)
def test_where_somebody_waited_and_nothing_came_is_worse_than_any(
    work: int, body_bytes: int, under_way: int, told: bool
) -> None:
    """A service that froze and came back: what was asked for in the window was answered after it."""
    frozen = window(completed=2).model_copy(update={"work": work, "counts": {"body_bytes": body_bytes}})
    drain = Drain(under_way=under_way, completed=under_way, end_ns=2 * 10**9) if under_way else None
    events = frozen.events["request"].model_copy(update={"drain": drain})
    frozen = frozen.model_copy(update={"events": {"request": events}})
    if told:
        assert value("stalled < 1 %", frozen, []) is None
    else:
        with pytest.raises(ValueError, match="stalled_percent was not told"):
            value("stalled < 1 %", frozen, [])


def test_where_all_are_in_and_nothing_comes_is_worse_than_any() -> None:
    """The search of a server that let all in and sent nothing ended in an error."""
    frozen = window(completed=2).model_copy(update={"work": 0, "counts": {JOINED: 2}})
    assert value("stalled < 1 %", frozen, None) is None
    with pytest.raises(ValueError, match="was not told"):
        value("stalled < 1 %", frozen.model_copy(update={"counts": {JOINED: 0}}), None)


def test_of_nothing_nothing_is_told() -> None:
    with pytest.raises(ValueError, match="nothing was asked for in it"):
        value("failed < 1 %", window(0), [])
    silent = Window(start_ns=0, duration_ns=10**9, work=5)
    with pytest.raises(ValueError, match="does not tell what became of what it asked for"):
        value("failed < 1 %", silent, [])


def test_a_bound_is_met_below_it_and_not_at_it() -> None:
    objective = parse("latency_p99 < 1 ms", {})
    assert objective.is_met(0.999)
    assert not objective.is_met(1.0)
    assert not objective.is_met(None), "what failed took longer than anything"


def test_the_share_that_failed_is_one_of_the_lead_in_too() -> None:
    of = window(completed=99, failed=1)
    early = of.events["request"].model_copy(update={"early": 100, "early_failures": {"timeout": 3}})
    assert value("failed < 1 %", of.model_copy(update={"events": {"request": early}}), []) == 2
    hung = early.model_copy(update={"completed": 0, "censored": 0, "failures": {}, "early_failures": {"timeout": 100}})
    assert value("failed < 1 %", of.model_copy(update={"asked_ns": 0, "events": {"request": hung}}), []) == 100
    assert value("latency_p50 < 1 ms", of.model_copy(update={"asked_ns": 0, "events": {"request": hung}}), []) is None
