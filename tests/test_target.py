"""`virtoll run STUDY --target URL`: a study's load at a server of one's own, and nothing else."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from viewers_server import MediaServer
from virtoll import cli
from virtoll.catalogue import catalogue
from virtoll.cli import common
from virtoll.cli.verbs import run as verb
from virtoll.errors import StudyError
from virtoll.hosts.ledger import standing, state_directory
from virtoll.lab.client import Client
from virtoll.offers import Http, Rtmp, Rtsp, Target
from virtoll.run import target as targets
from virtoll.run.target import load_for, refuse_beside, run_target
from virtoll.study.file import read_study
from virtoll.study.model import Study

STUDY = """
name = "mine"
question = "How many?"
[service]
name = "SERVICE"
[load]
name = "LOAD"
[[arms]]
platform = "native"
"""


def study_of(service: str, load: str, more: str = "") -> Study:
    text = STUDY.replace("SERVICE", service).replace('"LOAD"', f'"{load}"\n{more}')
    return read_study(text, "mine.toml", catalogue())


def test_a_url_says_what_is_offered_where_and_what_is_asked_for() -> None:
    http = Target.parse("http://localhost:8080/a/b?c=d")
    assert http.offer == Http("127.0.0.1", 8080, upstream="localhost:8080")
    assert http.path == "/a/b?c=d"
    assert Target.parse("http://127.0.0.1").path == "/"
    assert Target.parse("http://127.0.0.1?c=d").path == "/?c=d"
    rtmp = Target.parse("rtmp://127.0.0.1/vod/mp4:film.mp4")
    assert (rtmp.offer, rtmp.path) == (Rtmp("127.0.0.1", 1935, application="vod"), "mp4:film.mp4")
    rtsp = Target.parse("rtsp://127.0.0.1:8554/clip")
    assert (rtsp.offer, rtsp.path) == (Rtsp("127.0.0.1", 8554), "/clip")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://127.0.0.1/", "is of no protocol that a load speaks by a URL: http, rtmp, rtsp, https"),
        ("127.0.0.1:80", "is of no protocol"),
        ("http://", "must be a protocol, a host and a path alone"),
        ("http://me:secret@127.0.0.1/", "without a user"),
        ("http://127.0.0.1:99999/", "is no URL"),
        ("http://no-such-host.invalid/", "names no server"),
        ("http://no..host/", "names no server"),
        (f"http://{'a' * 64}.example/", "names no server"),
        ("http://a..b/", "names no server"),  # no label of a name is empty
        ("http://127.0.0.1:0/", "is no URL: port 0"),
        ("http://me:sec/secret@127.0.0.1/", "is no URL$"),
        ("rtmp://127.0.0.1/vod", "names no stream"),
        ("rtmp://127.0.0.1/", "names no stream"),
    ],
)
def test_what_is_no_target_is_told(url: str, told: str) -> None:
    with pytest.raises(StudyError, match=re.compile(told, re.MULTILINE)) as raised:
        Target.parse(url)
    assert "sec" not in str(raised.value)


def test_a_kill_leaves_its_directory_to_clean(monkeypatch: pytest.MonkeyPatch, alone_here: None) -> None:
    """What is made for the length of a run is in a ledger before it is there."""
    seen: list[Path] = []

    def told(_load: object, _target: object, client: Client) -> None:
        assert client.directory.is_dir()
        ledgers = [path.read_text() for path in (state_directory() / "ledger").glob("target-*.jsonl")]
        assert any(entry.name == str(client.directory) for text in ledgers for entry in standing(text))
        seen.append(client.directory)
        raise KeyboardInterrupt

    monkeypatch.setattr(targets, "_told", told)
    with pytest.raises(KeyboardInterrupt):
        run_target(study_of("nginx", "http"), "http://127.0.0.1/", as_json=True)
    assert [path.exists() for path in seen] == [False]


def test_a_load_that_writes_goes_to_no_server_of_the_users() -> None:
    study = study_of("redis", "redis")
    with pytest.raises(StudyError, match="no load of mine asks by http for what is there, and writes nothing"):
        load_for(study, Target.parse("http://127.0.0.1/"))


def test_what_goes_to_a_target_is_announced() -> None:
    target = Target.parse("http://127.0.0.1:8080/")
    told = {
        more: targets._announced(load_for(study_of("nginx", "http", more), target), target)
        for more in ("connections = 7", 'loop = "open"\nrate = "2000 /s"\nconnections = 50')
    }
    closed, opened = told.values()
    assert "to nobody else: 7 at once, for 10 s" in closed
    assert "to nobody else: 2,000 requests a second, 50 at once at the most, for 10 s" in opened


def test_an_empty_url_is_none_and_nothing_is_deployed_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As of a shell's variable that is not set."""

    def deployed(_request: object) -> int:
        raise AssertionError("the study is run")

    monkeypatch.setattr(common, "require_root", lambda: None)
    monkeypatch.setattr(verb, "run_study", deployed)
    (tmp_path / "mine.toml").write_text(STUDY.replace("SERVICE", "nginx").replace("LOAD", "http"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(tmp_path / "mine.toml"), "--target", ""])
    assert ended.value.code == StudyError.exit_code
    assert "is of no protocol that a load speaks" in capsys.readouterr().err


def test_options_of_arms_are_refused() -> None:
    with pytest.raises(StudyError, match="--blocks, --dry-run are for arms that are deployed"):
        refuse_beside({"blocks": 3, "out": None, "dry_run": True, "explain": False})
    with pytest.raises(StudyError, match="--seed is for arms that are deployed"):
        refuse_beside({"seed": 0})


@pytest.fixture
def alone_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is not asked for: the load goes to loopback."""
    monkeypatch.setattr(targets, "alone", lambda _host: nullcontext([]))


@pytest.mark.usefixtures("alone_here")
def test_the_load_asks_the_target_and_tells_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of("nginx", "http", 'connections = 2\ntime_limit = "200 ms"\nwarm_up = "0 s"')
    with MediaServer() as server:
        host, port = server.where
        code = run_target(study, f"http://{host}:{port}/o/1000", as_json=True)
        assert set(server.asked) == {"/o/1000"}
    told = capsys.readouterr()
    assert f"goes to http://{host}:{port}/o/1000 ({host}:{port}), and to nobody else: 2 at once" in told.err
    found = json.loads(told.out)
    events = found["measured"]["windows"][0]["events"]["request"]
    assert events["failures"] == {}
    assert events["completed"] > 0
    assert found["rate_per_s"] > 0
    assert code == (0 if all(check["passed"] is not False for check in found["checks"]) else 1)


@pytest.mark.usefixtures("alone_here")
def test_a_target_that_does_not_answer_as_it_should_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of("nginx", "http", 'connections = 1\ntime_limit = "100 ms"\nwarm_up = "0 s"')
    with MediaServer() as server:
        host, port = server.where
        assert run_target(study, f"http://{host}:{port}/nowhere", as_json=False) == 1
    told = capsys.readouterr().out
    assert "failed: status" in told
    assert "NOT VALID: requests were answered" in told
