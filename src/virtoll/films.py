"""Films: H.264 and AAC of a length and a bit rate, in the containers that servers read; made once, and cached.

    CACHE/films/
      <film>-<digest12>/    film.mp4  film.flv  film.ts  manifest.json

The three files hold the same encoded packets. ffmpeg makes them of its test source, which burns time and number into
each frame; it runs in an image of Debian's package (`virtoll.images.rootfs`), so this machine needs none. Noise, of a
seed, keeps the encoder at its bit rate: the bare test source, however little it is quantised, gives 3.8 Mbit/s.
Encoder, seed and threads are fixed, and x264 is told to compute alike on all CPUs. Every second is encoded: a minute of
film takes some seconds of one CPU, a quarter of an hour a minute or two.

A film lies at `inside` in the image of a service that holds it, the same on every platform. Through the agent's channel
(seen: 0.7 MB/s into uml, 7 MB/s into qemu-tcg) a quarter of an hour of it would take minutes, with each deployment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from virtoll import encoded
from virtoll.encoded import EXACT, QUIET, WORK
from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.offers import Film

Form = Literal["mp4", "flv", "ts"]
FORMS: tuple[Form, ...] = get_args(Form)
DIRECTORY = "/virtoll/films"  # inside

FRAMES_PER_S, FRAMES_PER_GROUP = 25, 50
_MOST_AUDIO_BIT_PER_S = 96_000
_BUFFER_S = 0.5  # of the decoder that the bit rate is kept for (ITU-T H.264, annex C)
_TOLERANCE = 0.05
_LEAST_BIT_PER_S, _MOST_BIT_PER_S = 100_000, 20_000_000  # `_expect` tells whether it was kept to
_MOST_NS = 4 * 3600 * 10**9  # the list of its packets has some 12 MB then, of the 16 MiB that a command may print


def inside(film: Film, form: Form) -> str:
    """Where a film lies in the image of a service that holds it."""
    return f"{DIRECTORY}/{film.name}.{form}"


def file(film: Film, form: Form) -> Path:
    """Where a film that was made lies on this machine, for whoever publishes it. HostError where it was not made."""
    return encoded.file_of(film, _entry(film), _file(form))


def manifest(film: Film) -> dict[str, Any]:
    """What a film that was made is: ``tracks`` maps "video" and "audio" to ``packets`` and ``bytes``."""
    return encoded.manifest_of(_entry(film))


def digest(film: Film) -> str:
    """The SHA-256 of the first of a film's files, of which the others are copies in other containers."""
    found: str = manifest(film)["sha256"]["mp4"]
    return found


def problems(film: Film) -> list[Problem]:
    """What keeps a film from being made, as far as that is seen before; empty when nothing does."""
    if film.duration_ns <= _MOST_NS and _LEAST_BIT_PER_S <= film.bit_rate <= _MOST_BIT_PER_S:
        return []
    remedy = f"ask for {_LEAST_BIT_PER_S / 1e6:g} to {_MOST_BIT_PER_S / 1e6:g} Mbit/s, and for 4 h at most"
    return [Problem(f"{film} cannot be made", "[load] clip, bitrate", remedy)]


def made(host: Host, film: Film, progress: Callable[[str], None]) -> Path:
    """The directory of a film's files, from the cache where it is there already.

    HostError: no image of ffmpeg can be had, ffmpeg fails, what it makes is not of that bit rate, or what was made has
    been written to.
    """
    return encoded.made(
        film,
        _entry(film),
        lambda place: _make(host, film, place, progress),
        lambda: {_file(form): digest for form, digest in manifest(film)["sha256"].items()},
    )


def laid(host: Host, film: Film, forms: Sequence[Form], progress: Callable[[str], None]) -> dict[str, Path]:
    """A film's files, made where they are missing, by their places inside an image. It is made in any case: whoever
    publishes it has it from the cache (`file`).
    """
    directory = made(host, film, progress)
    return {inside(film, form): directory / _file(form) for form in forms}


def _file(form: Form) -> str:
    return f"film.{form}"


def _entry(film: Film) -> Path:
    return encoded.entry_of("films", film.name, {"commands": [*_commands(film), _packets("mp4")]})


