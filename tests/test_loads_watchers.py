"""Browsers among participants: what is made of what they tell, and that none of them holds up a window."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import confer_fake
from virtoll import footage
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client, Programs
from virtoll.loads import conversation, participants, watchers
from virtoll.loads.browser import Browser, browsing
from virtoll.loads.cdp import BrowserError, Page
from virtoll.loads.conference import measurement_of
from virtoll.loads.participants import ParticipantsLoad, ParticipantsSettings
from virtoll.loads.sights import QUANTITIES, read, seen, shows_nothing
from virtoll.loads.watchers import Chromium, Watchers, started
from virtoll.offers import JanusRoom, Port
from virtoll.record.model import BROWSER

SECOND = 10**9
ROOM = JanusRoom("198.18.3.10", 8188, Port(20_000, "udp", 20_799), 8088)
FAKE = Path(__file__).parent / "cdp_fake.py"


def stats(at_s: float, frames: int, **more: Any) -> dict[str, Any]:
    told = {
        "id": "IT01",
        "timestamp": 1e12 + at_s * 1e3,
        "framesDecoded": frames,
        "framesDropped": 0,
        "freezeCount": 0,
        "totalFreezesDuration": 0,
        "pauseCount": 0,
        "totalPausesDuration": 0,
        "totalInterFrameDelay": at_s,
        "totalDecodeTime": frames * 0.002,
        "frameWidth": 640 if frames else None,
        "frameHeight": 360 if frames else None,
        "packetsReceived": frames * 10,
        "packetsLost": 0,
        "jitter": 0.003,
    }
    return told | more


def sight(at_s: float, *streams: dict[str, Any] | None, role: str = "webcam", failure: str = "") -> dict[str, Any]:
    told = [{"feed": number, "role": role, "stats": each} for number, each in enumerate(streams, 1)]
    return {"failure": failure, "at_ms": at_s * 1e3, "streams": told}


def between(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, float], dict[str, int]]:
    return seen([(read(before), read(after))])


# -- what they tell ---------------------------------------------------------------------------------------


def test_what_browsers_see_is_told_of_the_time_between_two_tellings() -> None:
    before = sight(1, stats(1, 100), stats(1, 50))
    after = sight(11, stats(11, 250, packetsLost=15, freezeCount=2, totalFreezesDuration=1.5), stats(11, 150))
    values, counts = between(before, after)
    assert values == {
        "browser_webcam_frames_per_s": pytest.approx(250 / 20),
        "browser_webcam_height": 360,
        "browser_frozen_percent": pytest.approx(100 * 1.5 / 20),
        "browser_decode_ms": pytest.approx(2.0),
        "browser_loss_percent": pytest.approx(100 * 15 / 2515),
        "browser_jitter_ms": pytest.approx(3.0),
    }
    assert counts == {
        "browser_streams": 2,
        "browser_lost": 15,
        "browser_frames": 250,
        "browser_dropped": 0,
        "browser_freezes": 2,
        "browser_packets": 2500,
    }
    assert set(values) < set(QUANTITIES)


def test_a_stream_that_shows_nothing_stands_still_all_the_while() -> None:
    stopped = between(sight(0, stats(0, 70)), sight(10, stats(10, 70)))[0]
    never = between(sight(0, None), sight(10, None))[0]
    assert stopped["browser_frozen_percent"] == never["browser_frozen_percent"] == 100
    assert stopped["browser_webcam_frames_per_s"] == 0
    assert "browser_decode_ms" not in stopped, "nothing was decoded"


def test_what_a_stream_stood_still_before_and_after_is_of_the_window_that_it_lay_in() -> None:
    """Tellings at 10 s and 20 s, then at 25 s and 35 s; it moved until 15 s, and from 27 s on."""
    frozen = stats(20, 150, totalInterFrameDelay=15)
    goes_on = stats(35, 230, totalInterFrameDelay=35, totalFreezesDuration=12)
    still = "browser_frozen_percent"
    assert between(sight(10, stats(10, 100)), sight(20, frozen))[0][still] == pytest.approx(50)
    assert between(sight(25, frozen | {"timestamp": 1e12 + 25e3}), sight(35, goes_on))[0][still] == pytest.approx(20)


def test_a_stream_whose_first_picture_comes_late_stood_still_until_then() -> None:
    waited = between(sight(0, stats(0, 0)), sight(10, stats(10, 20, totalInterFrameDelay=2)))[0]
    assert waited["browser_frozen_percent"] == pytest.approx(80)
    packets_alone = between(sight(0, None), sight(10, stats(10, 0, packetsReceived=500)))[0]
    assert packets_alone["browser_frozen_percent"] == 100


def test_a_stream_that_moves_does_not_stand_still_between_two_frames() -> None:
    after = sight(10.15, stats(10.15, 150, totalInterFrameDelay=10))
    assert between(sight(0, stats(0, 100)), after)[0]["browser_frozen_percent"] == 0
    untold = sight(10, stats(10, 150, totalFreezesDuration=1, totalInterFrameDelay=None))
    assert between(sight(0, stats(0, 100)), untold)[0]["browser_frozen_percent"] == 10


def test_a_freeze_that_began_before_is_no_longer_than_the_time_between() -> None:
    after = sight(10, stats(10, 101, totalFreezesDuration=8, totalPausesDuration=30))
    assert between(sight(0, stats(0, 100)), after)[0]["browser_frozen_percent"] == 100


def test_what_came_went_or_began_anew_meanwhile_is_left_out() -> None:
    before = sight(0, stats(0, 100), None, stats(0, 5), stats(0, 10), stats(0, 10))
    after = sight(10, stats(10, 250), stats(10, 3), stats(10, 9, id="IT02"))
    after["streams"].append({"feed": 5, "role": "webcam", "stats": stats(10, 9)})  # by the same name, from 0 on
    assert between(before, after)[1]["browser_streams"] == 1


def test_nothing_is_told_of_nothing() -> None:
    values, counts = seen([])
    assert values == {}
    assert set(counts.values()) == {0}
    assert shows_nothing(read(sight(1, None, stats(1, 0))))
    assert not shows_nothing(read(sight(1, None, stats(1, 1))))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "no object"),
        ([], "no object"),
        ({"failure": "", "at_ms": 1, "streams": {}}, "no list"),
        ({"failure": "", "at_ms": 1, "streams": [None] * 1001}, "no list of at most 1000"),
        ({"failure": 3, "at_ms": 1, "streams": []}, "failure is no text"),
        ({"failure": "x" * 101, "at_ms": 1, "streams": []}, "failure is no text"),
        ({"failure": "", "at_ms": True, "streams": []}, "at_ms is no number"),
        (sight(1, stats(1, -1)), "framesDecoded is not between"),
        (sight(1, stats(1, 1, jitter=math.inf)), "jitter is not between"),
        (sight(1, stats(1, 1, id=None)), "id is no text"),
        (sight(1, {**stats(1, 1), "freezeCount": None}), "freezeCount is no number"),
        ({**sight(1), "streams": [{"feed": 1.5, "role": "webcam", "stats": None}]}, "1.5 is no feed"),
        ({**sight(1), "streams": [{"feed": 1, "role": "webcam", "stats": None}] * 2}, "told twice"),
    ],
)
def test_what_is_no_telling_is_refused_with_the_reason(told: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(told)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
numbers = st.integers(0, 10**6) | st.floats(0, 1e6)
some_stats = st.fixed_dictionaries({name: numbers for name in stats(0, 0) if name != "id"} | {"id": st.just("a")})
tellings = st.builds(
    lambda at, each: {"failure": "", "at_ms": at, "streams": each},
    numbers,
    st.lists(
        st.fixed_dictionaries(
            {"feed": st.integers(0, 3), "role": st.sampled_from(["webcam", "desktop"]), "stats": some_stats | st.none()}
        ),
        max_size=4,
        unique_by=lambda each: each["feed"],
    ),
)


@given(
    anything | st.builds(lambda told, key, junk: {**told, key: junk}, tellings, st.sampled_from(["streams"]), anything)
)
def test_whatever_a_page_says_is_read_or_refused(told: Any) -> None:
    try:
        seen([(read(told), read(told))])
    except ValueError:
        return


@given(tellings, tellings)
def test_shares_are_shares_whatever_is_counted(before: dict[str, Any], after: dict[str, Any]) -> None:
    values, _ = between(before, after)
    assert all(math.isfinite(value) and value >= 0 for value in values.values())
    for name in ("browser_frozen_percent", "browser_loss_percent"):
        assert 0 <= values.get(name, 0) <= 100 * (1 + 1e-9)


# -- a window ---------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Time that passes where somebody sleeps."""

    now_ns: int = 50 * SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchers, "time", clock)
    monkeypatch.setattr(participants, "time", clock)
    return clock


