"""Users of a BigBlueButton server that is there already: real Chromium clients, checked by the server's own counts.

They are of this machine. A meeting of their own is created for each window and ended after it, whatever happens; where
nobody could end it any more, it ends by itself some minutes later (its `duration`).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from virtoll.errors import Problem, StudyError, TrialError
from virtoll.hosts.base import Host
from virtoll.lab.client import Client
from virtoll.loads import users
from virtoll.loads.base import Intensity, Load, Measurement, Session
from virtoll.loads.bbb_api import Answer, Api, Checksum, Refused, Secret, UnansweredError, is_gone, known_key
from virtoll.loads.cdp import GONE, BrowserError, Page
from virtoll.loads.meeting import JOIN, QUANTITIES, Join, Seen, Watch, lost, measurement_of, settle_joins
from virtoll.loads.users import Users
from virtoll.offers import BigBlueButton, Offer
from virtoll.record.model import Measured, Quantity
from virtoll.units import within

_SPARE_MIN = 5  # that a meeting lasts longer than it is needed, at least
_END_S, _LOOK_S = 30.0, 0.5  # for a meeting to be ended, and between two looks
_ASK_PAGE_S = 2.0
_BROWSERS_REMEDY = (
    "run it again; where Chromium does not start, see whether anybody may make user namespaces here: its sandbox does"
)
# What an error of `join` leaves in a browser: XML, or a page of the server's with `errors`, a list of objects as JSON.
_ERROR_KEY = """(() => {
    const told = document.querySelector("messageKey");
    if (told) return told.textContent;
    const errors = new URLSearchParams(location.search).get("errors");
    return errors ? JSON.parse(errors)[0].key : "";
})()"""
_NETWORK_ERROR = re.compile(r"net::ERR_[A-Z_]{1,60}")  # chromium's net/base/net_error_list.h


@dataclass(frozen=True)
class BigBlueButtonSettings:
    """Settings of BigBlueButton's users. They come in one after another, ``join`` apart: the first ``webcams`` of them
    send a webcam and speak, the others listen. Each has ``patience`` until the server lists it. When all are in or
    have failed, ``settle`` passes; then the window begins, of ``time_limit``.

    ``checksum``: the digest by which calls are signed. ``path``: of the API, as `bbb-conf --secret` prints it.
    """

    participants: int = within(4, least=1, most=1000)
    webcams: int = within(2, most=1000)
    join_ns: int = 2 * 10**9
    patience_ns: int = within(60 * 10**9, least=10**8, most=600 * 10**9)
    settle_ns: int = 10 * 10**9
    time_limit_ns: int = within(30 * 10**9, least=10**8, most=3600 * 10**9)
    checksum: Checksum = "sha256"
    path: str = "/bigbluebutton/"


class BigBlueButtonLoad(Load):
    """BigBlueButton's users."""

    name: ClassVar[str] = "bigbluebutton"
    summary: ClassVar[str] = "users of a BigBlueButton server of yours (--target): Chromium clients, and its own counts"
    takes: ClassVar[tuple[type[Offer], ...]] = (BigBlueButton,)
    begins_at_a_time: ClassVar[bool] = False
    own: ClassVar[str] = "path"
    Settings: ClassVar[type[BigBlueButtonSettings]] = BigBlueButtonSettings
    settings: BigBlueButtonSettings

    @property
    def unit(self) -> str:
        """A second that one participant was in."""
        return "participant-second"

    @property
    def request(self) -> str:
        """A join."""
        return JOIN

    @property
    def loop(self) -> Literal["closed", "open"]:
        """They come by a schedule."""
        return "open"

    @property
    def intensity(self) -> Intensity:
        """Participants."""
        return Intensity("participants", whole=True)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """What the server counts."""
        return QUANTITIES

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """Chromium, and the server's secret."""
        problems = users.problems()
        try:
            Secret.read()
        except StudyError as error:
            problems += error.problems
        if self.settings.webcams > self.settings.participants:
            what = f"{self.settings.webcams} webcams are more than {self.settings.participants} participants have"
            problems.append(Problem(what, "[load] webcams", "let there be one for each participant at most"))
        return problems

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """A meeting for each window. StudyError where the secret cannot be read any more."""
        assert isinstance(offer, BigBlueButton)
        api = Api(offer, self.settings.path, Secret.read(), self.settings.checksum)
        return nullcontext(BigBlueButtonSession(self, client, api))

    def measured(self, measurements: list[Measurement]) -> Measured:
        """The record, with those quantities that all windows could tell."""
        windows = [measurement.window for measurement in measurements]
        told = {key: q for key, q in self.quantities.items() if all(key in window.values for window in windows)}
        last = windows[-1].counts
        names = ("participants", "webcams", "voices", "listeners")
        counted = ", ".join(f"{last[f'{name}_counted_at_end']} {name}" for name in names)
        notes = [f"at the window's end the server counted {counted}"]
        if last["strangers_at_end"]:
            notes.append(f"{last['strangers_at_end']} others were in the meeting, whom nobody here sent")
        if failed := last["looks_failed"]:
            notes.append(
                f"{failed} looks at the meeting had no answer: work is of the time that the server told of alone"
            )
        return super().measured(measurements).model_copy(update={"quantities": told, "notes": notes})


