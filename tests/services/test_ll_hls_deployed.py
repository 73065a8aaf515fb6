"""Low-latency HLS that is served for real, and its viewers: on native, Docker and LXC."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import contract
from virtoll.errors import HostError
from virtoll.images import rootfs
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.lab.wiring import generator_confinement
from virtoll.loads.ll_hls_viewers import LlHlsViewersLoad, LlHlsViewersSettings
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.offers import LiveHttp
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.docker import Docker
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.record.model import Window
from virtoll.services import daemon
from virtoll.services.nginx_ll_hls import NginxLlHls, NginxLlHlsSettings

pytestmark = pytest.mark.machine

SECOND = 10**9
LIMITS = replace(contract.LIMITS, memory_bytes=256 * 1024**2, pids=64)
PLATFORMS: dict[str, Platform] = {platform.name: platform for platform in (Native(), Docker(), Lxc())}
# Patience is for slow machines, and so is how well the clock is known.
LOAD = LlHlsViewersLoad(
    LlHlsViewersSettings(
        viewers=5,
        clip_ns=12 * SECOND,
        settle_ns=SECOND,
        time_limit_ns=4 * SECOND,
        patience_ns=600 * SECOND,
        clock_within_ns=60 * SECOND,
    )
)


@dataclass(frozen=True)
class Scene:
    """A platform that is ready, and a client."""

    lab: Lab
    platform: Platform
    client: Client


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    platform = PLATFORMS[request.param]
    contract.skip_unless_ready(platform)
    room: Path = tmp_path_factory.mktemp("client")
    return Scene(lab, platform, Client(lab.host, generator_confinement(lab), room, 1))


@contextmanager
def served(scene: Scene, service: NginxLlHls) -> Iterator[tuple[Instance, LiveHttp]]:
    """The service in an instance of the scene's platform, with the media in it."""
    lab, platform = scene.lab, scene.platform
    try:
        image = rootfs.build(lab.host, service.name, service.packages, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))
    platform.prepare(lab.host, image, LIMITS, lambda line: print(line, file=sys.stderr))
    with (
        platform.session(lab, image),
        contract.deployed(lab, image, platform, limits=LIMITS) as instance,
    ):
        service.hold(instance, [LOAD.settings.live])
        yield instance, service.start(instance, None)


def at_the_live_edge(scene: Scene, offer: LiveHttp, said: str) -> Window:
    """The first window in which viewers got hold of a part before it was listed, and told how old media were.

    Where CPUs are busy they may lag behind the server for longer than one window: they go on.
    """
    with LOAD.session(scene.client, offer) as session:
        for _ in range(60):
            window = session.measure().window
            assert window.events["start-up"].failures == window.events["view"].failures == {}, said
            # Who watches without a break skips nothing.
            assert window.counts["skipped"] == 0 or window.values["watching_percent"] < 100
            if window.counts["hinted"] and {"media_age_ms", "live_latency_ms"} <= window.values.keys():
                return window
    raise AssertionError(f"nobody ever came up to the live edge: {window}, {said}")


@pytest.mark.parametrize("scene", PLATFORMS, indirect=True)
def test_low_latency_hls_is_proved_and_watched(scene: Scene) -> None:
    """By two workers, which tell the same; in turns between which viewers pause; and by viewers of plain HLS, who wait
    for whole segments.
    """
    service = NginxLlHls(NginxLlHlsSettings(workers=2))
    with served(scene, service) as (instance, offer):
        said = daemon.log_tail(instance.agent, daemon.log_path(service.name))
        assert service.verify(offer, scene.client, LOAD.settings.live) == [], said
        window = at_the_live_edge(scene, offer, said)
        assert window.values["live_latency_ms"] > 0
        turns = []
        with LOAD.session(scene.client, offer) as session:
            for _ in range(2):
                session.lead_in(SECOND)
                turns.append(session.measure(duration_ns=SECOND).window)
                session.rest()
        assert [turn.events["start-up"].completed for turn in turns] == [5, 0], said
        assert [turn.counts["connects"] for turn in turns] == [5, 0], "they pause, and stay connected"
        assert turns[1].events["view"].offered == 5
        assert all(turn.events["view"].failures == {} for turn in turns), said
        settings = ViewersSettings(
            viewers=2,
            delivery="hls",
            path=LOAD.settings.live.path,
            settle_ns=0,
            time_limit_ns=2 * SECOND,
            patience_ns=600 * SECOND,
        )
        with ViewersLoad(settings).session(scene.client, offer) as session:
            plain = session.measure().window
        assert plain.events["start-up"].failures == plain.events["view"].failures == {}, said
        assert instance.agent.alive(instance.services[service.name])
