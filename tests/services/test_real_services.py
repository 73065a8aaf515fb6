"""Squid and nginx for real: on native, in a wired lab, asked by a client in the generator's namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

import contract
from virtoll.errors import TrialError
from virtoll.lab.base import ORIGIN_ADDRESS, SUT_GENERATOR_SIDE_ADDRESS, Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.networks.base import Attachment
from virtoll.offers import Http, HttpObject, Port
from virtoll.platforms.base import Instance
from virtoll.platforms.native import Native
from virtoll.services.nginx import Nginx
from virtoll.services.squid import Squid, SquidSettings
from virtoll.study.limits import Limits

pytestmark = pytest.mark.machine

KEPT, LARGE = 10_000, 10_000_000


@dataclass(frozen=True)
class Scene:
    """A lab with an origin in it."""

    lab: Lab
    origin: Http
    client: Client


@contextmanager
def deployed(lab: Lab, name: str, netns: str, address: str, port: int) -> Iterator[Instance]:
    directory = lab.directory / name
    attachment = Attachment("host", "shared", netns, address, (Port(port),))
    with lab.ledger.owning("directory", str(directory)):
        directory.mkdir()
        with Native().deploy(lab, contract.image(), Limits(), attachment, directory) as instance:
            yield instance


@pytest.fixture(scope="module")
def scene(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    contract.skip_unless_ready(Native())
    server = Nginx()
    theirs = lab.at(lab.origin)
    with deployed(theirs, "origin", lab.origin.netns, ORIGIN_ADDRESS, server.port) as instance:
        server.hold(instance, [HttpObject(KEPT), HttpObject(LARGE)])
        client = Client(lab.host, generator_confinement(lab), tmp_path_factory.mktemp("client"), 1)
        yield Scene(lab, server.start(instance, None), client)


@contextmanager
def squid_deployed(lab: Lab) -> Iterator[Instance]:
    with deployed(lab, "squid", lab.sut.netns, SUT_GENERATOR_SIDE_ADDRESS, Squid.port) as instance:
        yield instance


def verify(scene: Scene, service: Nginx | Squid, offer: Http, length_bytes: int) -> list[str]:
    return [str(problem) for problem in service.verify(offer, scene.client, HttpObject(length_bytes))]


@pytest.mark.parametrize("length_bytes", [KEPT, LARGE])
def test_the_origin_serves_its_objects(scene: Scene, length_bytes: int) -> None:
    assert verify(scene, Nginx(), scene.origin, length_bytes) == []


@pytest.mark.parametrize("settings", [SquidSettings(cache="off"), SquidSettings(cache="on")])
def test_squid_proves_itself(scene: Scene, settings: SquidSettings) -> None:
    squid = Squid(settings)
    with squid_deployed(scene.lab) as instance:
        offer = squid.start(instance, scene.origin)
        assert [verify(scene, squid, offer, length) for length in (KEPT, LARGE)] == [[], []]
        other = Squid(replace(settings, cache="on" if settings.cache == "off" else "off"))
        assert "X-Cache says" in verify(scene, other, offer, KEPT)[0]


def test_squid_reaches_nothing_but_the_origin(scene: Scene) -> None:
    squid = Squid()
    with squid_deployed(scene.lab) as instance:
        offer = squid.start(instance, scene.origin)
        elsewhere = replace(offer, upstream=f"{SUT_GENERATOR_SIDE_ADDRESS}:{Squid.port}")
        assert scene.client.get(elsewhere, "/").status == 403


def test_squid_says_why_it_does_not_start(scene: Scene) -> None:
    nowhere = replace(scene.origin, port=70_000)
    with squid_deployed(scene.lab) as instance, pytest.raises(TrialError, match=r"(?s)squid .* log ends with.*FATAL"):
        Squid().start(instance, nowhere)
