"""Other work beside what is measured: looked at meanwhile, and told of a window, or of all since it was asked for."""

from __future__ import annotations

import itertools
import threading
import time
from typing import cast

import pytest

from undisturbed import undisturbed
from virtoll.lab.base import Lab
from virtoll.lab.others import Look
from virtoll.platforms.base import Instance
from virtoll.record.model import Window
from virtoll.trial import disturbance
from virtoll.trial.disturbance import Since, since_now

S = 10**9
LAB, INSTANCE = cast(Lab, None), cast(Instance, None)


def since(*looks: tuple[float, float]) -> Since:
    """By when others had had how many CPU seconds of one CPU."""
    return Since(LAB, INSTANCE, {}, [Look(round(at_s * S), user_s, 1) for at_s, user_s in looks])


def window(start_s: float, end_s: float) -> Window:
    return Window(start_ns=round(start_s * S), duration_ns=round((end_s - start_s) * S), work=1)


@pytest.mark.parametrize(
    ("start_s", "end_s", "in_it"),
    [(10, 20, 0.5), (9.6, 20.4, 0.5), (0, 10, 0), (20.1, 20.3, 0.25)],
    ids=["the second half", "about that", "the first half", "too short"],
)
def test_a_window_has_the_looks_that_are_nearest_to_its_ends(
    monkeypatch: pytest.MonkeyPatch, start_s: float, end_s: float, in_it: float
) -> None:
    undisturbed(monkeypatch, look=lambda: Look(20 * S, 5.0, 1))
    seen = since(*((at_s, max(0, at_s - 10) / 2) for at_s in range(20)))
    words = f"other work took {in_it:.2f} of the instance's CPUs meanwhile" if in_it else ""
    assert seen.by_others(window(start_s, end_s), all_along=False) == words
    told = seen.by_others(window(start_s, end_s), all_along=True)
    assert told == "other work took 0.25 of the instance's CPUs meanwhile"


def test_others_are_looked_at_while_something_is_measured_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = itertools.count(0, S)
    undisturbed(monkeypatch, look=lambda: Look(next(now_ns), 0.0, 1))
    monkeypatch.setattr(disturbance, "_LOOK_S", 0.001)
    with since_now(LAB, INSTANCE) as seen:
        while len(seen.looks) < 4:
            time.sleep(0.001)
    assert [each.at_ns for each in seen.looks[:4]] == [0, S, 2 * S, 3 * S]
    assert not [each for each in threading.enumerate() if each.name == "looks at other work"]
    looks = len(seen.looks)
    seen.by_others(window(0, 1), all_along=True)
    assert next(now_ns) == (looks + 1) * S, "the last was taken when it was over"
