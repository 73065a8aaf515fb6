"""The wiring that a run's trials are performed in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.lab.base import CpuPlan
from virtoll.lab.wiring import free_tag, wired
from virtoll.record.model import PlannedTrial
from virtoll.study.model import Study
from virtoll.trial.experiment import Known
from virtoll.trial.labs import InTurn, in_lab, left_elsewhere
from virtoll.trial.notes import Experiment
from virtoll.trial.treatment import treatments


@contextmanager
def laboratory(
    study: Study,
    host: LocalHost,
    cpus: CpuPlan,
    images: Images,
    *,
    pending: Sequence[PlannedTrial],
    files: dict[str, str],
) -> Iterator[Experiment]:
    """The lab of one run, wired and undone again, with the experiment that performs the pending trials in it.
    ``files``: the digests of those that services are given.

    In rotation each arm has a lab of its own: nothing of one arm's wiring is on another's path.
    """
    tag, known = free_tag(), Known(files)
    count = max(treatment.generators for treatment in treatments(study))
    with (
        ledgers.opened(host, ledgers.state_directory() / "ledger", f"{study.name}-{tag}") as ledger,
        ExitStack() as labs,
    ):

        @contextmanager
        def lab(tag: str, trials: Sequence[PlannedTrial]) -> Iterator[Experiment]:
            with (
                wired(host, ledger, tag, cpus, count) as wires,
                in_lab(study, wires, images, trials, known) as experiment,
            ):
                yield experiment

        if study.design == "rotation":
            yield InTurn(lambda trials: lab(free_tag(), trials), pending, labs)
        else:
            yield labs.enter_context(left_elsewhere(lab(tag, pending)))
