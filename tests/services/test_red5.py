"""Red5: what it is made of and started with, what it offers, and what its verification sees."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from virtoll import films
from virtoll.catalogue import catalogue
from virtoll.offers import Film, Offer, Rtmp
from virtoll.services.red5 import Red5, Red5Settings, command
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.trial.treatment import Driven, treatments

ADDRESS = "198.18.3.10"
FILM = Film(1500 * 10**6 + 500_000, 900_000)  # its name has a dot
VOD = Rtmp(ADDRESS, 1935, "vod", "flv:{film}")
SETUP, PICTURE = b"\x17\x00 how to decode", b"\x17\x01" + b"picture" * 100


def test_its_image_has_java_and_every_jar_by_its_digest() -> None:
    wanted = Red5().image
    assert wanted.packages == ("openjdk-17-jre-headless",)
    assert {"red5-server", "red5-server-common", "red5-io", "red5-service", "mina-core"} <= {
        jar.name for jar in wanted.jars
    }
    assert {jar.version for jar in wanted.jars if jar.group == "org.red5"} == {"1.2.12"}, "they fit each other only"
    assert len({jar.file for jar in wanted.jars}) == len(wanted.jars)


class Starting:
    """An agent inside, who lets what is spawned listen at once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ran: list[list[str]] = []
        self.argv: list[str] = []
        self.cwd = self.user = ""

    def put(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def run(self, argv: list[str]) -> None:
        self.ran.append(argv)

    def listening(self, port: int, protocol: str) -> bool:
        return bool(self.argv)

    def spawn(self, argv: list[str], *, cwd: str, user: str, **_: object) -> int:
        self.argv, self.cwd, self.user = argv, cwd, user
        return 7


@pytest.mark.parametrize(("live", "offer"), [(False, VOD), (True, Rtmp(ADDRESS, 1935, "live", is_live=True))])
def test_it_starts_beside_its_films_and_is_not_root(live: bool, offer: Rtmp) -> None:
    agent = Starting()
    where = SimpleNamespace(endpoint_address=ADDRESS)
    instance: Any = SimpleNamespace(agent=agent, services={}, attachment=where, limits=Limits())
    assert Red5(Red5Settings(live)).start(instance, None) == offer
    assert agent.user == "nobody"
    assert agent.ran == [["ln", "-sfn", "/virtoll/films", f"{agent.cwd}/streams"]], "which it looks for where it is"
    path = agent.argv[agent.argv.index("-cp") + 1].split(":")
    assert path == [agent.cwd, *(jar.inside for jar in Red5().image.jars)]
    assert {f"{agent.cwd}/red5.xml", f"{agent.cwd}/logback.xml"} <= agent.files.keys()


def test_all_its_configuration_is_there_and_well_formed() -> None:
    beans = {}
    for file in (files("virtoll.services") / "red5_conf").iterdir():
        root = ET.fromstring(file.read_text(encoding="utf-8"))
        beans[file.name] = [bean.get("id") for bean in root if bean.get("id")]
    assert beans["red5.xml"] == ["red5.common", "red5.applications", "red5.core"]
    assert {"live", "vod"} <= set(beans["applications.xml"])
    assert "rtmpTransport" in beans["core.xml"]


@pytest.mark.parametrize(("vcpus", "collector"), [(1, "-XX:+UseSerialGC"), (2, "-XX:+UseG1GC")])
def test_the_machine_is_what_the_limits_say(vcpus: int, collector: str) -> None:
    words = command(Limits(vcpus=vcpus, memory_bytes=512 * 1024**2), ["/virtoll/jars/a.jar"])
    # Java begins with a 64th of what it sees, of the whole machine where nothing hides that.
    assert {"-Xms262144k", "-Xmx262144k", f"-XX:ActiveProcessorCount={vcpus}", collector} <= set(words)


@pytest.fixture
def _film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for a film that was made."""
    tags = b"".join(bytes([9]) + len(data).to_bytes(3, "big") + bytes(7) + data + bytes(4) for data in (SETUP, PICTURE))
    path = tmp_path / "film.flv"
    path.write_bytes(bytes(13) + tags)
    monkeypatch.setattr(films, "file", lambda film, form: {(FILM, "flv"): path}[film, form])


ADMITTED = bytes(100) + b"NetConnection.Connect.Success" + bytes(300)


@pytest.mark.usefixtures("_film")
@pytest.mark.parametrize(
    ("after", "words"),
    [
        (ADMITTED + SETUP + b"\xc6" + PICTURE[:100] + bytes(4096), []),
        (ADMITTED + SETUP + bytes(4096), ["not seen: the film's first picture"]),
        (bytes(4096), ["not seen: that it lets a client in, the decoder's set-up, the film's first picture"]),
    ],
)
def test_it_is_verified_by_the_film_that_it_plays(after: bytes, words: list[str]) -> None:
    heard = []

    def exchange(offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        heard.append(sent)
        return (b"\x03" + bytes(1536) + sent[1:1537] + after)[:most_bytes]

    visitor: Any = SimpleNamespace(exchange=exchange)
    assert [problem.what for problem in Red5().verify(VOD, visitor, FILM)] == words
    assert b"flv:film-1500.5-900000" in heard[0]


def settings_in_streaming(*, quick: bool) -> list[Any]:
    """Its viewers', under each condition."""
    text = (files("virtoll.studies") / "streaming.toml").read_text(encoding="utf-8")
    works = [treatment.work for treatment in treatments(read_study(text, "streaming.toml", catalogue(), quick=quick))]
    found = [work.load.settings for work in works if isinstance(work, Driven) and work.service.name == "red5"]
    assert found
    return found


@pytest.mark.parametrize("quick", [False, True])
def test_streaming_is_not_measured_while_it_is_compiled(quick: bool) -> None:
    """Twenty viewers had 1.5 s of the compiler's CPU time in each of the first two 5 s, and 0.1 s in the fourth."""
    for settings in settings_in_streaming(quick=quick):
        assert settings.warm_up_ns + settings.settle_ns >= 16 * 10**9  # as 15 s and, with --quick, 1 s were
        longest_ns = settings.patience_ns + settings.warm_up_ns + settings.settle_ns + settings.time_limit_ns
        assert settings.clip_ns > longest_ns, "nobody's film ends"


@pytest.mark.parametrize("quick", [False, True])
def test_streaming_is_measured_when_viewers_have_their_films_ahead(quick: bool) -> None:
    """With 10 s of buffer twenty viewers got 1.25 Mbit/s of a film of 0.9 twelve seconds after the last had begun."""
    # Than it plays: a message (a frame, or a packet of audio) goes out each 10 ms.
    faster = 100 / (films.FRAMES_PER_S + 48_000 / 1024) - 1
    for settings in settings_in_streaming(quick=quick):
        assert settings.settle_ns >= 2 * settings.buffer_ns / faster
