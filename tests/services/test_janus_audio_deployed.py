"""Janus's AudioBridge for real: who speaks in its room is heard by all who are there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import contract
from tiny_conference import LIMITS, SETTINGS, measured
from virtoll import footage, voice
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.loads.conference import AUDIO
from virtoll.loads.participants import ParticipantsLoad
from virtoll.offers import JanusRoom
from virtoll.platforms.native import Native
from virtoll.record.model import Window
from virtoll.services.janus import Janus, JanusSettings

pytestmark = pytest.mark.machine

SERVICE = Janus(JanusSettings(publishers=2, participants=10, audio=True))
# Two who send and one more, of whom the first speaks: it hears nothing but silence, and the others it.
LOAD = ParticipantsLoad(
    replace(
        SETTINGS,
        levels=(3,),  # a ramp of one level: they are there until the session ends
        desktops=0,
        webcams=2,
        speakers=1,
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
    platform = Native()
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, LIMITS, say)
    client = Client(lab.host, generator_confinement(lab), tmp_path, 1)
    load = ParticipantsLoad(replace(LOAD.settings, speakers=speakers))
    with (
        platform.session(lab, image),
        contract.deployed(lab, image, platform, "host", LIMITS, ports=SERVICE.ports) as instance,
    ):
        offer = SERVICE.start(instance, None)
        assert isinstance(offer, JanusRoom)
        SERVICE.await_ready(instance, offer, client)
        assert SERVICE.verify(offer, client, None) == []
        assert SERVICE.counted(offer, client) == {"sessions": 0, "participants": 0, "audio_participants": 0}
        there: list[Mapping[str, int] | None] = []
        window = measured(load, client, offer, is_heard, lambda: there.append(SERVICE.counted(offer, client)))
    assert window.events["stay"].failures == {}
    assert is_heard(window), window
    counted = there[-1]
    assert counted is not None
    assert counted["audio_participants"] == 3


def is_heard(window: Window) -> bool:
    """All hear something, and more than silence. Seen: 14 kbit/s of silence, and 28 of others' voices; who speaks alone
    hears the former. Where who speaks, or who mixes, stands still for a while, it is not so of that window.
    """
    listeners = window.counts["audio_listeners"], window.counts["audio_unheard"]
    return listeners == (3, 0) and window.values.keys() >= AUDIO.keys() and window.values["audio_kbit_per_s"] > 17
