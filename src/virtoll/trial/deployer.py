"""Makes the instances of a run: the platform's session once, then an attachment and a deployment each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem, StudyError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images.base import Image, Images
from virtoll.lab.base import Lab, Site
from virtoll.lab.client import LOAD, ORIGIN, Client, Programs
from virtoll.lab.slices import Slices, channelled, channels, reshaped
from virtoll.lab.wiring import confinements_of_several, generator_confinement, steer
from virtoll.monitor import own_groups
from virtoll.networks.base import Attachment, network_modes
from virtoll.offers import Content, Offer, Port, merged
from virtoll.platforms.base import Instance, Platform, is_elsewhere, platforms
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.native import Native
from virtoll.probes.base import Slice
from virtoll.record.model import CONFIGURATION, Arm, PlannedTrial
from virtoll.services.base import Service, hold_on_disk
from virtoll.study.limits import Limits
from virtoll.trial.notes import Notes

# Of what is not measured: a load's own programs, and the origin.
_LOAD_MEMORY_BYTES, _LOAD_PIDS = 4 * 1024**3, 4096
_ORIGIN_MEMORY_BYTES = 1024**3


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
    images: Images
    sessions: ExitStack  # what platforms share between deployments, until the lab closes
    _open: set[str] = field(default_factory=set)

    def first(
        self, stack: ExitStack, trial: PlannedTrial, limits: Limits, ports: tuple[Port, ...], notes: Notes
    ) -> Instance:
        """A trial's own instance, in slot 0, for as long as ``stack`` is open; phases and facts are noted."""
        self._steer(limits)
        with notes.phase("session"):
            self._open_session(make_platform(trial.arm), trial)
        with notes.phase("deploy"):
            instance = stack.enter_context(self.deployed(trial.id, trial, limits, ports))
        notes.facts.update(instance.facts)
        notes.believes.update(instance.agent.facts())
        return instance

    @contextmanager
    def deployed(
        self,
        name: str,
        trial: PlannedTrial,
        limits: Limits,
        ports: tuple[Port, ...],
        *,
        slot: int = 0,
        site: Site | None = None,
    ) -> Iterator[Instance]:
        """One instance of a trial's arm, from its configuration's image. ``slot`` tells instances apart that live at
        one time; ``site``: where, if not at the SUT.
        """
        lab, arm, image = replace(self.lab.at(site or self.lab.sut), slot=slot), trial.arm, self._image(trial)
        with _deployed(
            lab, name, make_platform(arm), image, network=arm.network, limits=limits, ports=ports
        ) as instance:
            yield instance

    def _image(self, trial: PlannedTrial) -> Image:
        return self.images.of(str(trial.condition.get(CONFIGURATION, "")))

    @contextmanager
    def sliced(self, trial: PlannedTrial, first: Instance, limits: Limits, wanted: Slices) -> Iterator[list[Slice]]:
        """The slices of the deployment that ``first`` (in slot 0) belongs to. Channels are there when all are up."""
        slices = []
        between = channels(wanted)
        with ExitStack() as stack:

            def deployed(end: str, slot: int, site: Site) -> Instance:
                name = f"{trial.id}-{end}"
                return stack.enter_context(self.deployed(name, trial, limits, (), slot=slot, site=site))

            for channel in between:
                number = channel.index + 1
                is_first = channel.index == 0
                near = first if is_first else deployed(f"near{number}", channel.near_slot, self.lab.sut)
                far = deployed(f"far{number}", channel.far_slot, self.lab.generator)
                addresses = (channel.near_address, channel.far_address)
                again = partial(reshaped, self.lab, channel)
                slices.append(Slice(channel.index, near, far, *addresses, channel.rate_bit_per_s, again))
            nodes = _narrowed(self.lab, limits)
            stack.enter_context(channelled(nodes, between, shared=first.attachment.kind == "shared"))
            yield slices

    def client(self, name: str, trial: str = "", *, of: Instance | None = None) -> Client:
        """The generator's place in the lab, or where it reaches ``of``, if that is elsewhere; with the scratch
        directory of deployment ``name``, or one in it for a ``trial`` of those that share it.
        """
        directory = self.lab.directory / name / trial
        directory.mkdir(exist_ok=True)
        if self.lab.far is not None:
            return self.lab.far.client(directory, {} if of is None else _books(of))
        confinement = generator_confinement(self.lab, outside=of is not None and is_elsewhere(of))
        books = {} if of is None else _books(of)
        return Client(self.lab.host, confinement, directory, cpus=len(self.lab.generator.cpus), books=books)

    def places(self, client: Client, generators: int) -> list[Client]:
        """The places of several generators, of which ``client`` would be the one that has all CPUs."""
        clients = []
        for number, confinement in enumerate(confinements_of_several(self.lab, generators), 1):
            directory = client.directory / f"generator-{number}"
            directory.mkdir(exist_ok=True)
            cpus = len(confinement.cpus or ())
            books = client.books if number == 1 else {}  # one that looks is enough
            clients.append(replace(client, confinement=confinement, directory=directory, cpus=cpus, books=books))
        return clients

    @contextmanager
    def programs(self) -> Iterator[Programs]:
        """A load's own root filesystem where the generator stands: natively, on its CPUs, in a group of its own."""
        assert self.images.load is not None
        lab = self.lab.at(self.lab.generator)
        limits = Limits(vcpus=len(lab.sut.cpus), memory_bytes=_LOAD_MEMORY_BYTES, pids=_LOAD_PIDS)
        with _deployed(
            lab, LOAD, Unprivileged(), self.images.load, network="host", limits=limits, ports=()
        ) as instance:
            accounting = instance.accounting
            Cgroup(accounting.cgroup, hierarchies()).go_first()  # as the generator of our own does
            group = Cgroup(accounting.parts["payload"], hierarchies())
            confinement = Confinement(group.procs, lab.sut.netns, lab.sut.cpus)
            yield Programs(instance.agent, accounting.cgroup, accounting.directory / "root", confinement)

    @contextmanager
    def origin(self, server: Service, contents: Iterable[Content]) -> Iterator[Offer]:
        """What stands behind the service, holding all that the study asks for: native, on its own site and CPUs."""
        lab = self.lab.at(self.lab.origin)
        image = self.images.origin or self.images.instance
        limits = Limits(vcpus=len(lab.sut.cpus), memory_bytes=_ORIGIN_MEMORY_BYTES)
        with _deployed(lab, ORIGIN, Native(), image, network="host", limits=limits, ports=server.ports) as instance:
            hold_on_disk(server, instance, contents)
            yield server.start(instance, None)

    def _steer(self, limits: Limits) -> None:
        """Have what comes for an instance of these limits worked on by its CPUs, before it is there."""
        steer(self.lab, instance_cpus(self.lab, limits))

    def _open_session(self, platform: Platform, trial: PlannedTrial) -> None:
        """What the platform's deployments of an image share is made once a run, and is not part of anyone's
        deployment.
        """
        image = self._image(trial)
        shared = f"{platform.name} {trial.arm.settings} {image.digest}"
        if shared not in self._open:
            self.sessions.enter_context(platform.session(self.lab, image))
            self._open.add(shared)


