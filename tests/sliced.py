"""Slices of a platform in the fixture ``lab``, and the place that a probe over slices runs in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import contract
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Images
from virtoll.lab.base import Lab
from virtoll.lab.slices import Slices, channels
from virtoll.platforms.base import Instance, platforms
from virtoll.probes.base import Place
from virtoll.record.model import Arm, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.trial.deployer import Deployer
from virtoll.trial.notes import Notes

RATE_BIT_PER_S = 36_000_000
PLATFORMS = ("native", "docker", "lxc", "uml", "qemu-tcg")


def arm(platform: str, network: str = "") -> Arm:
    return Arm(label=platform, platform=platform, network=network or platforms()[platform].default_network)


@contextmanager
def place(
    lab: Lab,
    platform: str,
    directory: Path,
    packages: Sequence[str] = contract.PACKAGES,
    limits: Limits = contract.LIMITS,
) -> Iterator[Place]:
    """Two slices of this platform; skips where the machine cannot offer it, or the image cannot be had."""
    driver = platforms()[platform]()
    contract.skip_unless_ready(driver)
    try:
        image = rootfs.build(LocalHost(), "slices", packages, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))
    driver.prepare(lab.host, image, limits, lambda _line: None)
    trial = PlannedTrial(id="t", block=1, position=1, arm=arm(platform), condition={})
    with ExitStack() as sessions, ExitStack() as stack:
        deployer = Deployer(lab, Images(image), sessions)
        first = deployer.first(stack, trial, limits, (), Notes(directory, lambda _phase: None))
        wanted = Slices(count=2, rate_bit_per_s=RATE_BIT_PER_S)
        slices = stack.enter_context(deployer.sliced(trial, first, limits, wanted))

        def another(_: int) -> Iterator[Instance]:
            raise NotImplementedError

        yield Place(first, deployer.client(trial.id), [], contextmanager(another), slices)


def assert_shaped(lab: Lab) -> None:
    """Each channel, in both nodes, has a shaper of its own with the slices' rate."""
    for netns in (lab.sut.netns, lab.generator.netns):
        queues = json.loads(lab.host.run(["tc", "-n", netns, "-json", "qdisc"]).text)
        rates = {one["dev"]: 8 * one["options"]["rate"] for one in queues if one["kind"] == "tbf"}
        assert rates == {one.device: RATE_BIT_PER_S for one in channels(Slices(2, RATE_BIT_PER_S))}
