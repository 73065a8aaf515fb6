"""A BigBlueButton server as a target: which URLs are one, and what is said of others."""

from __future__ import annotations

import socket

import pytest

from bbb_place import study_of
from virtoll.catalogue import catalogue
from virtoll.errors import StudyError
from virtoll.offers import BigBlueButton, Target
from virtoll.run import target as targets
from virtoll.run.named import available_studies
from virtoll.run.target import load_for
from virtoll.trial.treatment import Driven, treatments


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
        ("https://localhost/ü/bigbluebutton/", "is no API"),
        ("https://localhost/\u0663/bigbluebutton/", "is no API"),
        ("https://me:secret@localhost/bigbluebutton/", "without a user"),
    ],
)
def test_what_is_no_target_of_bigbluebuttons_is_told(url: str, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        Target.parse(url)


def test_a_join_url_is_not_repeated_when_it_is_no_target() -> None:
    with pytest.raises(StudyError, match="is no API") as raised:
        Target.parse(f"https://localhost/bigbluebutton/api/join?meetingID=m&password=abc&checksum={'0' * 40}")
    assert "0000" not in str(raised.value)
    assert "abc" not in str(raised.value)


def test_who_names_a_web_server_by_https_is_told_what_goes() -> None:
    with pytest.raises(StudyError, match="by https no load but BigBlueButton's") as raised:
        Target.parse("https://localhost/index.html")
    assert "http://" in raised.value.problems[0].remedy
    assert "https://HOST/bigbluebutton/" in raised.value.problems[0].remedy


def test_without_tls_a_name_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead elsewhere the next time."""
    told = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: told)
    target = Target.parse("bbb+http://elsewhere.example/bigbluebutton/")
    assert target.offer == BigBlueButton("127.0.0.1", 80, host="127.0.0.1", is_tls=False)


def test_what_is_announced_does_not_promise_where_pages_lead() -> None:
    target = Target.parse("https://localhost/bigbluebutton/")
    told = targets._announced(load_for(study_of(), target), target)
    assert "to nobody else" not in told
    assert "where its pages lead" in told


def test_without_a_target_the_study_says_that_nothing_is_deployed() -> None:
    problems = catalogue().services["bigbluebutton"]
    assert problems.offers == (BigBlueButton,)
    assert "meeting" in available_studies()
    work = treatments(study_of())[0].work
    assert isinstance(work, Driven)
    assert work.load.takes == work.service.offers
    assert "--target https://HOST/bigbluebutton/" in str(work.service.problems(None)[0])
