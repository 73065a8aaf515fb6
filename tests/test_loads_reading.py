"""How numbers are found in what programs print: pgbench's and dnsperf's real reports, and anything at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzzing import JSON, ODD, edited, fuzzed
from virtoll.loads.dnsperf import Dnsperf, DnsperfSettings
from virtoll.loads.pgbench import Pgbench
from virtoll.loads.program import Figures
from virtoll.loads.reading import Reading

FIXTURES = Path(__file__).parent / "fixtures" / "loads"


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


# -- a reading --------------------------------------------------------------------------------------------

FIO = json.dumps({"jobs": [{"read": {"iops": 12.5}}, {"read": {"iops": 7}}], "ok": True, "big": 10**400, "word": "x"})
ROWS = '"test","rps","p99"\n"SET","1000.5","0.4"\n"GET","2000","0.3"\nthe end\n'


@pytest.mark.parametrize(
    ("reading", "output", "number"),
    [
        (Reading(read=r"done: (\d+)"), "done: 3\nwell done: 17\n", 17),  # of several the last
        (Reading(read=r"^total (.*)$"), "subtotal 5\ntotal 1,234,567.5\n", 1234567.5),
        (Reading(read=r"at ([\d.e+]+)/s"), "at 1.5e+03/s", 1500),
        (Reading(read=r"took (\d+) us", times=0.001), "took 1500 us", 1.5),
        (Reading(json="jobs[0].read.iops"), FIO, 12.5),
        (Reading(json="jobs[1].read.iops"), f"fio: warning [1]\n{FIO}\nbye", 7),
        (Reading(json="n"), '[INFO] begins\n{"n": 1}\n{"n": 2}\n{"other": 3}\n', 2),
        (Reading(json="n"), 'result: {"n": "8"}', 8),
        (Reading(csv="rps"), ROWS, 2000),
        (Reading(csv="p99", times=1000), f"a banner, of words\n{ROWS}", 300),
    ],
)
def test_a_number_is_found(reading: Reading, output: str, number: float) -> None:
    assert reading.flaw == ""
    assert reading.of(output) == pytest.approx(number)


@pytest.mark.parametrize(
    ("reading", "output", "said"),
    [
        (Reading(read=r"done: (\d+)"), "nothing of it", r"nothing matches read = 'done: (\\d+)'"),
        (Reading(read=r"done: (\S*)"), "done: many", r"matches is 'many', which is no number"),
        (Reading(read=r"done: (\S*)"), "done: ", "matches is '', which is no number"),
        (Reading(read=r"done: (\S*)"), "done: nan", "which is no number"),
        (Reading(read=r"done: (\S*)"), "done: 1e999", "which is no number"),
        (Reading(read=r"(\d+)", times=1e10), "9" * 15, "which is no number"),
        (Reading(json="n"), "no document", "there is no JSON in what it printed"),
        (Reading(json="n"), '{"n": 1', "what it printed is no JSON"),
        (Reading(json="n"), '{"n": NaN}', "what it printed is no JSON"),
        (Reading(json="n"), "[" * 10_000, "what it printed is no JSON"),
        (Reading(json="jobs[2].read.iops"), FIO, "there is no jobs[2].read.iops in its JSON"),
        (Reading(json="word.n"), FIO, "there is no word.n in its JSON"),
        (Reading(json="ok"), FIO, "ok in its JSON is 'True', which is no number"),
        (Reading(json="big"), FIO, "which is no number"),
        (Reading(json="jobs"), FIO, "jobs in its JSON is \"[{'read'"),
        (Reading(csv="latency"), ROWS, "there is no column 'latency' in what it printed"),
        (Reading(csv="rps"), ROWS.splitlines()[0], "there is no row below column 'rps' of its CSV"),
        (Reading(csv="test"), ROWS, "column 'test' of its CSV is 'GET', which is no number"),
        (Reading(csv="rps"), f'rps\n"{"9" * 200_000}"', "what it printed is no CSV: field larger"),
    ],
)
def test_a_number_that_cannot_be_read_is_told_with_what_was_looked_for(
    reading: Reading, output: str, said: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are looked at below
        reading.of(output)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("reading", "flaw"),
    [
        (Reading(), "give one of read (a regular expression), json (a path) and csv (a column)"),
        (Reading(read="(1)", csv="rps"), "give one of read"),
        (Reading(read="(1"), "read = '(1' is no regular expression: missing )"),
        (Reading(read=r"\d+"), r"read = '\\d+' has 0 groups: put one around the number"),
        (Reading(read=r"(\d+)/(\d+)"), "has 2 groups"),
        (Reading(json="jobs[x]"), "json = 'jobs[x]' is no path: write a.b[0].c"),
        (Reading(json="a..b"), "is no path"),
    ],
)
def test_a_reading_that_can_find_nothing_is_told_beforehand(reading: Reading, flaw: str) -> None:
    assert flaw in reading.flaw


# -- pgbench ----------------------------------------------------------------------------------------------


def test_pgbench_closed_loop() -> None:
    assert Pgbench().figures(fixture("pgbench_ok")) == Figures(
        work=161,
        failed=0,
        elapsed_s=161 / 81.740494,
        lead_s=0.067736,
        values={"latency_mean_ms": 24.279, "latency_stddev_ms": 18.344},
    )


def test_pgbench_open_loop() -> None:
    figures = Pgbench().figures(fixture("pgbench_open"))
    assert (figures.work, figures.failed) == (178, 0)
    assert figures.values == {"latency_mean_ms": 9.669, "latency_stddev_ms": 17.595}


@pytest.mark.parametrize("name", ["pgbench_refused", "pgbench_seed"])
def test_what_is_no_report_of_pgbench(name: str) -> None:
    with pytest.raises(ValueError, match="nothing in the report of pgbench matches"):
        Pgbench().figures(fixture(name))


def test_pgbench_that_did_nothing() -> None:
    said = fixture("pgbench_ok").replace("81.740494", "0.000000").replace("processed: 161", "processed: 0")
    with pytest.raises(ValueError, match="no transaction was processed"):
        Pgbench().figures(said)


# -- dnsperf ----------------------------------------------------------------------------------------------


def test_dnsperf() -> None:
    assert Dnsperf().figures(fixture("dnsperf_ok")) == Figures(
        work=32925,
        failed=0,
        elapsed_s=2 + 0.000797,
        values={"latency_mean_ms": 0.000797 * 1000, "latency_stddev_ms": 0.001843 * 1000},
    )


def test_an_answer_that_came_late_does_not_make_dnsperfs_window_longer() -> None:
    """Its run time goes on until then. One latency lies behind it in closed loop, in open loop the longest."""
    said = fixture("dnsperf_ok").replace("2.001193", "3.500000")
    assert Dnsperf().figures(said).elapsed_s == pytest.approx(2 + 0.000797)
    opened = Dnsperf(DnsperfSettings(loop="open")).figures(said)
    assert (opened.asks_s, opened.elapsed_s) == (2, 2 + 0.054708)
    unsaid = said.replace("[Status] Stopping", "[Status] stops")
    assert Dnsperf().figures(unsaid).elapsed_s == 3.5


@pytest.mark.parametrize(
    ("lost", "wrong", "mean_ms"), [(150, 0, (32775 * 0.797 + 150 * 5000) / 32925), (0, 25, 0.797 + 25 * 5000 / 32925)]
)
def test_what_dnsperf_lost_is_slower_than_what_was_answered(lost: int, wrong: int, mean_ms: float) -> None:
    """Its own average is of what came: 0.8 ms, whatever was lost."""
    said = fixture("dnsperf_ok").replace("Queries completed:    32925", f"Queries completed:    {32925 - lost}")
    said = said.replace("Queries lost:         0", f"Queries lost:         {lost}")
    said = said.replace("NOERROR 32925 (100.00%)", f"NOERROR {32925 - lost - wrong} (99.54%), SERVFAIL {wrong} (0.46%)")
    figures = Dnsperf().figures(said)
    assert figures.failed == lost + wrong
    assert figures.values == {"latency_mean_ms": pytest.approx(mean_ms)}


def test_where_dnsperf_had_no_right_answer_there_is_no_latency() -> None:
    said = fixture("dnsperf_ok").replace("NOERROR", "REFUSED")
    assert Dnsperf().figures(said).values == {}


def test_of_one_answer_dnsperf_tells_no_deviation() -> None:
    said = fixture("dnsperf_ok").replace("32925", "1").replace("  Latency StdDev (s):   0.001843\n", "")
    figures = Dnsperf().figures(said)
    assert figures.work == 1
    assert figures.values.keys() == {"latency_mean_ms"}


def test_what_dnsperf_lost_and_what_was_answered_otherwise_than_asked_has_failed() -> None:
    figures = Dnsperf().figures(fixture("dnsperf_lost"))
    assert figures.work == 5281
    assert figures.failed == 58 + 180 + 108


@pytest.mark.parametrize("name", ["dnsperf_refused", "dnsperf_tcp_refused"])
def test_where_dnsperf_had_no_answer_there_is_no_latency(name: str) -> None:
    """Neither its 0, nor that of its connections."""
    figures = Dnsperf().figures(fixture(name))
    assert (figures.work, figures.failed, figures.values) == (0, 2, {})


# -- anything at all --------------------------------------------------------------------------------------

TEXTS = [fixture(path.stem) for path in sorted(FIXTURES.glob("*.txt")) if path.stem.startswith(("pgbench", "dnsperf"))]


def plausible(read: Callable[[str], Any], text: str) -> None:
    """A figure that can be, or a ValueError."""
    try:
        found = read(text)
    except ValueError:
        return
    numbers = [found]
    if isinstance(found, Figures):
        assert found.work >= 0
        assert found.failed is None or found.failed >= 0
        assert found.elapsed_s is None or found.elapsed_s > 0
        numbers = [found.work, found.failed or 0, found.elapsed_s or 0, *found.values.values()]
    assert all(math.isfinite(number) for number in numbers)


@pytest.mark.parametrize("load", [Pgbench(), Dnsperf()], ids=["pgbench", "dnsperf"])
@fuzzed(300)
@example(text=fixture("pgbench_ok").replace("transactions: 0", f"transactions: {'9' * 400}"))
@example(text=fixture("dnsperf_ok").replace("NOERROR 32925", f"SERVFAIL {'9' * 400}"))
@example(text=fixture("dnsperf_ok").replace("2.001193", "0.000000"))
@given(text=edited(TEXTS))
def test_any_report_gives_figures_or_a_reason(load: Pgbench | Dnsperf, text: str) -> None:
    plausible(load.figures, text)


@fuzzed(300)
@given(
    reading=st.builds(
        Reading,
        read=st.sampled_from(["", r"(\S+)", r"latency.* = (.*)", r"(\d+)|x"]),
        json=st.sampled_from(["", "a", "a.b[0].c", "a[0][1]"]),
        csv=st.sampled_from(["", "rps", "a"]),
        times=st.sampled_from([1.0, 1e-9, 1e300]),
    ),
    text=edited([*TEXTS, FIO, ROWS]) | JSON.map(lambda value: json.dumps({"a": value})) | st.sampled_from(ODD),
)
def test_any_output_gives_a_number_or_a_reason(reading: Reading, text: str) -> None:
    if not reading.flaw:
        plausible(reading.of, text)
