"""LiveKit for real, and participants in its room: on each platform, where it hides an instance's address too."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import contract
from tiny_conference import LIMITS, SETTINGS, measured
from virtoll import footage
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import go, rootfs
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.loads.participants import ParticipantsLoad
from virtoll.offers import LiveKitRoom
from virtoll.platforms.docker import Docker
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.uml import Uml
from virtoll.services.livekit import LiveKit

pytestmark = pytest.mark.machine

# None is emulated: LiveKit gives up by its own clock whoever is not connected yet, and a busy machine is late for that.
PLACES = {
    "native": (Native(), "host"),
    "docker": (Docker(), "routed"),
    "docker-published": (Docker(), "published"),
    "lxc": (Lxc(), "routed"),
    "uml": (Uml(), "routed"),
}
SERVICE = LiveKit()
# Three who send, and two who watch besides.
OF_FIVE = replace(SETTINGS, participants=5, desktops=1, webcams=2)
LOADS: dict[str, ParticipantsLoad] = {
    "vp8": ParticipantsLoad(OF_FIVE),
    "h264": ParticipantsLoad(replace(OF_FIVE, codec="h264")),
}


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="module")
def image() -> Image:
    host = LocalHost()
    try:
        for load in LOADS.values():
            for each in load.footage:
                footage.made(host, each, say)
        brought = go.laid(host, SERVICE.image.programs, say)
        return rootfs.build(host, SERVICE.name, SERVICE.packages, say, brought)
    except HostError as error:
        if "is not what was locked" in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(("place", "codec"), [*((place, "vp8") for place in PLACES), ("native", "h264")])
def test_participants_see_in_its_room_what_is_sent_there(
    lab: Lab, image: Image, place: str, codec: str, tmp_path: Path
) -> None:
    platform, network = PLACES[place]
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, LIMITS, say)
    client = Client(lab.host, generator_confinement(lab), tmp_path, 1)
    with (
        platform.session(lab, image),
        contract.deployed(lab, image, platform, network, LIMITS, ports=SERVICE.ports) as instance,
    ):
        offer = SERVICE.start(instance, None)
        assert isinstance(offer, LiveKitRoom)
        SERVICE.await_ready(instance, offer, client)
        assert SERVICE.verify(offer, client, None) == []
        assert SERVICE.counted(offer, client) == {"participants": 0}
        window = measured(LOADS[codec], client, offer, lambda window: window.work > 0)
    assert window.events["join"].completed >= 5
    assert window.work > 0, "nothing that was sent came to who watches"
