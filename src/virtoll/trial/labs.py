"""The labs that a run's trials are performed in: one for all, or in rotation one for each arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from virtoll.hosts.ledger import ElsewhereError
from virtoll.images.base import Images
from virtoll.lab.base import Lab
from virtoll.monitor import Monitor
from virtoll.offers import Offer
from virtoll.record.model import PlannedTrial
from virtoll.study.model import Study
from virtoll.trial.deployer import Deployer
from virtoll.trial.experiment import Known, LabExperiment
from virtoll.trial.notes import Course, Experiment, Notes
from virtoll.trial.treatment import Driven, make_service, treatments


@dataclass
class InTurn:
    """Arms that are measured in turn, each in a lab of its own, made anew for each block in the order of its trials.

    Of arms in groups, for each group: when the labs of the one before, and what they held of the memory, are gone.

    What is of a place (a namespace, a daemon, the order in which they were made) is then part of how deployments vary,
    and not of an arm: a place kept for the whole run would be a bias that no number of blocks could tell from a toll.
    """

    lab: Callable[[Sequence[PlannedTrial]], AbstractContextManager[Experiment]]
    pending: Sequence[PlannedTrial]
    labs: ExitStack
    _by_arm: dict[str, Experiment] = field(default_factory=dict)
    _place: tuple[int, int] | None = None  # block and group

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        """See `Experiment.perform`."""
        if (trial.block, trial.group) != self._place:
            with notes.phase("lab"):
                self._move_to(trial.block, trial.group)
        yield from self._by_arm[trial.arm.label].perform(trial, notes)

    def _move_to(self, block: int, group: int) -> None:
        self._place = None
        self.labs.close()
        of_arm: dict[str, list[PlannedTrial]] = {}
        for trial in self.pending:
            if (trial.block, trial.group) == (block, group):
                of_arm.setdefault(trial.arm.label, []).append(trial)
        self._by_arm = {
            label: self.labs.enter_context(left_elsewhere(self.lab(trials))) for label, trials in of_arm.items()
        }
        self._place = block, group


@contextmanager
def left_elsewhere(lab: AbstractContextManager[Experiment]) -> Iterator[Experiment]:
    """The lab. What it cannot remove on another machine is in nobody's way: it fails no trial that comes after, and
    stays in the ledger, whose end tries once more, and tells.
    """
    is_over = False
    try:
        with lab as experiment:
            yield experiment
            is_over = True
    except ElsewhereError:
        if not is_over:
            raise


@contextmanager
def in_lab(
    study: Study, lab: Lab, images: Images, pending: Sequence[PlannedTrial], known: Known
) -> Iterator[Experiment]:
    """The study's experiment in a wired lab, with its origin deployed and the host's monitor running."""
    with ExitStack() as stack:
        deployer = Deployer(lab, images, stack.enter_context(ExitStack()))
        origin = stack.enter_context(_origin(study, deployer)) if study.origin else None
        monitor = stack.enter_context(Monitor.on_host(lab))
        experiment = LabExperiment(study, deployer, monitor, pending, origin, known)
        stack.callback(experiment.end)
        yield experiment


def _origin(study: Study, deployer: Deployer) -> AbstractContextManager[Offer]:
    """The study's origin; it holds all that any condition's load asks for."""
    works = [each.work for each in treatments(study) if isinstance(each.work, Driven)]
    contents = dict.fromkeys(work.load.content for work in works if work.load.content is not None)
    return deployer.origin(make_service(study.origin, "origin", study.base), contents)
