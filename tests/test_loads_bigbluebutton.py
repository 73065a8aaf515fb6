"""BigBlueButton's users against a server of its documented API: calls, errors, the secret, and a whole meeting."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbb_server import SECRET, BbbServer, Manner
from virtoll.catalogue import catalogue
from virtoll.errors import StudyError, TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads import bbb_api, bigbluebutton, meeting, users
from virtoll.loads.base import Measurement
from virtoll.loads.bbb_api import Api, Refused, Secret, UnansweredError, parse
from virtoll.loads.bigbluebutton import BigBlueButtonLoad, BigBlueButtonSettings
from virtoll.loads.cdp import BrowserError, Page
from virtoll.loads.meeting import JOIN, STAY, Join, Look, Seen
from virtoll.offers import BigBlueButton, Target
from virtoll.run import target as targets
from virtoll.run.named import available_studies
from virtoll.run.target import load_for, run_target
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.trial.treatment import Driven, treatments

LONG_NS = 60 * 10**9


@pytest.fixture
def server() -> Iterator[BbbServer]:
    with BbbServer().running() as running:
        yield running


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    monkeypatch.setenv(bbb_api.SECRET_FILE, str(path))
    return path


def api_of(server: BbbServer, **more: Any) -> Api:
    offer = BigBlueButton("127.0.0.1", server.port, host="127.0.0.1", is_tls=False)
    return Api(offer, "/bigbluebutton/", Secret(more.pop("text", SECRET)), **more)


# -- the API's calls ---------------------------------------------------------------------------------------


def test_the_checksum_is_that_of_the_documentations_example() -> None:
    offer = BigBlueButton("127.0.0.1", 443, host="bbb.example.com")
    api = Api(offer, "/bigbluebutton/", Secret("639259d4-9dd8-4b25-bf01-95f9567eaf4b"), "sha1")
    values = {"name": "Test Meeting", "meetingID": "abc123", "attendeePW": "111222", "moderatorPW": "333444"}
    query = "name=Test+Meeting&meetingID=abc123&attendeePW=111222&moderatorPW=333444"
    assert api.query("create", values) == f"{query}&checksum=1fcbb0c4fc1f039f73aa6d697d2db9ba7f803f17"


@pytest.mark.parametrize("path", ["/bigbluebutton", "/bigbluebutton/", "/bigbluebutton/api", "/bigbluebutton/api/"])
def test_calls_are_below_api_whatever_of_the_url_is_given(path: str) -> None:
    api = Api(BigBlueButton("127.0.0.1", 443, host="bbb.example.com"), path, Secret(SECRET))
    assert api.join_url({}).startswith("https://bbb.example.com/bigbluebutton/api/join?checksum=")


@pytest.mark.parametrize("checksum", ["sha1", "sha256", "sha384", "sha512"])
def test_a_meeting_is_created_told_of_and_ended(server: BbbServer, checksum: bbb_api.Checksum) -> None:
    api = api_of(server, checksum=checksum)
    created = api.ask("create", {"name": "a & b", "meetingID": "m 1/ü"})
    assert created.values["meetingID"] == "m 1/ü"
    told = api.ask("getMeetingInfo", {"meetingID": "m 1/ü"})
    assert [told.count(name) for name in ("participantCount", "videoCount")] == [0, 0]
    again = api.ask("create", {"name": "a & b", "meetingID": "m 1/ü"})
    assert again.key == "duplicateWarning"
    api.ask("end", {"meetingID": "m 1/ü", "password": created.values["moderatorPW"]})


@pytest.mark.parametrize(
    ("call", "values", "key"),
    [
        ("getMeetingInfo", {"meetingID": "nobody's"}, "notFound"),
        ("getMeetingInfo", {}, "missingParamMeetingID"),
        ("create", {"meetingID": "m1"}, "missingParamName"),
        ("create", {"meetingID": "known", "name": "other"}, "idNotUnique"),
        ("create", {"meetingID": "m", "name": "short"}, "validationError"),
        ("end", {"meetingID": "known", "password": "wrong"}, "invalidPassword"),
        ("hooks/create", {"meetingID": "known"}, "unsupportedRequest"),
    ],
)
def test_the_servers_errors_are_told_by_their_key(
    server: BbbServer, call: str, values: dict[str, str], key: str
) -> None:
    api = api_of(server)
    api.ask("create", {"meetingID": "known", "name": "known"})
    with pytest.raises(Refused, match=f"the server refuses the call: {key}") as raised:
        api.ask(call, values)
    assert raised.value.key == key
    assert raised.value.problem.where == f"http://127.0.0.1:{server.port}/bigbluebutton/api/{call}"
    assert raised.value.problem.remedy


def test_a_wrong_secret_and_a_digest_that_is_not_taken_say_what_to_do() -> None:
    with BbbServer(algorithms=("sha512",)).running() as server:
        for api in (api_of(server, text="wrong", checksum="sha512"), api_of(server)):
            with pytest.raises(Refused, match="checksumError") as raised:
                api.ask("create", {"meetingID": "m1", "name": "m"})
            assert "bbb-conf --secret" in raised.value.problem.remedy
            assert "[load] checksum" in raised.value.problem.remedy
        assert api_of(server, checksum="sha512").ask("create", {"meetingID": "m1", "name": "m"})


@pytest.mark.parametrize(
    ("manner", "told"),
    [
        ("html", "the answer is none of BigBlueButton's"),
        ("huge", "longer than 4 MiB"),
        ("doctype", "the answer is none of BigBlueButton's: it has a document type"),
        ("status", "no whole answer: HTTP status 502"),
        ("redirect", "no whole answer: HTTP status 302"),
        ("hang-up", "no whole answer"),
        ("cut", "bytes of it are missing"),
        ("echo", "the server refuses the call: someError"),
    ],
)
def test_what_is_no_answer_is_told_without_what_opens_anything(server: BbbServer, manner: Manner, told: str) -> None:
    server.manner = manner
    with pytest.raises(TrialError, match=told) as raised:
        api_of(server).ask("create", {"meetingID": "m1", "name": "m"})
    expect_hidden(f"{raised.value}{raised.value!r}", server)
    assert raised.value.__cause__ is None
    assert raised.value.problem.remedy


def test_nobody_there_is_told() -> None:
    with BbbServer().running() as server:
        api = api_of(server)
    with pytest.raises(UnansweredError, match="no whole answer: Connection refused") as raised:
        api.ask("create", {"meetingID": "m1"})
    assert "bbb-conf --status" in raised.value.problem.remedy


def certificate(directory: Path) -> Path:
    path = directory / "both.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", str(directory / "certificate.pem")]
    subprocess.run(["openssl", *words.split(), *more], check=True, capture_output=True)
    path.write_text(path.read_text() + (directory / "certificate.pem").read_text())
    return path


def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    with BbbServer().running(context) as server:

        def ask(host: str) -> None:
            offer = BigBlueButton("127.0.0.1", server.port, host=host)
            Api(offer, "/bigbluebutton/", Secret(SECRET)).ask("create", {"meetingID": "m1", "name": "m"})

        with pytest.raises(UnansweredError, match="its certificate is not to be trusted: self-signed"):
            ask("localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        ask("localhost")
        with pytest.raises(UnansweredError, match=r"its certificate is not to be trusted: .*127\.0\.0\.1"):
            ask("127.0.0.1")
        assert len(server.calls) == 1, "to who is not trusted nothing is said"


def test_no_tls_is_told(server: BbbServer) -> None:
    api = Api(BigBlueButton("127.0.0.1", server.port, host="127.0.0.1"), "/bigbluebutton/", Secret(SECRET))
    with pytest.raises(UnansweredError, match="no TLS is spoken there"):
        api.ask("create", {"meetingID": "m1"})


# -- answers are a stranger's ------------------------------------------------------------------------------


def told(text: str) -> bytes:
    return f"<response><returncode>SUCCESS</returncode>{text}</response>".encode()


def test_an_answer_is_its_elements_and_its_attendees() -> None:
    attendee = (
        "<attendee><userID>virtoll-1</userID><hasVideo>true</hasVideo><hasJoinedVoice>true</hasJoinedVoice></attendee>"
    )
    answer = parse(
        told(f"<participantCount>1</participantCount><attendees>{attendee}</attendees><metadata><a>b</a></metadata>")
    )
    assert answer.count("participantCount") == 1
    assert [(one.user, one.has_video, one.has_voice) for one in answer.attendees] == [("virtoll-1", True, True)]
    assert "a" not in answer.values


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "٣", "9" * 20])
def test_what_is_no_number_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="no number in <participantCount>"):
        parse(told(f"<participantCount>{text}</participantCount>")).count("participantCount")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html></html>",
        b"<response>",
        b"<response>&a;</response>",
        b'<!DOCTYPE r SYSTEM "file:///etc/passwd"><response/>',
        b'<?xml version="1.0" encoding="nothing"?><response/>',
        b"<a>" * 100_000,
        b"<response>" + b"<a>" * 20 + b"</a>" * 20 + b"</response>",
        told(f"<attendees>{'<attendee/>' * 10_001}</attendees>"),
        b"<response>" + b" " * 2**22 + b"</response>",
    ],
    ids=range(10),
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it"):
        parse(data)


@given(st.one_of(st.binary(), st.text(alphabet="<>/!&;?[]\"'= \nabcresponse").map(str.encode)))
def test_whatever_comes_is_an_answer_or_a_value_error(data: bytes) -> None:
    for whole in (data, told(data.decode("utf-8", "replace"))):
        try:
            answer = parse(whole)
        except ValueError:
            continue
        assert all(isinstance(value, str) for value in answer.values.values())


# -- the secret --------------------------------------------------------------------------------------------


def expect_hidden(text: str, server: BbbServer) -> None:
    """Neither the secret nor any checksum, password or session token that was ever used stands in a text."""
    opens = {SECRET}
    for target in server.targets:
        values = parse_qs(urlsplit(target).query)
        opens |= {each for name in ("checksum", "password", "sessionToken") for each in values.get(name, [])}
    for each in opens:
        assert each not in text
    assert "checksum=" not in text.replace("checksum=...", "")


def test_a_secret_shows_in_no_text() -> None:
    api = Api(BigBlueButton("127.0.0.1", 443, host="b"), "/bigbluebutton/", Secret(SECRET))
    assert SECRET not in f"{api}{api!r}{api.secret}{api.secret!r}"
    words = f"https://b/join?a=b&checksum={'0' * 64}&password=x and {SECRET}, sessionToken%3Dabc {'F' * 40}"
    assert api.hidden(words) == "https://b/join?a=b&checksum=...&password=... and ..., sessionToken%3D... ..."
    assert len(api.hidden("a b " * 1000)) <= 400


def test_the_secret_is_read_from_its_file(secret: Path) -> None:
    assert Secret.read().text == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o666])
def test_a_file_that_others_can_use_is_refused(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(StudyError, match=f"others than its owner may use it .mode {mode:o}.") as raised:
        Secret.read()
    assert f"chmod 600 {secret}" in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"\n", b"two words", b"two\nlines", "ü".encode(), b"x" * 2000, b"nul\0"])
def test_what_is_no_secret_is_refused(secret: Path, data: bytes) -> None:
    secret.write_bytes(data)
    with pytest.raises(StudyError, match="holds no secret"):
        Secret.read()


def test_no_file_or_none_named_is_told(secret: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret.unlink()
    with pytest.raises(StudyError, match="cannot be read: No such file"):
        Secret.read()
    os.mkfifo(secret, 0o600)
    with pytest.raises(StudyError, match="is no file"):
        Secret.read()
    monkeypatch.delenv(bbb_api.SECRET_FILE)
    with pytest.raises(StudyError, match=f"{bbb_api.SECRET_FILE}: no file with the server's secret is named"):
        Secret.read()


# -- the target --------------------------------------------------------------------------------------------


def study_of(more: str = "") -> Study:
    text = f'name = "mine"\nquestion = "?"\n[service]\nname = "bigbluebutton"\n[load]\nname = "bigbluebutton"\n{more}\n'
    return read_study(f'{text}[[arms]]\nplatform = "native"\n', "mine.toml", catalogue())


@pytest.mark.parametrize("path", ["/bigbluebutton/", "/bigbluebutton", "/bigbluebutton/api", "/a/bigbluebutton/api/"])
def test_the_url_that_bbb_conf_prints_is_a_target(path: str) -> None:
    target = Target.parse(f"https://localhost{path}")
    assert target == Target(f"https://localhost{path}", BigBlueButton("127.0.0.1", 443, host="localhost"), path)
    assert load_for(study_of(), target).settings.path == path
    other = Target.parse(f"bbb+http://127.0.0.1:8080{path}")
    assert other.offer == BigBlueButton("127.0.0.1", 8080, host="127.0.0.1", is_tls=False)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://localhost/", "is no API"),
        ("https://localhost/bigbluebutton/api/create", "is no API"),
        ("https://localhost/bigbluebutton/?checksum=1", "is no API"),
        ("bbb+http://192.0.2.1/bigbluebutton/", "is not on this machine: only https goes farther"),
        ("https://me:secret@localhost/bigbluebutton/", "without a user"),
    ],
)
def test_what_is_no_target_of_bigbluebuttons_is_told(url: str, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        Target.parse(url)


def test_without_a_target_the_study_says_that_nothing_is_deployed() -> None:
    problems = catalogue().services["bigbluebutton"]
    assert problems.offers == (BigBlueButton,)
    assert "meeting" in available_studies()
    work = treatments(study_of())[0].work
    assert isinstance(work, Driven)
    assert work.load.takes == work.service.offers
    assert "--target https://HOST/bigbluebutton/" in str(work.service.problems(None)[0])


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
    return Look(round(at_s * S), frozenset(there), frozenset(on), counts)


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


def test_a_window_of_which_the_server_told_too_little_is_none() -> None:
    joins = [Join("a", 1 * S, False, S)]
    with pytest.raises(TrialError, match="told who is in for 50% of the window alone"):
        window(joins, [look(2, "a"), look(10, "a")])
    with pytest.raises(TrialError, match="for 0% of the window"):
        window(joins, [])


@given(st.lists(st.integers(0, 30 * S), max_size=30), st.integers(0, 20), st.integers(1, 10))
def test_looks_never_tell_of_more_than_the_window(ats: list[int], start_s: int, long_s: int) -> None:
    looks = [Look(at_ns, frozenset({"a"}), frozenset(), COUNTS) for at_ns in sorted(ats)]
    seen = Seen(start_s * S, (start_s + long_s) * S, [Join("a", 0, False)], looks)
    assert 0 <= seen.covered_ns <= long_s * S
    assert seen.there_ns(lambda each: len(each.users)) == seen.covered_ns


# -- a whole meeting ---------------------------------------------------------------------------------------


@dataclass
class Double:
    """A browser that asks for the join URL, follows it, and stays connected."""

    port: int
    version: str = "Double/1"
    pages: list[Any] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)  # responses, whose end is the connection's
    dies_at: int = 0  # the page at which it ends
    cpu: int = 0
    refuses: str = ""  # in what words, whatever it is to open

    def open(self, url: str, timeout_s: float) -> Page:
        if self.refuses:
            raise BrowserError("silent", self.refuses, where="a browser's page")
        if self.dies_at == len(self.pages) + 1:
            raise BrowserError("ended", f"Page.navigate: {url}", where="chromium")
        location = self._get(urlsplit(url)).getheader("Location", "")
        self.pages.append(location)
        told = parse_qs(urlsplit(location).query)
        if "sessionToken" in told:
            page = self._get(urlsplit(location)).read().decode()
            if "const camera = true" in page:
                self._get(urlsplit(f"/webcam?sessionToken={told['sessionToken'][0]}"))
            self._get(urlsplit(f"/connection?sessionToken={told['sessionToken'][0]}"))
        key = json.loads(told["errors"][0])[0]["key"] if "errors" in told else ""
        return DoublePage(key)  # type: ignore[return-value]

    def _get(self, parts: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"{parts.path}?{parts.query}")
        self.held.append(connection.getresponse())
        response: http.client.HTTPResponse = self.held[-1]
        return response

    def cpu_ns(self) -> int:
        self.cpu += 1
        return self.cpu


@dataclass
class DoublePage:
    key: str

    def evaluate(self, expression: str, timeout_s: float) -> str:
        return self.key


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
    double.refuses = words
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

    def and_end(stay: bigbluebutton.Stay, watch: meeting.Watch) -> list[Join]:
        joins = come_in(stay, watch)
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


@pytest.mark.usefixtures("alone_here", "secret")
def test_the_secret_and_what_it_opens_stand_in_nothing_that_is_printed_or_kept(
    server: BbbServer, double: Double, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "problems", list)
    kept: list[str] = []
    told_of = targets._told

    def and_keep(load: Any, target: Any, client: Client) -> Any:
        try:
            return told_of(load, target, client)
        finally:
            kept.extend(path.read_text() for path in client.directory.rglob("*") if path.is_file())

    monkeypatch.setattr(targets, "_told", and_keep)
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
def test_real_chromium_joins_with_its_made_up_camera(server: BbbServer, capfd: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() != 0 or (missing := users.problems()):
        pytest.skip(str(missing[0]) if os.geteuid() == 0 else "only root can give Chromium a place of its own")
    url = f"bbb+http://127.0.0.1:{server.port}/bigbluebutton/"
    more = 'participants = 2\nwebcams = 1\njoin = "100 ms"\nsettle = "2 s"\ntime_limit = "1 s"'
    run_target(study_of(more), url, as_json=True)
    said = capfd.readouterr()
    window = json.loads(said.out)["measured"]["windows"][0]
    assert window["events"][JOIN]["completed"] == 2
    assert window["counts"]["webcams_counted_at_end"] == 1
    assert window["cpu_ns"] > 0
    assert re.search(r'"instrument": "[A-Za-z]*Chrome/\d+', said.out)
    expect_hidden(said.out + said.err, server)
    assert server.meetings == {}