@dataclass(frozen=True)
class Meeting:
    """A meeting that the server keeps."""

    api: Api
    name: str  # its meetingID
    created: Answer

    def ask(self) -> Answer:
        """What the server tells of it."""
        return self.api.ask("getMeetingInfo", {"meetingID": self.name})

    def join_url(self, join: Join, shown: str) -> str:
        """Where a user's browser goes: as good as a password."""
        values = {"fullName": shown, "meetingID": self.name, "role": "VIEWER", "userID": join.user, "redirect": "true"}
        for name, element in (
            ("password", "attendeePW"),
            ("createTime", "createTime"),
        ):  # servers before 2.4 ask for it
            if element in self.created.values:
                values[name] = self.created.values[element]
        listens, sends = ("false", "true") if join.has_webcam else ("true", "false")
        return self.api.join_url(
            {
                **values,
                "userdata-bbb_auto_join_audio": "true",
                "userdata-bbb_skip_check_audio": "true",
                "userdata-bbb_listen_only_mode": listens,
                "userdata-bbb_force_listen_only": listens,
                "userdata-bbb_auto_share_webcam": sends,
                "userdata-bbb_skip_video_preview": sends,
            }
        )


@contextmanager
def meeting(api: Api, minutes: int) -> Iterator[Meeting]:
    """A meeting for the length of the block, and for so many minutes at the most. TrialError where it is not created,
    or cannot be ended.
    """
    name = f"virtoll-{secrets.token_hex(8)}"
    values = {
        "name": "virtoll",
        "meetingID": name,
        "record": "false",
        "duration": str(minutes),
        "guestPolicy": "ALWAYS_ACCEPT",
    }
    password = ""
    try:
        created = api.ask("create", values)
        password = created.values.get("moderatorPW", "")
        yield Meeting(api, name, created)
    except Refused as error:
        if not is_gone(error):
            _end_quietly(api, name, password)
        raise
    except BaseException:  # Ctrl-C, too; and an answer to `create` that did not come may be of a meeting that did
        _end_quietly(api, name, password)
        raise
    try:
        _end(api, name, password, minutes)
    except KeyboardInterrupt:  # whether the server was asked is not known
        _end_quietly(api, name, password)
        raise


def _end_quietly(api: Api, name: str, password: str) -> None:
    """What went wrong before is told, and not that the meeting cannot be ended then: it ends by itself."""
    with suppress(TrialError):
        api.ask("end", {"meetingID": name, **({"password": password} if password else {})})


def _end(api: Api, name: str, password: str, minutes: int) -> None:
    """End it, and see that it has ended: the server answers before it has. Calls without an answer are made again."""
    deadline, is_asked, why = time.monotonic() + _END_S, False, ""
    while time.monotonic() < deadline:
        try:
            if not is_asked:
                api.ask("end", {"meetingID": name, **({"password": password} if password else {})})
                is_asked = True
            told = api.ask("getMeetingInfo", {"meetingID": name}).values
            if told.get("hasBeenForciblyEnded") == "true" or told.get("endTime", "0") not in ("", "0"):
                return
            why = ""
        except Refused as error:
            if is_gone(error):
                return
            raise
        except UnansweredError as error:
            why = f"; at last: {error.problem.what}"
        time.sleep(_LOOK_S)
    what = f"the meeting {name} was to end, and {'may be' if why else 'is'} still there after {_END_S:g} s{why}"
    where = f"{api.offer.url(api.base)}/end"
    raise TrialError(what, where=where, remedy=f"end it by hand; by itself it ends {minutes} min after it was created")


@dataclass(frozen=True)
class BigBlueButtonSession(Session):
    """A meeting for each window, whose participants all come in before it."""

    load: BigBlueButtonLoad
    client: Client
    api: Api

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Nothing: the participants of each window settle."""

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`; the intensity is the number of participants. Its windows begin at no given time."""
        assert start_ns is None
        settings = self.load.settings
        if duration_ns is not None:
            settings = replace(settings, time_limit_ns=duration_ns)
        if intensity is not None:
            settings = replace(settings, participants=round(intensity))
        try:
            with users.chromium(self.client) as browser, meeting(self.api, _minutes(settings)) as held:
                return Stay(held, browser, settings).measured(intensity)
        except BrowserError as error:  # its words may hold an address that opens the meeting
            what = self.api.hidden(error.problem.what)
            raise TrialError(what, where=error.problem.where, remedy=_BROWSERS_REMEDY) from None


