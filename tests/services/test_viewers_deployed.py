"""Viewers of a real nginx: on native, in a wired lab, from the generator's namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import contract
from virtoll.lab.base import ORIGIN_ADDRESS, Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.networks.base import Attachment
from virtoll.offers import Clip, HttpObject, Port
from virtoll.platforms.base import Instance
from virtoll.platforms.native import Native
from virtoll.record.model import Window
from virtoll.services.nginx import Nginx
from virtoll.study.limits import Limits
from windows import failures, until

pytestmark = pytest.mark.machine

SECOND = 10**9


@dataclass(frozen=True)
class Scene:
    """An instance for nginx, and a client."""

    instance: Instance
    client: Client


@pytest.fixture(scope="module")
def scene(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    contract.skip_unless_ready(Native())
    theirs, directory = lab.at(lab.origin), lab.directory / "viewers"
    attachment = Attachment("host", "shared", lab.origin.netns, ORIGIN_ADDRESS, (Port(Nginx.port),))
    with lab.ledger.owning("directory", str(directory)):
        directory.mkdir()
        with Native().deploy(theirs, contract.image(), Limits(), attachment, directory) as instance:
            room: Path = tmp_path_factory.mktemp("client")
            yield Scene(instance, Client(lab.host, generator_confinement(lab), room, 1))


def load_of(**settings: Any) -> ViewersLoad:
    defaults: dict[str, Any] = {
        "viewers": 20,
        "clip_ns": 20 * SECOND,
        "join_ns": SECOND // 100,
        "settle_ns": SECOND,
        "time_limit_ns": 2 * SECOND,
        "startup_ns": SECOND,
        "patience_ns": 600 * SECOND,
    }
    return ViewersLoad(ViewersSettings(**{**defaults, **settings}))


LOADS = (
    load_of(),
    load_of(paced=False, viewers=2),
    load_of(delivery="hls", qualities=3),
    load_of(delivery="dash", qualities=3),
    load_of(delivery="hls", qualities=2, quality="lowest", segment_ns=3 * SECOND),
)


def test_nginx_holds_proves_and_serves_what_viewers_watch(scene: Scene) -> None:
    nginx, contents = Nginx(), [load.content for load in LOADS]
    held = [content for content in contents if isinstance(content, HttpObject | Clip)]
    assert len(held) == len(LOADS)
    nginx.hold(scene.instance, held)
    offer = nginx.start(scene.instance, None)
    for load, content in zip(LOADS, held, strict=True):
        assert nginx.verify(offer, scene.client, content) == []
        with load.session(scene.client, offer) as session:
            watched(load, [one.window for one in until(session, lambda windows: is_watched(windows[-1]))])


def is_watched(window: Window) -> bool:
    """Whether anything came, and was watched: where all stood still for a while, it was not."""
    return window.work > 0 and window.values["goodput_mbit_per_s"] > 0


def watched(load: ViewersLoad, windows: Sequence[Window]) -> None:
    """All of them began to play, and every byte was the right one."""
    assert all(found == {} for found in failures(windows)), load.settings
    asked = windows[0].events["start-up"]
    assert asked.completed == asked.offered >= load.settings.viewers
    assert is_watched(windows[-1])
