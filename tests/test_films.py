"""Films: their bit rate, their containers, that they are the same each time, and that they lie in an image."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ffmpeg_double import place_of
from virtoll import encoded, films
from virtoll.errors import HostError
from virtoll.films import FORMS, file, inside, laid, made
from virtoll.hosts.base import Completed
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.loads.rtmp_viewers import RtmpViewersLoad
from virtoll.loads.rtsp_viewers import RtspViewersLoad
from virtoll.loads.viewing import ViewingLoad
from virtoll.offers import Film, HttpObject
from virtoll.run.stage import Stage
from virtoll.trial.treatment import Driven

FILM = Film(2 * 10**9, 900_000)


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="module")
def directory() -> Path:
    """A film that was made for real; skips where an image of ffmpeg cannot be had (no mirror)."""
    try:
        rootfs.build(LocalHost(), "films", encoded.PACKAGES, say)
    except HostError as error:
        pytest.skip(str(error))
    return made(LocalHost(), FILM, say)


@pytest.mark.machine
def test_all_containers_hold_the_same_packets(directory: Path) -> None:
    image = rootfs.build(LocalHost(), "films", encoded.PACKAGES, say)
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
    image = rootfs.build(LocalHost(), "films", encoded.PACKAGES, say, lying)
    plain = rootfs.build(LocalHost(), "films", encoded.PACKAGES, say)
    there = image.rootfs / inside(FILM, "mp4")[1:]
    assert there.read_bytes() == file(FILM, "mp4").read_bytes()
    assert there.stat().st_nlink > 1, "not a copy; of the cache's entry, or of one before it that had the same bytes"
    assert image.digest != plain.digest
    assert not (plain.rootfs / "virtoll/films").exists()
    assert rootfs.manifest(image)["files_sha256"] == {inside(FILM, "mp4"): films.manifest(FILM)["sha256"]["mp4"]}


class FullDisk(LocalHost):
    """Where a directory has room for so many bytes."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__()
        self.room_bytes = room_bytes

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        """The command, in a mount namespace of its own: with it goes what is mounted there."""
        place = str(place_of(argv))
        script = 'mount -t tmpfs -o size="$1" none "$2"; shift 2; exec "$@"'
        enter = ["unshare", "--mount", "--", "sh", "-e", "-c", script, "sh", str(self.room_bytes), place]
        return super().run([*enter, *argv], **options)


@pytest.mark.machine
@pytest.mark.parametrize("missing_bytes", [4096, 40_960])
def test_a_full_disk_makes_no_shorter_film(directory: Path, tmp_path: Path, missing_bytes: int) -> None:
    """ffmpeg ends with 0 where its last bytes find no room, unless it is told not to."""
    image = rootfs.build(LocalHost(), "films", encoded.PACKAGES, say)
    host = FullDisk((directory / "film.mp4").stat().st_size - missing_bytes)
    with pytest.raises(HostError, match="No space left on device"):
        films._run(host, image, FILM, tmp_path, films._commands(FILM)[0])


@pytest.mark.machine
def test_a_film_whose_containers_differ_is_none(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, flv, ts = films._commands(FILM)
    monkeypatch.setattr(films, "_commands", lambda _film: [encode, flv, [*ts[:-1], "-t", "1", ts[-1]]])
    with pytest.raises(HostError, match=r"film\.ts holds .* and film\.mp4 .*"):
        films._make(LocalHost(), FILM, tmp_path / "shorter", say)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with what stands for a film that was made."""
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    entry = films._entry(FILM)
    entry.mkdir(parents=True)
    for form in FORMS:
        (entry / f"film.{form}").write_bytes(form.encode())
    digests = {form: hashlib.sha256(form.encode()).hexdigest() for form in FORMS}
    (entry / "manifest.json").write_text(json.dumps({"sha256": digests}))
    return entry


def test_one_that_was_written_to_is_not_used(kept: Path) -> None:
    assert made(LocalHost(), FILM, say) == kept
    (kept / "film.flv").write_bytes(b"cut")
    with pytest.raises(HostError, match="is not as it was made") as raised:
        laid(LocalHost(), FILM, ("mp4",), say)
    assert f"rm -r {kept}" in str(raised.value)


def test_a_cache_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "manifest.json"))

    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(films, "_make", full)
    with pytest.raises(HostError, match="cannot be written: No space left on device"):
        made(LocalHost(), FILM, say)


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
    listed = "audio|180|\n\nvideo|25374\n\n9\n"  # "skip samples" stands beside the first
    assert films._tracks(listed) == {
        "audio": {"packets": 1, "bytes": 180},
        "video": {"packets": 1, "bytes": 25374},
    }


@pytest.mark.parametrize(
    ("film", "is_possible"),
    [
        (FILM, True),
        (Film(4 * 3600 * 10**9, 20_000_000), True),
        (Film(4 * 3600 * 10**9 + 1, 900_000), False),  # its packets would not be counted
        (Film(10**9, 1000), False),
        (Film(10**9, 10**10), False),
    ],
)
@pytest.mark.parametrize("load", [RtmpViewersLoad, RtspViewersLoad])
def test_one_that_cannot_be_made_is_refused_before_hours_of_encoding(
    load: type[ViewingLoad], film: Film, is_possible: bool
) -> None:
    settings = load.Settings(clip_ns=film.duration_ns, bitrate_bit_per_s=float(film.bit_rate))
    problems = load(settings).check(LocalHost())
    assert [str(film) in problem.what for problem in problems] == ([] if is_possible else [True])
    (own,) = [name for name in ("stream", "path") if hasattr(settings, name)]
    assert load(replace(settings, **{own: "/mine"})).check(LocalHost()) == [], "of a user's own none is made"


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


@pytest.mark.machine
def test_whoever_serves_it_can_read_it_whatever_the_umask_of_who_built_the_image(tmp_path: Path) -> None:
    base, film = tmp_path / "base", tmp_path / "film.mp4"
    (base / "rootfs").mkdir(parents=True)
    (base / "rootfs").chmod(0o755)
    (base / "manifest.json").write_text("{}")
    film.write_bytes(b"film")
    film.chmod(0o644)
    before = os.umask(0o077)
    try:
        image = Image("films", "0" * 64, tmp_path / "image")
        rootfs._assemble(LocalHost(), image, base, image.directory, own={}, files={inside(FILM, "mp4"): film})
    finally:
        os.umask(before)
    modes = {path.relative_to(image.rootfs): path.stat().st_mode & 0o777 for path in image.rootfs.rglob("*")}
    assert modes == {
        Path("tmp"): 0o777,
        Path("tmp/.virtoll"): 0o644,
        Path("virtoll"): 0o755,
        Path("virtoll/agent"): 0o755,
        Path("virtoll/films"): 0o755,
        Path(inside(FILM, "mp4")[1:]): 0o644,
    }
    assert image.rootfs.stat().st_mode & 0o777 == 0o755
