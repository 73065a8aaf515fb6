"""Films: their bit rate, their containers, that they are the same each time, and that they lie in an image."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll import films
from virtoll.errors import HostError
from virtoll.films import FORMS, file, inside, laid, made
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.offers import Film, HttpObject
from virtoll.run.stage import Stage
from virtoll.trial.treatment import Driven

pytestmark = pytest.mark.timeout(1800)  # in the first of them ffmpeg is installed

FILM = Film(2 * 10**9, 900_000)


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="module")
def directory() -> Path:
    """A film that was made for real; skips where an image of ffmpeg cannot be had (no mirror)."""
    try:
        rootfs.build(LocalHost(), "films", films.PACKAGES, say)
    except HostError as error:
        pytest.skip(str(error))
    return made(LocalHost(), FILM, say)


@pytest.mark.machine
def test_all_containers_hold_the_same_packets(directory: Path) -> None:
    image = rootfs.build(LocalHost(), "films", films.PACKAGES, say)
    expected = films.manifest(FILM)["tracks"]
    assert expected["video"]["packets"] == 2 * films.FRAMES_PER_S
    for form in FORMS:
        said = films._run(LocalHost(), image, FILM, directory, films._packets(form))
        found = films._tracks(said)
        assert {kind: track["packets"] for kind, track in found.items()} == {
            kind: track["packets"] for kind, track in expected.items()
        }, form


@pytest.mark.machine
def test_made_anew_it_is_the_same(directory: Path, tmp_path: Path) -> None:
    films._make(LocalHost(), FILM, tmp_path / "again", say)
    first, again = (json.loads((place / "manifest.json").read_text()) for place in (directory, tmp_path / "again"))
    assert first == again, "the digests of all three files are in it"


@pytest.mark.machine
def test_it_lies_in_an_image_as_it_is_in_the_cache(directory: Path) -> None:
    lying = laid(LocalHost(), FILM, ("mp4",), say)
    assert lying == {inside(FILM, "mp4"): directory / "film.mp4"}
    image = rootfs.build(LocalHost(), "films", films.PACKAGES, say, lying)
    plain = rootfs.build(LocalHost(), "films", films.PACKAGES, say)
    there = image.rootfs / inside(FILM, "mp4")[1:]
    assert there.stat().st_ino == file(FILM, "mp4").stat().st_ino
    assert image.digest != plain.digest
    assert not (plain.rootfs / "virtoll/films").exists()
    assert rootfs.manifest(image)["files_sha256"] == {inside(FILM, "mp4"): films.manifest(FILM)["sha256"]["mp4"]}


def test_it_is_made_for_its_publisher_where_the_service_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Film] = []
    monkeypatch.setattr(films, "made", lambda _host, film, _say: asked.append(film))
    assert laid(LocalHost(), FILM, (), say) == {}
    assert asked == [FILM]


def test_one_that_was_not_made_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    with pytest.raises(HostError, match=r"a film of 2 s at 0\.9 Mbit/s was not made"):
        file(FILM, "flv")


@pytest.mark.parametrize(
    ("tracks", "is_right"),
    [
        ({"video": 1_000_000, "audio": 125_000}, True),
        ({"video": 1_000_000, "audio": 200_000}, True),  # what its buffer holds, and 5 %
        ({"video": 1_000_000, "audio": 260_000}, False),
        ({"video": 900_000, "audio": 100_000}, False),
        ({"video": 1_125_000}, False),
        ({}, False),
    ],
)
def test_a_film_is_of_its_bit_rate_or_none(tracks: dict[str, int], is_right: bool) -> None:
    told = {kind: {"packets": 1, "bytes": size_bytes} for kind, size_bytes in tracks.items()}
    film = Film(10 * 10**9, 900_000)
    if is_right:
        films._expect(film, told)
        return
    with pytest.raises(HostError, match="cannot be made"):
        films._expect(film, told)


def test_what_ffprobe_lists_is_counted_whatever_stands_beside_it() -> None:
    listed = "packet|codec_type=audio|size=180|side_data|\n\npacket|codec_type=video|size=25374\nside_data|size=9\n"
    assert films._tracks(listed) == {
        "audio": {"packets": 1, "bytes": 180},
        "video": {"packets": 1, "bytes": 25374},
    }


def test_what_loads_ask_for_comes_into_the_image_as_the_service_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that any condition asks for, of whichever service: they share the image."""
    asked = [(FILM, "flv"), (None, "flv"), (FILM, "ts"), (Film(10**9, 2_000_000), "mp4"), (HttpObject(10), "ts")]
    works = [
        Driven(cast(Any, SimpleNamespace(films=(form,))), None, cast(Any, SimpleNamespace(content=content)))
        for content, form in asked
    ]
    monkeypatch.setattr(Stage, "asked", [SimpleNamespace(work=work) for work in works])
    monkeypatch.setattr(films, "made", lambda _host, film, _say: Path("/cache", film.name))
    found = Stage(cast(Any, None), LocalHost())._films(say)
    assert found == {
        f"/virtoll/films/{name}.{form}": Path("/cache", name, f"film.{form}")
        for name, form in (("film-2000-900000", "flv"), ("film-2000-900000", "ts"), ("film-1000-2000000", "mp4"))
    }
