"""The wiring that a run's trials are performed in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from virtoll.hosts import ledger as ledgers
from virtoll.hosts.cgroup import TOP
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.lab.base import CpuPlan, Lab
from virtoll.lab.wiring import free_tag, wired
from virtoll.monitor import Yardstick
from virtoll.record.model import PlannedTrial
from virtoll.study.model import Study
from virtoll.trial.experiment import Known
from virtoll.trial.labs import InTurn, in_lab, left_elsewhere
from virtoll.trial.notes import Experiment
from virtoll.trial.treatment import treatments

if TYPE_CHECKING:
    from virtoll.run.by_generator import Posted


@contextmanager
def laboratory(
    study: Study,
    host: LocalHost,
    cpus: CpuPlan,
    images: Images,
    *,
    pending: Sequence[PlannedTrial],
    files: dict[str, str],
    posted: Posted | None = None,
) -> Iterator[Experiment]:
    """The lab of one run, wired and undone again, with the experiment that performs the pending trials in it.
    ``files``: the digests of those that services are given; ``posted``: the machine that the generator stands on, where
    it is another.

    In rotation each arm has a lab of its own: nothing of one arm's wiring is on another's path.
    """
    tag, known = free_tag(), Known(files)
    count = max(treatment.generators for treatment in treatments(study))
    with (
        ledgers.opened(host, ledgers.state_directory() / "ledger", f"{study.name}-{tag}") as ledger,
        ExitStack() as whole_run,
        ExitStack() as labs,  # in rotation it is closed before each block's
    ):

        @contextmanager
        def lab(tag: str, trials: Sequence[PlannedTrial]) -> Iterator[Experiment]:
            with _wired(tag) as wires, in_lab(study, wires, images, trials, known) as experiment:
                yield experiment

        @contextmanager
        def _wired(tag: str) -> Iterator[Lab]:
            if posted is None:
                with wired(host, ledger, tag, cpus, count) as wires:
                    yield wires
                return
            uplink = posted.uplink()
            with wired(host, ledger, tag, cpus, uplink=uplink) as wires, posted.stood(wires, uplink) as whole:
                yield whole

        if study.design == "rotation":
            group = f"{TOP}/{tag}-yardstick"
            known.yardstick = whole_run.enter_context(Yardstick.on_host(host, ledger, group, cpus))
        if posted is not None:
            whole_run.enter_context(posted.steering(ledger, cpus))
        if study.design == "rotation":
            yield InTurn(lambda trials: lab(free_tag(), trials), pending, labs)
        else:
            yield labs.enter_context(left_elsewhere(lab(tag, pending)))
