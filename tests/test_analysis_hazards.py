"""What threatens an answer, each with its remedy: a test that fails without it. On made-up studies of known truth.

Peeking, and stopping at a width, are in test_analysis_stopping.py.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy

from made_up_studies import (
    BLOCKS,
    BURST_TAKES,
    MACHINES,
    METRIC,
    ROTATION,
    Machine,
    arms,
    judged,
    observations,
    studies,
)
from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats, t_quantile
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.ratios import toll_table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.rules import IN_FORCE, RULES, seen_in

EQUAL = np.ones(4)


def coverage(logs: Floats, truth: float = 0.0) -> float:
    """How many of the t intervals over the last axis, nan left out, hold the truth."""
    n = np.isfinite(logs).sum(axis=-1)
    logs, n = logs[n > 1], n[n > 1]
    error = np.nanstd(logs, axis=-1, ddof=1) / np.sqrt(n)
    quantile = np.array([t_quantile(0.975, int(k) - 1) for k in n.ravel()]).reshape(n.shape)
    return float((np.abs(np.nanmean(logs, axis=-1) - truth) <= quantile * error).mean())


def made(machine: Machine, design: object = ROTATION, count: int = 400, seed: int = 1, truth: Floats = EQUAL) -> Floats:
    return studies(machine, design, truth, count, np.random.default_rng(seed))  # type: ignore[arg-type]


# -- the studies are what they are meant to be ------------------------------------------------------------


def test_the_words_of_a_made_up_study_are_those_of_the_product() -> None:
    """`judged` is what `toll_table` does with the same values, holes and all."""
    truth = np.array([1.0, 1.0, 1.0, 0.95, 0.8])
    values = made(MACHINES["missing trials"], BLOCKS, 25, truth=truth)
    planned = [SimpleNamespace(arm=arm, condition={}) for arm in arms(truth)]
    run = SimpleNamespace(plan=SimpleNamespace(trials=planned), objective=[], has_search=False)
    for study in values:
        matrix = Matrix(
            run=run,  # type: ignore[arg-type]
            arms=tuple(arms(truth)),
            conditions=(Condition(()),),
            blocks=tuple(range(len(study))),
            trials=(),
            cells={},
            metrics={METRIC.name: METRIC},
            _arrays={METRIC.name: np.moveaxis(study, 1, 2)},
        )
        table = toll_table(matrix, METRIC.name)
        mine = judged(observations(study[None])[0], truth)
        assert [toll.verdict for toll in mine] == [toll.verdict for toll in table.overall]
        for here, there in zip(mine, table.overall, strict=True):
            assert here.ratio is not None
            assert there.ratio is not None
            assert here.ratio.value == pytest.approx(there.ratio.value)
            assert here.p == pytest.approx(there.p, nan_ok=True)


def test_bursts_are_like_those_that_were_seen() -> None:
    """Ratios of short windows have an excess kurtosis of 3 to 14, and single windows are three times slower."""
    values = made(MACHINES["bursts"])
    ratios = np.log(values[..., 1] / values[..., 0]).ravel()
    assert 3 < scipy.stats.kurtosis(ratios) < 14
    assert 1 / (1 - BURST_TAKES[1]) > 3
    assert (np.abs(ratios) > math.log(2.9)).mean() > 0.001


def test_drift_is_like_that_which_was_seen() -> None:
    trials = np.log(made(MACHINES["drift"], BLOCKS, seed=2)[:, :, 0, 0])
    assert 0.08 < trials.std() < 0.22


def test_the_rule_in_force_is_the_one_that_was_judged() -> None:
    """`python -m bench.rules` compares rules of its own; its one in force gives the product's words."""
    truth = np.array([1.0, 1.0, 1.0, 0.98, 0.95, 0.9, 0.8])
    kinds = {"costs": "different", "gains": "different", "same": "same", "unsure": "unsure"}
    for machine in ("quiet", "drift", "bursts", "all of it"):
        for study in observations(made(MACHINES[machine], count=25, truth=truth)):
            words = [RULES[IN_FORCE].word(seen) for seen in seen_in(study, 0.0)]
            assert words == [kinds[toll.verdict.kind] for toll in judged(study, truth)[1:]]


# -- bursts -----------------------------------------------------------------------------------------------


def test_bursts_widen_the_mean_and_hardly_the_trimmed_mean_or_the_median() -> None:
    values = made(MACHINES["bursts"])
    mean, trimmed, median = (observations(values, name).std() for name in ("mean", "trimmed mean", "median"))
    assert trimmed < 0.75 * mean
    assert median < 0.75 * mean


def test_without_bursts_the_trimmed_mean_costs_little_and_the_median_much() -> None:
    values = made(MACHINES["quiet"])
    mean, trimmed, median = (observations(values, name).std() for name in ("mean", "trimmed mean", "median"))
    assert trimmed < 1.1 * mean
    assert median > 1.1 * mean