def _minutes(settings: BigBlueButtonSettings) -> int:
    """How long a meeting may last: for all that is to happen in it, and some more."""
    joins_ns = settings.join_ns * settings.participants + settings.patience_ns
    return -(-(joins_ns + settings.settle_ns + settings.time_limit_ns) // (60 * 10**9)) + _SPARE_MIN


@dataclass(frozen=True)
class Stay:
    """One meeting from its first join to its window's end."""

    held: Meeting
    browser: Users
    settings: BigBlueButtonSettings

    def measured(self, at: float | None) -> Measurement:
        """Have all come in, settle, and measure. TrialError where the meeting or the browser is gone, or the server
        does not tell who is in.
        """
        pages: dict[str, Page] = {}
        watch = Watch(self.held.ask, frozenset(map(_user, range(self.settings.participants))))
        with watch.at_work():
            joins = self._come_in(watch, pages)
            start_ns = time.monotonic_ns() + self.settings.settle_ns
            watch.wait(start_ns)
            cpu_ns, failed = self.browser.cpu_ns(), watch.failed
            start_ns = time.monotonic_ns()
            end_ns = start_ns + self.settings.time_limit_ns
            watch.wait(end_ns)
            cpu_ns = self.browser.cpu_ns() - cpu_ns
        seen = Seen(start_ns, end_ns, joins, tuple(watch.looks))
        self._expect_pages(seen, pages)
        seen.expect_covered(watch.why(), self.held.api.offer.url(self.held.api.base))
        return measurement_of(seen, self.browser.version, cpu_ns, at, watch.failed - failed)

    def _expect_pages(self, seen: Seen, pages: Mapping[str, Page]) -> None:
        """BrowserError where the browser has ended, or a page of who was lost has crashed: no server did that."""
        self.browser.expect_there()
        for user in lost(seen):
            try:
                pages[user].evaluate("0", _ASK_PAGE_S)
            except BrowserError as error:
                if error.kind in GONE:
                    raise

    def _come_in(self, watch: Watch, pages: dict[str, Page]) -> list[Join]:
        """Ask each in when it is due, and wait until the server lists it."""
        settings, begin_ns = self.settings, time.monotonic_ns()
        joins = [
            Join(_user(i), begin_ns + i * settings.join_ns, i < settings.webcams) for i in range(settings.participants)
        ]
        for number, join in enumerate(joins, 1):
            watch.wait(join.due_ns)
            join.begun_ns = time.monotonic_ns()
            try:
                url = self.held.join_url(join, f"virtoll {number}")
                pages[join.user] = self.browser.send(url, settings.patience_ns / 1e9)
            except BrowserError as error:
                if error.kind == "ended":
                    raise
                join.failure = _of_browser(error)
        last_ns = max(join.due_ns for join in joins) + settings.patience_ns
        watch.wait(last_ns, lambda: self._are_settled(joins, watch, pages))
        settle_joins(joins, watch.looks, settings.patience_ns)
        for join in joins:
            if join.in_ns is None and not join.failure:
                join.failure = _why(pages[join.user])
        return joins

    def _are_settled(self, joins: list[Join], watch: Watch, pages: Mapping[str, Page]) -> bool:
        settle_joins(joins, watch.looks, self.settings.patience_ns)
        for join in joins:
            if join.in_ns is None and not join.failure:
                join.failure = _cannot_arrive(pages[join.user])
        return all(join.in_ns is not None or join.failure for join in joins)


def _user(number: int) -> str:
    """By which the server knows a participant, from 0 on."""
    return f"virtoll-{number + 1}"


def _cannot_arrive(page: Page) -> str:
    """Why a page cannot be opened where it was sent to, if that is known by now; then it is taken away."""
    try:
        page.has_arrived()
    except BrowserError as error:
        if error.kind == "ended":
            raise
        page.close(_ASK_PAGE_S)
        return _of_browser(error)
    return ""


def _of_browser(error: BrowserError) -> str:
    """A kind of failure: of its words the network's error alone, for they hold an address."""
    found = _NETWORK_ERROR.search(error.problem.what)
    return f"browser: {found[0] if found else error.kind}"


def _why(page: Page) -> str:
    """Why the server does not list a user, as far as the page tells."""
    try:
        told = page.evaluate(_ERROR_KEY, _ASK_PAGE_S)
    except BrowserError as error:
        if error.kind == "ended":
            raise
        return _of_browser(error)
    return f"refused: {key}" if (key := known_key(told)) else "not listed in time"
