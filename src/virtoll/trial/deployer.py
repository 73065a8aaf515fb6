"""Makes the instances of a run: the platform's session once, then an attachment and a deployment each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from virtoll.errors import Problem, StudyError
from virtoll.images.base import Image
from virtoll.lab.base import GENERATOR_ADDRESS, Lab
from virtoll.lab.client import LOAD, Client, Programs
from virtoll.lab.slices import Slices, channelled, channels, far_node, reshaped
from virtoll.lab.wiring import generator_confinement
from virtoll.networks.base import Attachment, common_kind, network_modes
from virtoll.offers import Port, merged
from virtoll.platforms.base import Instance, Platform, platforms
from virtoll.platforms.native import Native
from virtoll.probes.base import Slice
from virtoll.record.model import Arm, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.trial.notes import Notes

_LOAD_MEMORY_BYTES, _LOAD_PIDS = 4 * 1024**3, 4096  # of a load's own programs: they are not what is measured


class Unprivileged(Native):
    """A load's own programs run as nobody, and no setuid program of their image makes them anybody else."""

    wrapped_in: ClassVar[tuple[str, ...]] = ("setpriv", "--no-new-privs")


def make_platform(arm: Arm) -> Platform:
    """The platform of an arm, with the arm's settings."""
    cls = platforms()[arm.platform]
    return cls(cls.Settings(**arm.settings))


@dataclass
class Deployer:
    """Deploys arms in one wired lab."""

    lab: Lab
    image: Image
    load_image: Image | None  # of a load's own programs
    sessions: ExitStack  # what platforms share between deployments, until the lab closes
    _open: set[str] = field(default_factory=set)

    def first(
        self, stack: ExitStack, trial: PlannedTrial, limits: Limits, ports: tuple[Port, ...], notes: Notes
    ) -> Instance:
        """A trial's own instance, in slot 0, for as long as ``stack`` is open; phases and facts are noted."""
        with notes.phase("session"):
            self._open_session(make_platform(trial.arm), trial.arm)
        with notes.phase("deploy"):
            instance = stack.enter_context(self.deployed(trial.id, trial.arm, limits, ports))
        notes.facts.update(instance.facts)
        notes.believes.update(instance.agent.facts())
        return instance

    @contextmanager
    def deployed(
        self, name: str, arm: Arm, limits: Limits, ports: tuple[Port, ...], *, slot: int = 0, node: Lab | None = None
    ) -> Iterator[Instance]:
        """One instance in a directory ``name`` of its own. ``slot`` tells instances apart that live at one time.

        ``node``: the lab as seen from where it is to live, if that is not the SUT.
        """
        lab = replace(node or self.lab, slot=slot)
        platform = make_platform(arm)
        directory = lab.directory / name
        with lab.ledger.owning("directory", str(directory)):
            directory.mkdir()
            with (
                _attached(lab, platform, arm.network, ports) as attachment,
                platform.deploy(lab, self.image, limits, attachment, directory) as instance,
            ):
                yield instance

    @contextmanager
    def sliced(self, trial: PlannedTrial, first: Instance, limits: Limits, wanted: Slices) -> Iterator[list[Slice]]:
        """The slices of the deployment that ``first`` (in slot 0) belongs to. Channels are there when all are up."""
        slices = []
        between = channels(wanted)
        with ExitStack() as stack:

            def deployed(end: str, slot: int, node: Lab) -> Instance:
                name = f"{trial.id}-{end}"
                return stack.enter_context(self.deployed(name, trial.arm, limits, (), slot=slot, node=node))

            for channel in between:
                number = channel.index + 1
                is_first = channel.index == 0
                near = first if is_first else deployed(f"near{number}", channel.near_slot, self.lab)
                far = deployed(f"far{number}", channel.far_slot, far_node(self.lab))
                addresses = (channel.near_address, channel.far_address)
                again = partial(reshaped, self.lab, channel)
                slices.append(Slice(channel.index, near, far, *addresses, channel.rate_bit_per_s, again))
            stack.enter_context(channelled(self.lab, between, shared=first.attachment.kind == "shared"))
            yield slices

    def client(self, name: str) -> Client:
        """The generator's place in the lab, with the scratch directory of deployment ``name``."""
        return Client(
            self.lab.host,
            generator_confinement(self.lab),
            self.lab.directory / name,
            cpus=len(self.lab.cpus.generator),
        )

    @contextmanager
    def programs(self) -> Iterator[Programs]:
        """A load's own root filesystem where the generator stands: natively, on its CPUs, in a group of its own."""
        assert self.load_image is not None
        cpus = self.lab.cpus.generator
        there = replace(
            self.lab,
            cpus=replace(self.lab.cpus, instance=cpus),
            sut_netns=self.lab.generator_netns,
        )
        limits = Limits(vcpus=len(cpus), memory_bytes=_LOAD_MEMORY_BYTES, pids=_LOAD_PIDS)
        attachment = Attachment("host", "shared", self.lab.generator_netns, GENERATOR_ADDRESS, ())
        directory = self.lab.directory / LOAD
        with self.lab.ledger.owning("directory", str(directory)):
            directory.mkdir()
            with Unprivileged().deploy(there, self.load_image, limits, attachment, directory) as instance:
                yield Programs(instance.agent, instance.accounting.cgroup)

    def _open_session(self, platform: Platform, arm: Arm) -> None:
        """What the platform's deployments share is made once a run, and is not part of anyone's deployment."""
        shared = f"{platform.name} {arm.settings}"
        if shared not in self._open:
            self.sessions.enter_context(platform.session(self.lab, self.image))
            self._open.add(shared)


def slices_problem(arm: Arm) -> str:
    """Why slices cannot be deployed on this arm; "" where they can.

    Their instances have addresses of their own (routed); where a platform knows no such thing, their node does.
    """
    kinds = make_platform(arm).kinds
    usual = "host" if isinstance(common_kind(arm.platform, kinds, network_modes()["routed"]), Problem) else "routed"
    if arm.network == usual:
        return ""
    return f"slices of {arm.platform} are attached in mode {usual!r}, not {arm.network!r}"


@contextmanager
def _attached(lab: Lab, platform: Platform, network: str, ports: tuple[Port, ...]) -> Iterator[Attachment]:
    mode = network_modes()[network]
    kind = common_kind(platform.name, platform.kinds, mode)
    if isinstance(kind, Problem):
        raise StudyError([kind])
    with mode().attach(lab, kind, merged(ports)) as attachment:
        yield attachment