def test_heavy_tails_leave_the_intervals_true() -> None:
    logs = observations(made(MACHINES["bursts"], count=1500))
    assert 0.94 <= coverage(np.moveaxis(logs, 1, -1)) <= 0.965
    students = np.random.default_rng(3).standard_t(3, (4000, 8))
    assert coverage(students) >= 0.945


# -- drift ------------------------------------------------------------------------------------------------


def test_drift_is_in_blocks_and_not_in_rounds() -> None:
    """In the same time: what the arms' windows have between them are seconds, and not a deployment each."""
    rotation, blocks = made(MACHINES["drift"]), made(MACHINES["drift"], BLOCKS)
    paired, in_blocks = observations(rotation)[..., 0], observations(blocks)[..., 0]
    assert paired.std() / math.sqrt(ROTATION.blocks) < 0.5 * in_blocks.std() / math.sqrt(BLOCKS.blocks)
    assert ROTATION.seconds(7) == pytest.approx(BLOCKS.seconds(7), rel=0.01)


def test_a_fixed_order_passes_drift_for_an_effect() -> None:
    """A machine that slows down steadily: the arm that always comes later looks dearer in every block."""
    slope = -0.02 * np.arange(ROTATION.rounds * 4).reshape(ROTATION.rounds, 4)
    rng = np.random.default_rng(4)
    noise = rng.normal(0, 0.05, (400, ROTATION.blocks, ROTATION.rounds, 4))
    fixed = np.exp(slope + noise)
    drawn = np.exp(
        np.take_along_axis(np.broadcast_to(slope, noise.shape), rng.random(noise.shape).argsort(-1), -1) + noise
    )
    assert coverage(observations(fixed)[..., 2]) < 0.5
    assert 0.93 <= coverage(observations(drawn)[..., 2]) <= 0.97


# -- what deployments and rounds share ---------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["autocorrelated rounds", "deployments differ", "bimodal deployments"])
def test_rounds_are_no_replicates_and_blocks_are(machine: str) -> None:
    """An interval over the rounds of all blocks is far too narrow; one over blocks is right."""
    values = made(MACHINES[machine], count=1500)
    rounds = np.log(values[..., 1] / values[..., 0]).reshape(1500, -1)
    assert coverage(rounds) < 0.75
    assert 0.935 <= coverage(observations(values)[..., 0]) <= 0.965


@pytest.mark.parametrize("blocks", [4, 5, 8])
def test_bimodal_deployments_are_covered_by_few_blocks(blocks: int) -> None:
    logs = observations(made(MACHINES["bimodal deployments"], replace(ROTATION, blocks=blocks), 2000))[..., 0]
    assert 0.935 <= coverage(logs) <= 0.97


@pytest.mark.parametrize("share", [0.5, 0.3, 0.15])
def test_modes_of_one_arm_alone_skew_the_ratio_and_cost_a_little_coverage(share: float) -> None:
    """The one case seen below 94 % (93.5 to 95): no remedy but more blocks, and told in docs/METHODOLOGY.md."""
    skewed = replace(MACHINES["bimodal deployments"], mode_share=share, native_modes=False)
    assert 0.925 <= coverage(observations(made(skewed, count=2000))[..., 0]) <= 0.96


def test_a_place_kept_is_a_bias_and_a_place_drawn_anew_in_each_block_is_covered() -> None:
    """What an arm gains by where it stands is in no interval as long as it always stands there."""
    kept, drawn = Machine(place=0.02), Machine(deployment=0.02)  # of each block its own: as a deployment's
    assert coverage(observations(made(kept, count=1500))[..., 0]) < 0.7
    assert 0.935 <= coverage(observations(made(drawn, count=1500))[..., 0]) <= 0.965


# -- missing trials ---------------------------------------------------------------------------------------


def test_missing_trials_leave_the_intervals_true() -> None:
    logs = np.moveaxis(observations(made(MACHINES["missing trials"], count=1500)), 1, -1)
    assert 0.94 <= coverage(logs) <= 0.97


def test_a_ratio_of_what_is_left_of_each_arm_is_not_paired() -> None:
    """With holes in either arm, the ratio of the arms' own means is as uncertain as the machine's drift."""
    drifting = Machine(drift=((0.2, 600.0),), lost=0.15)
    values = np.log(made(drifting, replace(BLOCKS, deployment_s=300.0)))[:, :, :, :2]
    block = _block_means(values)
    unpaired = np.nanmean(block[..., 1], axis=1) - np.nanmean(block[..., 0], axis=1)
    paired = np.nanmean(observations(np.exp(values))[..., 0], axis=1)
    assert paired.std() < 0.75 * unpaired.std()


def _block_means(logs: Floats) -> Floats:
    """Means over rounds, nan where a block has none."""
    there = np.isfinite(logs)
    total = np.where(there, logs, 0.0).sum(axis=2)
    means = np.full(total.shape, np.nan)
    np.divide(total, there.sum(axis=2), out=means, where=there.any(axis=2))
    return means
