"""What the bench of the two designs measures: the same work in both, and what one more block says of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.designs import DESIGNS, METRICS, STUDIES, Told, study_of
from synthetic_programme import Recipe, write_programme
from virtoll.analysis.metrics import METRICS as OF_A_LOAD
from virtoll.probes.base import probes
from virtoll.report.findings import find

ROTATION = 'rounds = 6; window = "400 ms"'


def test_the_designs_are_to_agree_on_a_proxy_a_database_and_linpack() -> None:
    assert set(STUDIES) == {"squid", "redis", "linpack"} == set(METRICS)


@pytest.mark.parametrize("name", STUDIES)
def test_both_designs_are_given_the_same_work(name: str) -> None:
    blocks, rotation = (study_of(name, design, ROTATION) for design in DESIGNS)
    assert (blocks.design, rotation.design) == DESIGNS
    assert (blocks.blocks, rotation.blocks) == (1, 1)
    assert blocks.arms == rotation.arms
    assert [case.condition for case in blocks.programme] == [case.condition for case in rotation.programme]
    assert rotation.base["rotation.rounds"] == 6
    unlike = {path for path in rotation.base if rotation.base[path] != blocks.base.get(path)}
    assert {path.partition(".")[0] for path in unlike} <= {"rotation"}


@pytest.mark.parametrize(("study", "metric"), [(study, metric) for study in METRICS for metric in METRICS[study]])
def test_what_is_told_is_measured(study: str, metric: str) -> None:
    cases = study_of(study, "rotation", ROTATION).programme
    known = {f"{case.probe}.{key}" for case in cases for key in probes()[case.probe].quantities}
    assert metric in (known or OF_A_LOAD)


def test_a_block_says_what_an_arm_costs_and_another_is_put_behind_it(tmp_path: Path) -> None:
    """Emulation makes LINPACK 60 times as slow in these made-up runs, and containers as fast as native."""
    told = Told()
    for seed in (1, 2):
        told.hear(find(write_programme(tmp_path / str(seed), Recipe(blocks=1, seed=seed))).matrix, METRICS["linpack"])
    tcg, lxc, native = (told.logs["linpack.gflops", arm] for arm in ("qemu-tcg+routed", "lxc+routed", "native+host"))
    assert tcg == pytest.approx([-math.log(60)] * 2, abs=0.5)
    assert lxc == pytest.approx([0.0] * 2, abs=0.5)
    assert native == [0.0, 0.0]
