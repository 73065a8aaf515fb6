"""A meeting of BigBlueButton's: that it is ended, and that what this machine loses is not laid on the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bbb_place import Double, DoublePage, api_of
from bbb_server import BbbServer
from virtoll.errors import TrialError
from virtoll.loads import bigbluebutton
from virtoll.loads.bbb_api import Answer, Api, Attendee, UnansweredError
from virtoll.loads.bigbluebutton import BigBlueButtonSettings, Meeting, Stay
from virtoll.loads.cdp import BrowserError, Kind
from virtoll.loads.meeting import Join, Look, Seen, lost

S = 10**9


@pytest.fixture
def server() -> Iterator[BbbServer]:
    with BbbServer().running() as running:
        yield running


def fails_once(monkeypatch: pytest.MonkeyPatch, when: str, error: BaseException) -> None:
    """The first call of that name to the API."""
    asked: list[str] = []
    ask = Api.ask

    def once(api: Api, call: str, values: dict[str, str]) -> Any:
        asked.append(call)
        if asked.count(when) == 1 and call == when:
            raise error
        return ask(api, call, values)

    monkeypatch.setattr(Api, "ask", once)


# -- its end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted_at", ["end", "getMeetingInfo"])
def test_ctrl_c_while_the_meeting_is_ended_ends_it(
    server: BbbServer, monkeypatch: pytest.MonkeyPatch, interrupted_at: str
) -> None:
    fails_once(monkeypatch, interrupted_at, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), bigbluebutton.meeting(api_of(server), 5):
        pass
    assert [call for call, _ in server.calls if call == "end"]


@pytest.mark.parametrize("lost", ["end", "getMeetingInfo"])
def test_one_answer_that_is_lost_while_a_meeting_is_ended_costs_no_window(
    server: BbbServer, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    fails_once(monkeypatch, lost, UnansweredError("no whole answer"))
    with bigbluebutton.meeting(api_of(server), 5):
        pass
    assert server.meetings == {}


def test_a_server_that_never_answers_to_end_is_told_with_the_meeting(
    server: BbbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigbluebutton, "_END_S", 0.6)
    server.manner, server.manner_of = "status", ("end",)
    with (
        pytest.raises(TrialError, match=r"meeting virtoll-.* still there.*HTTP status 502") as raised,
        bigbluebutton.meeting(api_of(server), 5),
    ):
        pass
    assert "by itself it ends 5 min after" in raised.value.problem.remedy


# -- who is missing ----------------------------------------------------------------------------------------


def stay_and_page(server: BbbServer, kind: Kind) -> tuple[Stay, Any]:
    browser = Double(server.port)
    with bigbluebutton.meeting(api_of(server), 5) as held:
        assert isinstance(held, Meeting)
    failing = Double(server.port, fails_later=kind)
    return Stay(held, browser, BigBlueButtonSettings()), DoublePage("", failing)


def seen(*there_at_end: str) -> Seen:
    """Of a and b, who are in before the window."""
    looks = [(2, ("a", "b")), (10, ("a", "b")), (11, there_at_end), (12, there_at_end), (13, there_at_end)]
    told = [Look(at_s * S, frozenset(there), frozenset(), 0, {}) for at_s, there in looks]
    return Seen(10 * S, 14 * S, [Join(name, S, False, S, 2 * S) for name in "ab"], told)


def test_of_those_whom_the_server_lists_ours_are_kept_and_of_the_others_their_number() -> None:
    """Four times a second the names of all were kept, however many a server made up."""
    counts = dict.fromkeys(("participantCount", "videoCount", "voiceParticipantCount", "listenerCount"), "7")
    listed = [("a", True), ("b", False), *((f"stranger {number}", True) for number in range(5))]
    answer = Answer(counts, tuple(Attendee(user, has_video, False, False) for user, has_video in listed))
    look = Look.of(answer, S, frozenset("abc"))
    assert (look.users, look.seen, look.strangers) == (frozenset("ab"), frozenset("a"), 5)


@pytest.mark.parametrize("kind", ["ended", "crashed"])
def test_who_is_lost_with_a_page_that_crashed_is_not_lost_by_the_server(server: BbbServer, kind: Kind) -> None:
    stay, page = stay_and_page(server, kind)
    assert lost(seen("a")) == {"b"}
    with pytest.raises(BrowserError):
        stay._expect_pages(seen("a"), {"a": page, "b": page})
    stay._expect_pages(seen("a", "b"), {"a": page, "b": page})  # nobody is lost, and nobody is asked


def test_who_is_lost_with_a_page_that_is_there_is_missing(server: BbbServer) -> None:
    stay, page = stay_and_page(server, "silent")
    stay._expect_pages(seen("a"), {"a": page, "b": page})
