"""Makes the instances of a run: the platform's session once, then an attachment and a deployment each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from virtoll.errors import Problem, StudyError
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.lab.wiring import generator_confinement
from virtoll.limits import Limits
from virtoll.loads.base import Client
from virtoll.networks.base import Attachment, common_kind, network_modes
from virtoll.platforms.base import Instance, Platform, platforms
from virtoll.record import Arm, PlannedTrial
from virtoll.run import Notes


def make_platform(arm: Arm) -> Platform:
    """The platform of an arm, with the arm's settings."""
    cls = platforms()[arm.platform]
    return cls(cls.Settings(**arm.settings))


@dataclass
class Deployer:
    """Deploys arms in one wired lab."""

    lab: Lab
    image: Image
    sessions: ExitStack  # what platforms share between deployments, until the lab closes
    _open: set[str] = field(default_factory=set)

    def first(
        self, stack: ExitStack, trial: PlannedTrial, limits: Limits, ports: tuple[int, ...], notes: Notes
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
        self, name: str, arm: Arm, limits: Limits, ports: tuple[int, ...], slot: int = 0
    ) -> Iterator[Instance]:
        """One instance in a directory ``name`` of its own. ``slot`` tells instances apart that live at one time."""
        lab = replace(self.lab, slot=slot)
        platform = make_platform(arm)
        directory = lab.directory / name
        with lab.ledger.owning("directory", str(directory)):
            directory.mkdir()
            with (
                _attached(lab, platform, arm.network, ports) as attachment,
                platform.deploy(lab, self.image, limits, attachment, directory) as instance,
            ):
                yield instance

    def client(self, name: str) -> Client:
        """The generator's place in the lab, with the scratch directory of deployment ``name``."""
        return Client(
            self.lab.host,
            generator_confinement(self.lab),
            self.lab.directory / name,
            cpus=len(self.lab.cpus.generator),
        )

    def _open_session(self, platform: Platform, arm: Arm) -> None:
        """What the platform's deployments share is made once a run, and is not part of anyone's deployment."""
        shared = f"{platform.name} {arm.settings}"
        if shared not in self._open:
            self.sessions.enter_context(platform.session(self.lab, self.image))
            self._open.add(shared)


@contextmanager
def _attached(lab: Lab, platform: Platform, network: str, ports: tuple[int, ...]) -> Iterator[Attachment]:
    mode = network_modes()[network]
    kind = common_kind(platform.name, platform.kinds, mode)
    if isinstance(kind, Problem):
        raise StudyError([kind])
    with mode().attach(lab, kind, ports) as attachment:
        yield attachment