def _narrowed(lab: Lab, limits: Limits) -> Lab:
    """The lab as the nodes of slices see it: each has the CPUs that its instances have."""
    near, far = (replace(site, cpus=instance_cpus(lab.at(site), limits)) for site in (lab.sut, lab.generator))
    return replace(lab, sut=near, generator=far)


def _books(instance: Instance) -> dict[str, Path]:
    """See `Client.books`: of all of it, and of its platform's helpers where these are told apart."""
    groups, machine = own_groups(instance), hierarchies()
    if "instance" not in groups or (machine.version == 1 and "cpuacct" not in machine.mounts):
        return {}
    return {name: Cgroup(groups[name], machine).cpu_file for name in ("instance", "helpers") if name in groups}


def slices_problem(arm: Arm) -> str:
    """Why slices cannot be deployed on this arm; "" where they can.

    Their instances have addresses of their own (routed); where a platform knows no such thing, their node does.
    """
    is_impossible = isinstance(make_platform(arm).kind_in(network_modes()["routed"]), Problem)
    usual = "host" if is_impossible else "routed"
    if arm.network == usual:
        return ""
    return f"slices of {arm.platform} are attached in mode {usual!r}, not {arm.network!r}"


@contextmanager
def _deployed(
    lab: Lab, name: str, platform: Platform, image: Image, *, network: str, limits: Limits, ports: tuple[Port, ...]
) -> Iterator[Instance]:
    """One instance where the lab's SUT is, in a directory ``name`` of its own."""
    directory = lab.directory / name
    with lab.ledger.owning("directory", str(directory)):
        directory.mkdir()
        with (
            _attached(lab, platform, network, ports) as attachment,
            platform.deploy(lab, image, limits, attachment, directory) as instance,
        ):
            yield instance


@contextmanager
def _attached(lab: Lab, platform: Platform, network: str, ports: tuple[Port, ...]) -> Iterator[Attachment]:
    mode = network_modes()[network]
    kind = platform.kind_in(mode)
    if isinstance(kind, Problem):
        raise StudyError([kind])
    with mode().attach(lab, kind, merged(ports)) as attachment:
        yield attachment
