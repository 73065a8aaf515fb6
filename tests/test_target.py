"""`virtoll run STUDY --target URL`: a study's load at a server of one's own, and nothing else."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from rtsp_server import RtspServer
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
    assert Target.parse("rtmp://127.0.0.1/vod/a film").path == "a film"
    rtsp = Target.parse("rtsp://127.0.0.1:8554/clip")
    assert (rtsp.offer, rtsp.path) == (Rtsp("127.0.0.1", 8554), "/clip")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://127.0.0.1/", "is of no protocol that a load speaks by a URL: http, rtmp, rtsp, https"),
        ("127.0.0.1:80", "is of no protocol"),
        ("http://", "must be a protocol, a host and a path alone"),
        ("http://me:secret@127.0.0.1/", "without a user"),
        ("me:secret@127.0.0.1/", r"\.\.\.@127\.0\.0\.1/ is of no protocol"),  # it was shown, for want of two slashes
        ("http:me:secret@127.0.0.1/", r"\.\.\.@127\.0\.0\.1/ must be a protocol"),
        ("http://127.0.0.1:99999/", "is no URL"),
        ("http://no-such-host.invalid/", "names no server"),
        ("http://no..host/", "names no server"),
        (f"http://{'a' * 64}.example/", "names no server"),
        ("http://a..b/", "names no server"),  # no label of a name is empty
        ("http://127.0.0.1:0/", "is no URL: port 0"),
        ("http://me:sec/secret@127.0.0.1/", "is no URL$"),
        # Blanks in the first line of a request: all of them were answered by 400, and nobody said why.
        ("http://127.0.0.1/a b", "without blanks: write others as %20"),
        ("http://127.0.0.1/?q=a b", "without blanks"),
        ("http://127.0.0.1/\u00e4", "printable ASCII alone"),
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


# -- streaming ---------------------------------------------------------------------------------------------


class Visited(RtspServer):
    """It notes each connection, whatever is then said over it."""

    def __init__(self) -> None:
        super().__init__()
        self.visits = 0

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.visits += 1
        return super().verify_request(request, client_address)


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch, alone_here: None, tmp_path: Path) -> Path:
    """The ready-made study, with windows of half a second, asked of by anybody."""
    monkeypatch.setattr(common, "require_root", lambda: None)
    text = (files("virtoll.studies") / "streaming.toml").read_text(encoding="utf-8")
    for asked, given in (('settle = "1 s"', 'settle = "100 ms"'), ('time_limit = "2500 ms"', 'time_limit = "500 ms"')):
        assert asked in text
        text = text.replace(asked, given)
    (tmp_path / "streaming.toml").write_text(text)
    return tmp_path / "streaming.toml"


def note_said(words: list[str], server: Visited, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note what is printed before the load begins, and that nobody has called at the server then."""

    def say(text: str) -> None:
        assert server.visits == 0, "it says so before it begins"
        words.append(text)

    monkeypatch.setattr(targets, "_say", say)


def ended(path: Path, url: str) -> int:
    with pytest.raises(SystemExit) as raised:
        cli.main(["run", str(path), "--quick", "--target", url, "--json"])
    return int(str(raised.value.code))


def test_streaming_loads_the_rtsp_server_that_is_named_and_says_so_before_it_begins(
    streaming: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words: list[str] = []
    with Visited() as server:
        note_said(words, server, monkeypatch)
        address, port = server.where
        url = f"rtsp://localhost:{port}/clip"
        code = ended(streaming, url)
        assert server.visits >= 10
        assert server.asked.count("PLAY") >= 10
    (announced,) = words
    assert f"rtsp-viewers goes to {url} ({address}:{port}), and to nobody else: 10 at once, for 500 ms" in announced
    told = json.loads(capsys.readouterr().out)
    assert (told["target"], told["address"]) == (url, f"{address}:{port}")
    window = told["measured"]["windows"][0]
    assert window["events"]["start-up"]["completed"] >= 10
    assert window["work"] > 0
    assert code == (0 if all(check["passed"] is not False for check in told["checks"]) else 1)


FOREIGN = """v=0\r
o=- 1 1 IN IP4 {host}\r
s=-\r
c=IN IP4 {host}\r
a=control:rtsp://{host}:{port}/\r
a=range:npt=0-3600\r
m=video 0 RTP/AVP 96\r
a=rtpmap:96 H264/90000\r
a=control:rtsp://{host}:{port}/track=0\r
"""


@pytest.mark.parametrize("way", ["redirect", "description"])
def test_an_rtsp_server_that_names_another_sends_nobody_there(
    streaming: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a redirect, which is told as a failure; or by the URLs of what it describes, which are but names to it."""
    with Visited() as server, Visited() as other:
        note_said([], server, monkeypatch)
        host, port = other.where
        if way == "redirect":
            server.manner, server.location = "elsewhere", f"rtsp://{host}:{port}/clip"
        else:
            server.announced = FOREIGN.format(host=host, port=port)
        code = ended(streaming, f"rtsp://127.0.0.1:{server.where[1]}/clip")
        assert server.visits >= 10
        assert other.visits == 0
    events = json.loads(capsys.readouterr().out)["measured"]["windows"][0]["events"]["start-up"]
    if way == "redirect":
        assert (code, events["completed"], set(events["failures"])) == (1, 0, {"status 302"})
    else:
        assert events["completed"] >= 10
