"""BigBlueButton's users against a server of its documented API: the target, what a window is worth, whole meetings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbb_place import Double, expect_hidden, secret_in, study_of
from bbb_server import BbbServer, Manner
from virtoll.errors import TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads import bigbluebutton, meeting, users
from virtoll.loads.base import Measurement
from virtoll.loads.bbb_api import Refused, UnansweredError
from virtoll.loads.bigbluebutton import BigBlueButtonLoad, BigBlueButtonSettings
from virtoll.loads.cdp import Page
from virtoll.loads.meeting import JOIN, Join, Look, Seen
from virtoll.offers import BigBlueButton
from virtoll.record.model import STAY
from virtoll.run import target as targets
from virtoll.run.target import run_target

LONG_NS = 60 * 10**9


@pytest.fixture
def server() -> Iterator[BbbServer]:
    with BbbServer().running() as running:
        yield running


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return secret_in(tmp_path, monkeypatch)


def test_more_webcams_than_participants_are_refused(secret: Path) -> None:
    load = BigBlueButtonLoad(BigBlueButtonSettings(participants=1, webcams=2))
    assert "2 webcams are more than 1 participants" in str(load.check(LocalHost())[-1])
    secret.chmod(0o644)
    assert any("others than its owner" in str(problem) for problem in load.check(LocalHost()))


# -- what a window is worth --------------------------------------------------------------------------------

S = 10**9
COUNTS = {"participants_counted": 0, "webcams_counted": 0, "voices_counted": 0, "listeners_counted": 0}


def look(at_s: float, *there: str, on: tuple[str, ...] = ()) -> Look:
    counts = {**COUNTS, "participants_counted": len(there), "webcams_counted": len(on)}
    return Look(round(at_s * S), frozenset(there), frozenset(on), 0, counts)


def window(joins: list[Join], looks: list[Look], start_s: int = 10, end_s: int = 14) -> Measurement:
    meeting.settle_joins(joins, looks, 5 * S)
    for join in joins:
        if join.in_ns is None:
            join.failure = "not listed in time"
    seen = Seen(start_s * S, end_s * S, joins, looks)
    seen.expect_covered("", "there")
    return meeting.measurement_of(seen, "test", 2 * S, None, 0)


def test_presence_is_what_looks_say_until_the_next() -> None:
    joins = [Join("a", 1 * S, True, 1 * S), Join("b", 2 * S, False, 2 * S + 5)]
    looks = [look(1.5, "a"), look(3, "a", "b"), look(9, "a", "b", on=("a",)), look(11, "a", on=("a",)), look(12, "a")]
    looks.append(look(13, "a", "b"))
    found = window(joins, looks)
    told, join, stay = found.window, found.window.events[JOIN], found.window.events[STAY]
    assert (join.offered, join.completed, join.failures, join.latest_ns) == (2, 2, {}, 5)
    assert found.bulk.histogram == [(S // 2, S // 2 + 1, 1), (S, S + 1, 1)]
    assert told.work == 4 + 2
    assert told.values["present_percent"] == 75
    assert told.values["webcams_percent"] == 50
    assert told.values["participants_counted"] == 1.5
    assert (told.values["join_median_ms"], told.values["join_slowest_ms"]) == (750, 1000)
    assert told.counts["listed_at_end"] == told.counts["participants_counted_at_end"] == 2
    assert (stay.offered, stay.failures) == (2, {"missing": 1})
    assert told.cpu_ns == 2 * S


def test_who_is_listed_too_late_or_never_has_failed() -> None:
    joins = [Join("a", 1 * S, False, S), Join("b", 1 * S, False, S), Join("c", 1 * S, False, S)]
    found = window(joins, [look(2, "a"), *(look(s, "a", "b") for s in range(7, 15))])
    join, stay = found.window.events[JOIN], found.window.events[STAY]
    assert (join.completed, join.failures, join.censored) == (1, {"not listed in time": 2}, 2)
    assert found.window.values["present_percent"] == pytest.approx(200 / 3)
    assert stay.offered == 1
    assert "webcams_percent" not in found.window.values


def test_looks_without_an_answer_are_told() -> None:
    """Of a window with gaps the work is less, though all were in."""
    found = window([Join("a", 1 * S, False, S)], [look(2, "a"), look(10, "a"), look(11.9, "a"), look(12.1, "a")])
    load = BigBlueButtonLoad(BigBlueButtonSettings(participants=1, webcams=0))
    assert not any("no answer" in note for note in load.measured([found]).notes)
    gaps = replace(found, window=found.window.model_copy(update={"counts": {**found.window.counts, "looks_failed": 3}}))
    assert any(note.startswith("3 looks at the meeting had no answer") for note in load.measured([gaps]).notes)


def test_a_window_of_which_the_server_told_too_little_is_none() -> None:
    joins = [Join("a", 1 * S, False, S)]
    with pytest.raises(TrialError, match="told who is in for 50% of the window alone"):
        window(joins, [look(2, "a"), look(10, "a")])
    with pytest.raises(TrialError, match="for 0% of the window"):
        window(joins, [])


@given(st.lists(st.integers(0, 30 * S), max_size=30), st.integers(0, 20), st.integers(1, 10))
def test_looks_never_tell_of_more_than_the_window(ats: list[int], start_s: int, long_s: int) -> None:
    looks = [Look(at_ns, frozenset({"a"}), frozenset(), 0, COUNTS) for at_ns in sorted(ats)]
    seen = Seen(start_s * S, (start_s + long_s) * S, [Join("a", 0, False)], looks)
    assert 0 <= seen.covered_ns <= long_s * S
    assert seen.there_ns(lambda each: len(each.users)) == seen.covered_ns


# -- a whole meeting ---------------------------------------------------------------------------------------


@pytest.fixture
def double(server: BbbServer, secret: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    browser = Double(server.port)

    @contextmanager
    def chromium(_client: Client) -> Iterator[Double]:
        yield browser

    monkeypatch.setattr(users, "chromium", chromium)
    monkeypatch.setattr(meeting, "_HOLDS_NS", LONG_NS)  # a busy machine's looks may be far apart
    yield browser
    for response in browser.held:
        response.close()


SHORT = {"join_ns": 10**6, "settle_ns": 10**6, "time_limit_ns": 3 * 10**8, "patience_ns": LONG_NS}


def measured(server: BbbServer, tmp_path: Path, **settings: Any) -> Measurement:
    load = BigBlueButtonLoad(BigBlueButtonSettings(**{**SHORT, **settings}))
    offer = BigBlueButton("127.0.0.1", server.port, host="127.0.0.1", is_tls=False)
    client = Client(LocalHost(), Confinement(), tmp_path, 2)
    with load.session(client, offer) as session:
        session.warm_up()
        return session.measure()


def called(server: BbbServer, name: str) -> list[dict[str, str]]:
    return [values for call, values in server.calls if call == name]


def test_users_join_are_counted_and_the_meeting_is_ended(server: BbbServer, double: Double, tmp_path: Path) -> None:
    found = measured(server, tmp_path, participants=4, webcams=2)
    told, joins = found.window, found.window.events[JOIN]
    assert (joins.offered, joins.completed, joins.failures) == (4, 4, {})
    assert told.values["present_percent"] == 100
    assert told.values["webcams_percent"] == 100
    counts = {
        name: told.counts[f"{name}_counted_at_end"] for name in ("participants", "webcams", "voices", "listeners")
    }
    assert counts == {"participants": 4, "webcams": 2, "voices": 2, "listeners": 2}
    assert told.events[STAY].failures == {}
    assert server.meetings == {}, "it was seen to have ended"
    created, joined = called(server, "create")[0], called(server, "join")
    assert (created["record"], int(created["duration"]) >= 5) == ("false", True)
    assert [values["userID"] for values in joined] == [f"virtoll-{i}" for i in range(1, 5)]
    assert {values["role"] for values in joined} == {"VIEWER"}
    assert [values["userdata-bbb_auto_share_webcam"] for values in joined] == ["true", "true", "false", "false"]


def test_a_server_that_is_slow_to_answer_keeps_no_other_user_from_asking(
    server: BbbServer, double: Double, tmp_path: Path
) -> None:
    """It answers no join before all were asked for: who waits for one answer after another never is there."""
    double.answers_wait, server.together = True, threading.Barrier(4, timeout=600)
    found = measured(server, tmp_path, participants=4, webcams=2)
    assert not server.together.broken
    assert found.window.events[JOIN].completed == 4


def test_who_is_refused_is_told_by_the_servers_key(server: BbbServer, double: Double, tmp_path: Path) -> None:
    server.most = 2
    found = measured(server, tmp_path, participants=3, webcams=0, patience_ns=5 * 10**8)
    joins = found.window.events[JOIN]
    assert joins.failures["refused: maxParticipantsReached"] == 1
    assert joins.offered == 3
    assert server.meetings == {}


def test_who_is_never_listed_has_failed(server: BbbServer, double: Double, tmp_path: Path) -> None:
    server.unlisted = {"virtoll-2"}
    found = measured(server, tmp_path, participants=2, webcams=0, patience_ns=5 * 10**8)
    joins = found.window.events[JOIN]
    assert joins.failures["not listed in time"] >= 1
    assert joins.completed + joins.failures["not listed in time"] == 2


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("https://b/join?checksum=abc cannot be opened: net::ERR_CERT_DATE_INVALID", "net::ERR_CERT_DATE_INVALID"),
        ("https://b/join?checksum=abc: no answer in time", "silent"),
    ],
)
def test_a_page_that_cannot_be_opened_has_failed(
    server: BbbServer, double: Double, tmp_path: Path, words: str, kind: str
) -> None:
    double.refuses, double.is_refused_later, server.unlisted = words, kind != "silent", {"virtoll-1", "virtoll-2"}
    joins = measured(server, tmp_path, participants=2, webcams=0).window.events[JOIN]
    assert (joins.offered, joins.failures) == (2, {f"browser: {kind}": 2})


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_browser_that_ends_fails_the_window_and_the_meeting_is_ended(
    server: BbbServer, double: Double, tmp_path: Path, dies_at: int
) -> None:
    double.dies_at = dies_at
    with pytest.raises(TrialError, match=r"Page\.navigate") as raised:
        measured(server, tmp_path, participants=2, webcams=0)
    expect_hidden(f"{raised.value}{raised.value!r}", server)
    assert raised.value.__cause__ is None
    assert len(called(server, "end")) == 1


def test_a_browser_that_ends_in_the_window_is_told(server: BbbServer, double: Double, tmp_path: Path) -> None:
    double.fails_later = "ended"
    with pytest.raises(TrialError, match=r"Browser\.getVersion"):
        measured(server, tmp_path, participants=2, webcams=0)
    assert len(called(server, "end")) == 1


def test_a_browser_that_ends_before_the_window_is_told(server: BbbServer, double: Double, tmp_path: Path) -> None:
    server.unlisted, double.fails_later = {"virtoll-1"}, "ended"
    with pytest.raises(TrialError, match=r"Runtime\.evaluate"):
        measured(server, tmp_path, participants=1, webcams=0, patience_ns=10**8)


def test_ctrl_c_ends_the_meeting(
    server: BbbServer, double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bigbluebutton.Stay, "_come_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(server, tmp_path)
    assert len(called(server, "end")) == 1
    assert not any(thread.name == "looks at the meeting" for thread in threading.enumerate())


def test_a_meeting_that_somebody_ends_is_told(
    server: BbbServer, double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    come_in = bigbluebutton.Stay._come_in

    def and_end(stay: bigbluebutton.Stay, watch: meeting.Watch, pages: dict[str, Page]) -> list[Join]:
        joins = come_in(stay, watch, pages)
        server.meetings.clear()
        return joins

    monkeypatch.setattr(bigbluebutton.Stay, "_come_in", and_end)
    with pytest.raises(Refused, match=r"(?s)notFound.*the meeting is gone"):
        measured(server, tmp_path, time_limit_ns=LONG_NS)


@pytest.mark.parametrize(("manner", "said"), [("no counts", "lacks a count"), ("status", "HTTP status 502")])
def test_a_server_that_does_not_tell_who_is_in_gives_no_window(
    server: BbbServer, double: Double, tmp_path: Path, manner: Manner, said: str
) -> None:
    server.manner, server.manner_of = manner, ("getMeetingInfo",)
    with pytest.raises(TrialError, match=f"for 0% of the window alone; at last: .*{said}"):
        measured(server, tmp_path, participants=1, webcams=0, patience_ns=10**8)
    assert len(called(server, "end")) == 1


def test_a_meeting_that_does_not_end_is_told(
    server: BbbServer, double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigbluebutton, "_END_S", 0.6)
    server.let_end = False
    with pytest.raises(TrialError, match="was to end, and is still there") as raised:
        measured(server, tmp_path, participants=1, webcams=0)
    assert "by itself it ends 7 min after it was created" in raised.value.problem.remedy


def test_an_answer_to_create_that_is_lost_has_its_meeting_ended(
    server: BbbServer, double: Double, tmp_path: Path
) -> None:
    server.manner, server.manner_of = "cut", ("create",)
    with pytest.raises(UnansweredError):
        measured(server, tmp_path)
    assert len(called(server, "end")) == 1 or any("/end?" in target for target in server.targets)


# -- all of it, from the command ---------------------------------------------------------------------------


MORE = 'participants = 3\nwebcams = 1\njoin = "1 ms"\nsettle = "1 ms"\ntime_limit = "300 ms"'


@pytest.fixture
def alone_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is not asked for: the load goes to loopback."""
    monkeypatch.setattr(targets, "alone", lambda _host: nullcontext([]))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is in the files of each run, when it has ended."""
    found: list[str] = []
    told_of = targets._told

    def and_keep(load: Any, target: Any, client: Client) -> Any:
        try:
            return told_of(load, target, client)
        finally:
            found.extend(path.read_text() for path in client.directory.rglob("*") if path.is_file())

    monkeypatch.setattr(targets, "_told", and_keep)
    return found


@pytest.mark.usefixtures("alone_here", "secret")
def test_the_secret_and_what_it_opens_stand_in_nothing_that_is_printed_or_kept(
    server: BbbServer,
    double: Double,
    kept: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(users, "problems", list)
    url = f"bbb+http://127.0.0.1:{server.port}/bigbluebutton/"
    for as_json in (True, False):
        run_target(study_of(MORE), url, as_json=as_json)
    manners: list[Manner] = ["echo", "status", "redirect", "html"]
    for manner in manners:
        server.manner = manner
        with pytest.raises(TrialError) as raised:
            run_target(study_of(MORE), url, as_json=False)
        kept.append(f"{raised.value}{raised.value!r}{raised.value.__cause__}")
    said = capfd.readouterr()
    assert "3 at once" in said.err
    assert "participants, 1 webcams, 1 voices, 2 listeners" in said.out
    assert len(server.targets) > 8
    expect_hidden("".join([said.out, said.err, *kept]), server)
    json.loads(said.out.partition("\n")[0])


@pytest.mark.usefixtures("alone_here", "secret")
def test_real_chromium_joins_with_its_made_up_camera(
    server: BbbServer, kept: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0 or (missing := users.problems()):
        pytest.skip(str(missing[0]) if os.geteuid() == 0 else "only root can give Chromium a place of its own")
    sandboxed = "unshare --mount setpriv --reuid=65534 --regid=65534 --clear-groups unshare --user true"
    if subprocess.run(sandboxed.split(), check=False, capture_output=True).returncode:
        pytest.skip("nobody may make user namespaces here, and Chromium's sandbox does")
    server.together = threading.Barrier(2, timeout=600)  # one that is not answered yet keeps the other from nothing
    url = f"bbb+http://127.0.0.1:{server.port}/bigbluebutton/"
    more = 'participants = 2\nwebcams = 1\njoin = "100 ms"\nsettle = "1 ms"\ntime_limit = "1 s"'
    run_target(study_of(more), url, as_json=True)
    said = capfd.readouterr()
    window = json.loads(said.out)["measured"]["windows"][0]
    assert not server.together.broken
    assert window["events"][JOIN]["completed"] == 2
    assert window["counts"]["webcams_counted_at_end"] == 1
    assert window["cpu_ns"] > 0
    assert re.search(r'"instrument": "[A-Za-z]*Chrome/\d+', said.out)
    assert len(kept) == 1, "Chromium's own log"
    expect_hidden("".join([said.out, said.err, *kept]), server)
    assert server.meetings == {}
