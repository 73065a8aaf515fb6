"""Janus's AudioBridge for real: who speaks in its room is heard by all who are there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import contract
from virtoll import footage, voice
from virtoll.errors import HostError, Problem
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.loads.conference import AUDIO
from virtoll.loads.participants import ParticipantsLoad, ParticipantsSettings
from virtoll.networks.base import common_kind, network_modes
from virtoll.offers import JanusRoom
from virtoll.platforms.native import Native
from virtoll.services.janus import Janus, JanusSettings

pytestmark = pytest.mark.machine

LIMITS = replace(contract.LIMITS, memory_bytes=512 * 1024**2, pids=256)
SERVICE = Janus(JanusSettings(publishers=2, participants=10, audio=True))
SECOND = 10**9
# Two who send next to nothing and one more, of whom the first speaks: it hears nothing but silence, and the others it.
LOAD = ParticipantsLoad(
    ParticipantsSettings(
        levels=(3,),  # a ramp of one level: they are there until the session ends
        desktops=0,
        webcams=2,
        webcam_bitrate_bit_per_s=30_000,
        webcam_size="160x90",
        webcam_frames_per_s=5,
        speakers=1,
        patience_ns=60 * SECOND,
        settle_ns=SECOND,
        time_limit_ns=2 * SECOND,
    )
)


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="module")
def image() -> Image:
    host = LocalHost()
    try:
        for each in LOAD.footage:
            footage.made(host, each, say)
        assert LOAD.voice is not None
        voice.made(host, LOAD.voice, say)
        return rootfs.build(host, SERVICE.name, SERVICE.packages, say)
    except HostError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("speakers", [1, 3])
def test_who_speaks_is_heard_by_all(lab: Lab, image: Image, speakers: int, tmp_path: Path) -> None:
    platform, mode = Native(), network_modes()["host"]
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, LIMITS, say)
    client = Client(lab.host, generator_confinement(lab), tmp_path, 1)
    kind = common_kind(platform.name, platform.kinds, mode)
    assert not isinstance(kind, Problem)
    directory = lab.directory / "janus"
    load = ParticipantsLoad(replace(LOAD.settings, speakers=speakers))
    with (
        platform.session(lab, image),
        lab.ledger.owning("directory", str(directory)),
        mode().attach(lab, kind, SERVICE.ports) as attachment,
    ):
        directory.mkdir()
        with platform.deploy(lab, image, LIMITS, attachment, directory) as instance:
            offer = SERVICE.start(instance, None)
            assert isinstance(offer, JanusRoom)
            SERVICE.await_ready(instance, offer, client)
            assert SERVICE.verify(offer, client, None) == []
            assert SERVICE.counted(offer, client) == {"sessions": 0, "participants": 0, "audio_participants": 0}
            with load.session(client, offer) as session:
                window = session.measure().window
                there = SERVICE.counted(offer, client)
    assert (window.events["join"].failures, window.events["stay"].failures) == ({}, {})
    assert AUDIO.keys() <= window.values.keys()
    assert (window.counts["audio_listeners"], window.counts["audio_unheard"]) == (3, 0)
    assert there["audio_participants"] == 3
    # Seen: 14 kbit/s of silence, and 28 of others' voices; who speaks alone hears the former.
    assert window.values["audio_kbit_per_s"] > 17
