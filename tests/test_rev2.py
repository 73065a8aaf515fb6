"""Failing tests of a review: each shows one defect of rotation's CPU time or of stopping."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from test_audit import trial
from virtoll.analysis.load import Series
from virtoll.analysis.metrics import _cpu_s
from virtoll.platforms.vm import Machine
from virtoll.probes.base import ProbeError
from virtoll.run import execute
from virtoll.trial.experiment import LabExperiment, _aside

MS = 10**6


def test_a_windows_cpu_time_is_not_spread_over_what_lies_around_it() -> None:
    """Marks 24 ms before and after 250 ms, ticks of 10 Hz between; all CPU time was used in the window."""
    t = np.array([-24, 50, 150, 274]) * MS
    used = _cpu_s(Series(t, np.array([0, 50, 150, 250]) * MS), (0, 250 * MS))
    assert isinstance(used, str) or used == pytest.approx(0.250, rel=0.02)


def test_an_interrupt_right_after_the_stop_leaves_nothing_stopped() -> None:
    sent = []

    def send(number: int) -> None:
        sent.append(number)
        if number == signal.SIGSTOP:
            raise KeyboardInterrupt

    machine = Machine("QEMU", cast(Any, SimpleNamespace(send_signal=send)), *cast(Any, [None] * 4))
    with pytest.raises(KeyboardInterrupt), machine.stopped():
        pass
    assert sent[-1] == signal.SIGCONT


def test_what_waits_after_a_failed_probe_is_stopped_as_well(tmp_path: Any) -> None:
    """Two arms' probes in turn, one of which cannot measure: its guest is kept for the next case, and runs on."""
    running: dict[str, bool] = {}
    seen: list[dict[str, bool]] = []

    class Double(LabExperiment):
        def perform(self, trial: Any, notes: Any) -> Any:
            self._held = self._held or cast(Any, SimpleNamespace(stack=SimpleNamespace(close=lambda: None)))
            return super().perform(trial, notes)

        def _deployed(self, *_: Any) -> Any:
            return SimpleNamespace(facts={}, believes={}, place=None)

        def _prove_limits_beside(self, *_: Any) -> None: ...

        @contextmanager
        def _subject(self, *_: Any) -> Iterator[Any]:
            yield None

        def _measure(self, _place: Any, _subject: Any, treatment: Any, trial: Any, _notes: Any) -> Any:
            name = trial.arm.label

            @contextmanager
            def stopped() -> Iterator[None]:
                running[name] = False
                try:
                    yield
                finally:
                    running[name] = True

            running[name] = True
            yield from _aside(cast(Any, SimpleNamespace(stopped=stopped)), treatment)
            seen.append(dict(running))
            if len(seen) == 1:
                raise ProbeError("cannot measure")
            yield from _aside(cast(Any, SimpleNamespace(stopped=stopped)), treatment)

    from virtoll.trial import experiment
    from virtoll.trial.treatment import Probed

    treatment = SimpleNamespace(work=Probed(cast(Any, None), cast(Any, None)), rotation=object())
    trials = [trial(label=label).model_copy(update={"id": label, "turn": "t", "deployment": label}) for label in "ab"]
    later = [one.model_copy(update={"id": f"{one.id}2"}) for one in trials]
    doubles = {
        one.arm.label: Double(cast(Any, None), cast(Any, None), cast(Any, None), [one, two])
        for one, two in zip(trials, later, strict=True)
    }
    each = SimpleNamespace(perform=lambda one, notes: doubles[one.arm.label].perform(one, notes))
    directory = SimpleNamespace(trial_directory=lambda _: tmp_path, seal=lambda _: None, write_log=lambda *_: None)
    reporter = SimpleNamespace(phase=lambda *_: None, trial_sealed=lambda _: None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(experiment, "treatment_of", lambda *_: treatment)
        patched.setattr(experiment, "_slices_live", lambda *_: True)
        execute._run(cast(Any, directory), cast(Any, each), cast(Any, reporter), trials)
    assert [sum(one.values()) for one in seen] == [1, 1], "who measures runs, and nobody else"
