"""stress-ng in the place of the clock probe: what it really printed, and the tool itself where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from network_place import network_place
from virtoll.errors import TrialError
from virtoll.instruments.stress_ng import StressNg, command, named, parse
from virtoll.probes.base import Timed
from virtoll.probes.clock import Clock
from virtoll.probes.unix import Copied

FIXTURES = Path(__file__).parent / "fixtures" / "instruments" / "stress_ng"


def printed(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


def test_a_reading_is_the_time_of_a_call_and_how_many_there_were() -> None:
    reading = parse(printed("vdso"))
    assert (reading.read_ns, reading.calls, reading.duration_ns) == (25.05, 38179275, 1_100_000_000)
    assert named(printed("version")) == "stress-ng 0.15.06"


def test_what_is_no_report_is_told() -> None:
    for text in ("", printed("refused"), printed("version")):
        with pytest.raises(TrialError, match="could not be read"):
            parse(text)
    with pytest.raises(TrialError, match="could not be read"):
        named(printed("vdso"))


def test_it_stands_for_the_clock_alone() -> None:
    assert StressNg().stands_for("clock", Timed())
    assert not StressNg().stands_for("unix-pipe", Copied())
    assert command(2)[-3:] == ["--timeout", "2s", "--metrics"]


@pytest.mark.skipif(shutil.which("stress-ng") is None, reason="apt-get install stress-ng")
def test_it_measures_the_clock_window_for_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with network_place(tmp_path, monkeypatch) as place:
        result = StressNg().run(place, "clock", Timed(windows=1))
    (window,) = result.windows
    assert result.instrument.startswith("stress-ng ")
    assert set(window.values) <= set(Clock.quantities)
    assert window.values[Clock.headline] > 0
    assert window.work > 0
