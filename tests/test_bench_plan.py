"""What the bench of plans makes of their laws."""

from __future__ import annotations

from typing import Any

import pytest

from bench.plan import STUDIES, _study, _try
from virtoll.catalogue import catalogue
from virtoll.study.file import read_study


def law(measured: float) -> dict[str, Any]:
    return {"at": 16, "foretold": [100.0, 95.0, 105.0], "measured": [measured, measured - 4, measured + 4]}


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (law(104.0), "inside"),
        (law(106.0), "near"),
        ({"refused": "it does not hold: at 16, which was not fitted, it foretells 100, and 80 was measured"}, "missed"),
        ({"refused": "it does not fit: 9 % off at 8, where up to 5 % could be by chance"}, "no law"),
    ],
)
def test_a_try_is_inside_by_the_foretellings_own_interval(told: dict[str, Any], kind: str) -> None:
    assert _try("rtmp", "native+host", told).kind == kind


@pytest.mark.parametrize("name", [*STUDIES])
def test_its_studies_are_studies(name: str) -> None:
    study = read_study(_study(name, 5), "law.toml", catalogue())
    assert len(study.arms) == 3
    assert study.blocks == 5
