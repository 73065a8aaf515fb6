"""BigBlueButton's API: calls and their checksums, the server's errors, answers in XML, and the secret."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbb_place import api_of, expect_hidden, secret_in
from bbb_server import SECRET, BbbServer, Manner
from virtoll.errors import StudyError, TrialError
from virtoll.loads import bbb_api
from virtoll.loads.bbb_api import Api, Refused, Secret, UnansweredError, parse
from virtoll.offers import BigBlueButton


@pytest.fixture
def server() -> Iterator[BbbServer]:
    with BbbServer().running() as running:
        yield running


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return secret_in(tmp_path, monkeypatch)


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


@pytest.mark.parametrize(
    "forever",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"X",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 60,
    ],
    ids=["continues", "status", "chunk"],
)
def test_a_call_has_its_time_as_a_whole_whoever_drips(forever: bytes) -> None:
    """Each piece comes in time; all of them never do."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            client, _ = listening.accept()
            first, rest = forever[:-1], forever[-1:]
            with client, suppress(OSError):
                client.recv(2**16)
                client.sendall(first)
                while True:
                    client.sendall(forever if forever.startswith(b"HTTP/1.1 100") else rest)
                    time.sleep(0.01)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        offer = BigBlueButton("127.0.0.1", listening.getsockname()[1], host="127.0.0.1", is_tls=False)
        with pytest.raises(UnansweredError, match="in time"):
            Api(offer, "/bigbluebutton/", Secret(SECRET), timeout_s=0.3).ask("create", {})
        thread.join()


def test_keys_of_sessions_that_cannot_be_logged_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: BbbServer
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "nowhere" / "keys"))
    api = Api(BigBlueButton("127.0.0.1", server.port, host="127.0.0.1"), "/bigbluebutton/", Secret(SECRET))
    with pytest.raises(UnansweredError, match="No such file"):
        api.ask("create", {})


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
    monkeypatch.setenv(bbb_api.SECRET_FILE, str(tmp_path))
    with pytest.raises(StudyError, match="cannot be read: Is a directory"):
        Secret.read()
    monkeypatch.setenv(bbb_api.SECRET_FILE, SECRET)
    with pytest.raises(StudyError, match="cannot be read: No such file") as raised:
        Secret.read()
    assert SECRET not in str(raised.value), "who names the secret itself need not see it in a log"
    monkeypatch.delenv(bbb_api.SECRET_FILE)
    with pytest.raises(StudyError, match=f"{bbb_api.SECRET_FILE}: no file with the server's secret is named"):
        Secret.read()