@dataclass
class FakePage:
    """Tells what is told of it, one after another."""

    tells: list[Any]
    asked: list[str] = field(default_factory=list)
    is_closed: bool = False

    def evaluate(self, expression: str, timeout_s: float) -> Any:
        assert timeout_s >= 0
        self.asked.append(expression)
        if expression != "virtoll.told()":
            return None
        told = self.tells.pop(0)
        if isinstance(told, Exception):
            raise told
        return told

    def close(self, timeout_s: float) -> None:
        assert timeout_s >= 0
        self.is_closed = True


@dataclass
class FakeBrowser:
    pages: list[FakePage | BrowserError]
    version: str = "Fake/1.0"
    asked_s: list[float] = field(default_factory=list)

    def open(self, timeout_s: float) -> Page:
        self.asked_s.append(timeout_s)
        page = self.pages.pop(0)
        if isinstance(page, BrowserError):
            raise page
        return cast(Page, page)


def watching(*pages: FakePage | BrowserError, clock: Clock) -> Watchers:
    """Half of a CPU is used all the time."""
    browser = cast(Browser, FakeBrowser(list(pages)))
    return Watchers(Chromium(browser, "", lambda: clock.now_ns // 2), len(pages), ROOM)


def error(kind: Any) -> BrowserError:
    return BrowserError(kind, "it happens", where="here")


def ends(frames: int = 100) -> list[dict[str, Any]]:
    return [sight(1, stats(1, 10)), sight(3, stats(3, 10 + frames))]


def test_browsers_come_in_and_tell_at_the_windows_ends(clock: Clock) -> None:
    page = FakePage([*ends(), *ends()])
    there = watching(page, clock=clock)
    told = there.watch(60 * SECOND, 2 * SECOND)
    assert clock.now_ns == 62 * SECOND
    assert told.values["browser_webcam_frames_per_s"] == 50
    assert told.values["browser_cpus"] == 0.5
    assert told.cpu_ns == SECOND
    assert (told.events.offered, told.events.completed, told.events.failures) == (1, 1, {})
    (watch,) = [each for each in page.asked if "virtoll.watch(" in each and "globalThis" not in each]
    assert watch == 'virtoll.watch("ws://198.18.3.10:8188/", 1, "virtoll 0 browser")'


@pytest.mark.parametrize(
    ("tells", "served"),
    [
        (ends(), 1),
        ([sight(1, stats(1, 10)), error("silent")], 1),  # asked again the next time, and served meanwhile
        ([sight(1, stats(1, 10)), error("crashed")], 0),
        ([sight(1, stats(1, 10)), sight(3, stats(3, 20), failure="signalling")], 0),
        ([sight(1), sight(3)], 0),  # it came in, and nothing came to it: "no picture"
        ([sight(1), sight(3, stats(3, 20))], 0),
    ],
)
def test_who_was_served_is_who_told_so_at_a_windows_begin_and_was_not_lost(
    clock: Clock, tells: list[Any], served: int
) -> None:
    told = watching(FakePage(tells), clock=clock).watch(60 * SECOND, 2 * SECOND)
    assert told.counts["browsers_served"] == served


@pytest.mark.parametrize(
    ("tells", "why"),
    [
        ([sight(1, stats(1, 10)), error("crashed")], "crashed"),
        ([error("ended")], "ended"),
        ([error("silent"), sight(3, stats(3, 10))], "silent"),
        ([sight(1, stats(1, 10)), {"nonsense": 1}], "unreadable"),
        ([sight(1, stats(1, 10)), sight(3, stats(3, 20), failure="signalling")], "signalling"),
        ([sight(1, stats(1, 0)), sight(3, stats(3, 0))], "no picture"),
        ([sight(1), sight(3)], "no picture"),
    ],
)
def test_one_that_fails_is_told_by_kind_and_the_others_go_on(clock: Clock, tells: list[Any], why: str) -> None:
    rate = 25 if tells[0] == sight(1, stats(1, 0)) else 50  # one without a picture counts as a stream with none
    there = watching(FakePage(tells), FakePage(ends()), clock=clock)
    told = there.watch(60 * SECOND, 2 * SECOND)
    assert told.events.failures == {why: 1}
    assert (told.events.offered, told.events.completed, told.events.censored) == (2, 1, 1)
    assert told.values["browser_webcam_frames_per_s"] == rate


def test_one_that_hangs_leaves_time_for_the_others(clock: Clock) -> None:
    class Hanging(FakePage):
        def evaluate(self, expression: str, timeout_s: float) -> Any:
            if expression == "virtoll.told()":
                clock.sleep(timeout_s)
                raise error("silent")
            return None

    class Asked(FakePage):
        def evaluate(self, expression: str, timeout_s: float) -> Any:
            assert timeout_s > 0.1, "nobody answers at once"
            return super().evaluate(expression, timeout_s)

    told = watching(Hanging([]), Asked(ends()), clock=clock).watch(60 * SECOND, 2 * SECOND)
    assert (told.events.completed, told.events.failures) == (1, {"silent": 1})


def test_one_that_does_not_come_in_leaves_time_for_the_others(clock: Clock) -> None:
    class Slow(FakeBrowser):
        def open(self, timeout_s: float) -> Page:
            page = self.pages[0]
            clock.sleep(timeout_s if isinstance(page, BrowserError) else 0)
            assert timeout_s > 0.1, "nobody comes in at once"
            return super().open(timeout_s)

    browser = cast(Browser, Slow([error("silent"), FakePage(ends())]))
    there = Watchers(Chromium(browser, "", lambda: None), 2, ROOM)
    told = there.watch(60 * SECOND, 2 * SECOND)
    assert (told.events.completed, told.events.failures) == (1, {"silent": 1})


def test_one_that_has_crashed_is_not_asked_again_and_one_that_was_silent_is(clock: Clock) -> None:
    crashed, silent = FakePage([error("crashed")]), FakePage([error("silent"), error("silent"), *ends()])
    there = watching(crashed, silent, error("ended"), clock=clock)
    assert there.watch(60 * SECOND, 2 * SECOND).events.failures == {"crashed": 1, "silent": 1, "ended": 1}
    again = there.watch(70 * SECOND, 2 * SECOND)
    assert again.events.failures == {"crashed": 1, "ended": 1}
    assert again.events.completed == 1


def test_one_that_did_not_come_in_is_tried_again_before_the_next_window(clock: Clock) -> None:
    browser = FakeBrowser([error("silent"), FakePage(ends())])
    there = Watchers(Chromium(cast(Browser, browser), "", lambda: None), 1, ROOM)
    first = there.watch(60 * SECOND, 2 * SECOND)
    second = there.watch(70 * SECOND, 2 * SECOND)
    assert first.events.failures == {"silent": 1}
    assert "browser_cpus" not in first.values, "nobody tells what they took"
    assert (second.events.completed, second.events.failures) == (1, {})
    assert browser.asked_s == [10, 8], "in what time was left until the window"
    assert clock.now_ns == 72 * SECOND


def test_one_that_the_server_did_not_let_in_is_tried_again_before_the_next_window(clock: Clock) -> None:
    """Its page had been opened, and was asked for the same failure in each window of the session."""
    refused, came = FakePage([sight(1, failure="signalling"), sight(3, failure="signalling")]), FakePage(ends())
    there = watching(refused, clock=clock)
    cast(FakeBrowser, there.chromium.browser).pages.append(came)
    assert there.watch(60 * SECOND, 2 * SECOND).events.failures == {"signalling": 1}
    assert not refused.is_closed, "that takes time, which is the window's"
    second = there.watch(70 * SECOND, 2 * SECOND)
    assert refused.is_closed
    assert (second.events.completed, second.events.failures) == (1, {})


def test_one_that_had_come_in_and_lost_the_server_stays_away(clock: Clock) -> None:
    lost = sight(3, stats(3, 20), failure="signalling")
    there = watching(FakePage([sight(1, stats(1, 10)), lost, sight(5, failure="signalling"), lost]), clock=clock)
    for begin_s in (60, 70):
        assert there.watch(begin_s * SECOND, 2 * SECOND).events.failures == {"signalling": 1}


def test_where_they_come_in_late_their_cpu_time_is_told_from_before(clock: Clock) -> None:
    class Slow(FakeBrowser):
        def open(self, timeout_s: float) -> Page:
            clock.sleep(11)
            return super().open(timeout_s)

    there = Watchers(Chromium(cast(Browser, Slow([FakePage(ends())])), "", lambda: clock.now_ns // 2), 1, ROOM)
    told = there.watch(60 * SECOND, 2 * SECOND)
    assert clock.now_ns == 62 * SECOND, "the window's end is not moved"
    assert told.cpu_ns == 6 * SECOND, "half of the time since 50 s, more than in the window"
    assert "browser_cpus" not in told.values


def test_a_chromium_that_does_not_start_is_told_and_nothing_stops(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_client: Client) -> Any:
        raise error("ended")

    monkeypatch.setattr(watchers, "chromium", refuse)
    with started(client_in(tmp_path)) as chromium:
        there = Watchers(chromium, 2, ROOM)
        told = there.watch(clock.now_ns, 2 * SECOND)
        there.leave()
    assert told.events.failures == {"not started: ended": 2}
    assert not told.values, "nobody used a CPU: that is not the same as using none"
    assert told.cpu_ns is not None, "what there is in their group is the generator's all the same"


def test_their_cpu_time_is_the_generators(clock: Clock) -> None:
    order = {"participants": 10, "duration_ns": 2 * SECOND}
    roles: list[dict[str, Any]] = [
        {"name": "webcam", "count": 8, "film": "w"},
        {"name": "watcher", "count": None, "film": None},
    ]
    alone = measurement_of(confer_fake.report(order, roles, 0, 60 * SECOND), 0, 10)
    there = watching(FakePage(ends()), clock=clock)
    watched = there.watch(60 * SECOND, 2 * SECOND)
    both = watched.beside(alone)
    assert alone.window.cpu_ns is not None
    assert both.window.cpu_ns == alone.window.cpu_ns + SECOND
    assert both.window.events[BROWSER].completed == 1
    assert both.instrument == f"{alone.instrument}, Fake/1.0"
    unknown = replace(watched, cpu_ns=None).beside(alone).window.cpu_ns
    assert unknown is None, "a part that is not known makes the whole unknown"


# -- with participants ------------------------------------------------------------------------------------


def client_in(directory: Path) -> Client:
    @dataclass
    class Used:
        used_ns: int = 0

        def cpu_ns(self) -> int:
            self.used_ns += SECOND // 10
            return self.used_ns

    return Client(LocalHost(), Confinement(), directory, cpus=1, programs=cast(Programs, Used()))


@pytest.mark.usefixtures("clock")
def test_a_ramp_has_browsers_beside_its_participants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "virtoll-confer"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{confer_fake.__file__}" ok "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(conversation, "binary", lambda _name: program)
    monkeypatch.setattr(footage, "file", lambda each: tmp_path / f"{each.name}.ivf")
    fake = [sys.executable, str(FAKE), "ok", json.dumps([*ends(), *ends(60)])]

    @contextmanager
    def chromium(client: Client) -> Iterator[Browser]:
        with browsing(client.host, fake, client.directory / "log") as browser:
            yield browser

    monkeypatch.setattr(watchers, "chromium", chromium)
    settings = ParticipantsSettings(levels=(10, 20), settle_ns=SECOND, time_limit_ns=2 * SECOND, browsers=1)
    load = ParticipantsLoad(settings)
    with load.session(client_in(tmp_path), ROOM) as session:
        measurements = [session.measure(intensity=level) for level in load.levels]
    assert [each.window.values["browser_webcam_frames_per_s"] for each in measurements] == [50, 30]
    assert [each.window.events[BROWSER].completed for each in measurements] == [1, 1]
    measured = load.measured(measurements)
    assert set(measured.quantities) >= {"browser_webcam_frames_per_s", "browser_cpus", "frozen_percent"}
    assert "browser_desktop_height" not in measured.quantities, "nobody told of it"


def test_chromium_comes_with_the_load_where_there_are_browsers() -> None:
    with_some, without = (ParticipantsLoad(ParticipantsSettings(browsers=number)) for number in (2, 0))
    assert with_some.programs.packages == ("chromium",)
    assert without.programs.is_nothing
    assert not set(without.quantities) & set(QUANTITIES)