def _make(host: Host, film: Film, place: Path, progress: Callable[[str], None]) -> None:
    image = encoded.begun(host, film, place, progress)
    for command in _commands(film):
        _run(host, image, film, place, command)
    tracks = {form: _tracks(_run(host, image, film, place, _packets(form))) for form in FORMS}
    _expect(film, tracks["mp4"])
    _expect_alike(film, {form: {kind: each["packets"] for kind, each in tracks[form].items()} for form in FORMS})
    digests = {}
    for form in FORMS:
        path = place / _file(form)
        path.chmod(0o644)
        digests[form] = encoded.sha256_of(path)
    encoded.noted("film", film, place, image, {"sha256": digests, "tracks": tracks["mp4"]})


def _commands(film: Film) -> list[list[str]]:
    """ffmpeg's command lines, inside: one encodes, the others copy what it has encoded."""
    length_s = film.duration_ns / 1e9
    audio = min(_MOST_AUDIO_BIT_PER_S, film.bit_rate // 4)
    video = film.bit_rate - audio
    picture = f"testsrc2=size=640x360:rate={FRAMES_PER_S}:duration={length_s:.9f},noise=all_seed=1:alls=20:allf=t"
    sound = f"sine=frequency=440:beep_factor=4:sample_rate=48000:duration={length_s:.9f}"
    h264 = f"-c:v libx264 -profile:v baseline -preset veryfast -pix_fmt yuv420p -threads 1 -b:v {video}"
    h264 += f" -maxrate {video} -bufsize {round(video * _BUFFER_S)} -sc_threshold 0"
    h264 += f" -g {FRAMES_PER_GROUP} -keyint_min {FRAMES_PER_GROUP} -x264-params threads=1:cpu-independent=1"
    aac = f"-c:a aac -ac 2 -b:a {audio}"
    first = f"{WORK}/film.mp4"
    encode = [*QUIET, "-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound, *h264.split(), *aac.split()]
    copy = [*QUIET, "-i", first, "-c", "copy", *EXACT]
    return [
        [*encode, *EXACT, "-f", "mp4", "-movflags", "+faststart", first],
        [*copy, "-f", "flv", f"{WORK}/film.flv"],
        [*copy, "-f", "mpegts", f"{WORK}/film.ts"],
    ]


def _packets(form: Form) -> list[str]:
    """ffprobe's command line that lists kind and size of each packet."""
    command = "ffprobe -v error -show_entries packet=codec_type,size -of compact=p=0:nk=1"
    return [*command.split(), f"{WORK}/film.{form}"]


def _run(host: Host, image: Image, film: Film, place: Path, command: list[str]) -> str:
    timeout_s = 600 + 10 * film.duration_ns / 1e9  # generous: the machine may be busy
    return encoded.run_inside(host, image, place, command, what=film, timeout_s=timeout_s)


def _tracks(listed: str) -> dict[str, dict[str, int]]:
    tracks: dict[str, dict[str, int]] = defaultdict(lambda: {"packets": 0, "bytes": 0})
    for kind, size_bytes in re.findall(r"^([a-z]+)\|(\d+)", listed, re.MULTILINE):
        tracks[kind]["packets"] += 1
        tracks[kind]["bytes"] += int(size_bytes)
    return dict(tracks)


def _expect(film: Film, tracks: Mapping[str, Mapping[str, int]]) -> None:
    """HostError where a track is missing, or the encoder did not keep to the rate: it may be off by what its buffer
    holds.
    """
    got_bit = 8 * sum(track["bytes"] for track in tracks.values())
    expected_bit = film.bit_rate * film.duration_ns / 1e9
    off_bit = abs(got_bit - expected_bit)
    if tracks.keys() != {"video", "audio"} or off_bit > _TOLERANCE * expected_bit + _BUFFER_S * film.bit_rate:
        rate = got_bit / (film.duration_ns / 1e9)
        raise HostError(
            f"{film} cannot be made: {' and '.join(tracks) or 'nothing'} of {rate / 1e6:.3g} Mbit/s came of it",
            remedy="ask for another bit rate, and for a second at least",
        )


def _expect_alike(film: Film, packets: Mapping[Form, Mapping[str, int]]) -> None:
    """HostError where a container does not hold the packets that were encoded."""
    for form, counts in packets.items():
        if counts != packets["mp4"]:
            what = f"{film} cannot be made: film.{form} holds {dict(counts)} packets, and film.mp4 {packets['mp4']}"
            raise HostError(what, remedy="see that the disk has room")
