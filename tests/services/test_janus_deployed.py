"""Janus for real, on each platform that the machine has, and in each network mode that hides an instance's address."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import contract
from tiny_conference import LIMITS, SETTINGS, measured
from virtoll import footage
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.loads.participants import ParticipantsLoad
from virtoll.offers import Codec, JanusRoom
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.docker import Docker
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.platforms.uml import Uml
from virtoll.services.janus import Janus, JanusSettings

pytestmark = pytest.mark.machine

PLACES = {
    "native": (Native(), "host"),
    "docker": (Docker(), "routed"),
    "docker-nat": (Docker(), "nat"),
    "docker-published": (Docker(), "published"),
    "lxc": (Lxc(), "routed"),
    "uml": (Uml(), "routed"),
    "qemu-tcg": (QemuTcg(), "routed"),
}
SERVICE = Janus(JanusSettings(publishers=2, participants=20, bitrate_bit_per_s=300_000))
# Two who send, and one who watches besides.
LOADS = {
    codec: ParticipantsLoad(replace(SETTINGS, participants=3, desktops=1, webcams=1, codec=codec))
    for codec in get_args(Codec)
}


def say(line: str) -> None:
    print(line, file=sys.stderr)


@pytest.fixture(scope="module")
def image() -> Image:
    try:
        return rootfs.build(LocalHost(), SERVICE.name, SERVICE.packages, say)
    except HostError as error:
        pytest.skip(str(error))


def deployed(lab: Lab, image: Image, platform: Platform, network: str) -> AbstractContextManager[Instance]:
    """A fresh instance with Janus's ports."""
    return contract.deployed(lab, image, platform, network, LIMITS, ports=SERVICE.ports)


@pytest.mark.parametrize("place", PLACES)
def test_a_room_is_there_as_it_was_configured(lab: Lab, image: Image, place: str, tmp_path: Path) -> None:
    platform, network = PLACES[place]
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, LIMITS, say)
    client = Client(lab.host, generator_confinement(lab), tmp_path, 1)
    with platform.session(lab, image), deployed(lab, image, platform, network) as instance:
        offer = SERVICE.start(instance, None)
        assert isinstance(offer, JanusRoom)
        SERVICE.await_ready(instance, offer, client)
        assert SERVICE.verify(offer, client, None) == []
        assert SERVICE.counted(offer, client) == {"sessions": 0, "participants": 0}
        (problem,) = Janus(replace(SERVICE.settings, publishers=3)).verify(offer, client, None)
        assert "max_publishers 2, not 3" in problem.what


@pytest.mark.parametrize("codec", LOADS)
@pytest.mark.parametrize("place", ["native", "docker"])
def test_participants_see_in_its_room_what_is_sent_there(
    lab: Lab, image: Image, place: str, codec: Codec, tmp_path: Path
) -> None:
    platform, network = PLACES[place]
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, LIMITS, say)
    for each in LOADS[codec].footage:
        footage.made(lab.host, each, say)
    client = Client(lab.host, generator_confinement(lab), tmp_path, 1)
    with platform.session(lab, image), deployed(lab, image, platform, network) as instance:
        offer = SERVICE.start(instance, None)
        SERVICE.await_ready(instance, offer, client)
        window = measured(LOADS[codec], client, offer, lambda window: window.work > 0)
        assert SERVICE.verify(offer, client, None) == []
    assert window.events["join"].completed >= 3
    assert window.work > 0, "nothing that was sent came to who watches"
