"""Where an interval's width comes from: what windows scatter within a deployment, and what is left between blocks.

A block's observation is a log ratio of totals (or of means) over windows: log(sum x / sum y), arm's less native's, or
less the mean of native's two deployments. To first order a window moves it by x / mean(x) - y / mean(y), over the
number of windows (the ratio estimator's linearisation: Cochran, Sampling Techniques, 3rd ed. 1977, ch. 6), and one of
two natives by half as much. In rotation the r-th windows of arm and natives are neighbours in time, and their
difference is one *round*; elsewhere each deployment's windows are for themselves.

The components are those of a one-way random-effects analysis of variance, by the method of moments, with unweighted
means where windows are missing (Searle, Casella & McCulloch, Variance Components, 1992, ch. 3): within blocks the
windows' variance, pooled; between blocks the variance of their observations less what windows explain of it. The
latter may come out negative, and is then told as 0. All is on the logarithmic scale.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import LEVEL, Floats, Summary, over_conditions
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import TrialMetrics
from virtoll.analysis.ratios import Ratios, of_barred
from virtoll.analysis.rounds import in_turn, pull
from virtoll.analysis.rules import rule_of
from virtoll.record.model import Arm

ONE_WINDOW = "a deployment has one window, so that its scatter cannot be told from the deployment's"
NO_PARTS = "its value is of all windows of a trial together, and not made of theirs"
ALIKE = "neither windows nor blocks scatter at all: chance has no measure"
HOSTS = "hosts of a fleet measured it, and what lies between them is told by itself"
# By whose they are what each window adds: "arm" and the natives, or of rounds one for all that are in them. A name
# stands for one make-up: what is pooled under it has the same variance.
Cell = Mapping[str, Floats]


@dataclass(frozen=True)
class Components:
    """Variances of log ratios, each side's windows together. nan: not known, of one block."""

    window: float  # of one round, or of one window of each deployment
    of_windows: float  # of a block's observation, as much as its windows explain
    between: float  # and the rest of it, as it was estimated: below 0 it is told as 0
    windows: float  # a deployment's, harmonic mean
    freedom: int  # of ``window``: so many windows less one for each mean
    blocks: int
    is_paired: bool  # whether windows are rounds

    @property
    def observation(self) -> float:
        """Variance of a block's observation."""
        return self.of_windows + self.between

    @property
    def of_blocks(self) -> float:
        """What is told of the rest."""
        return max(0.0, self.between)

    @property
    def share(self) -> float:
        """The part of an observation's variance that more windows would lessen; nan of one block."""
        if self.blocks < 2:
            return math.nan
        return self.of_windows / self.observation if self.observation > self.of_windows else 1.0

    @property
    def share_interval(self) -> tuple[float, float] | None:
        """95 % interval of `share`, by the F distribution of mean squares (Searle, Casella & McCulloch, ch. 3.6): exact
        for normal windows that are rounds, one condition and no window missing. None of one block.
        """
        from scipy import special

        if self.blocks < 2 or not self.of_windows > 0:
            return None
        ratio, tail = self.observation / self.of_windows, (1 - LEVEL) / 2
        low, high = (
            float(special.fdtri(self.blocks - 1, self.freedom, q)) / ratio if ratio > 0 else math.inf
            for q in (tail, 1 - tail)
        )
        return min(1.0, low), min(1.0, high)

    def narrowed(self, times: float) -> float:
        """Variance of an observation, over what it is now, with so many times the windows; nan of one block."""
        return 1 - self.share * (1 - 1 / times)


def components(logs: Floats, cells: Mapping[tuple[int, int], Cell]) -> Components | str:
    """Components of ``logs`` [block, condition], a block's observation being the mean over its conditions; or the
    reason why there are none. ``cells``: what each window adds (`pull`), by block and condition.
    """
    known = {key: cell for key, cell in cells.items() if np.isfinite(logs[key])}
    pooled, freedom = _pooled(known)
    if not freedom:
        return ONE_WINDOW
    explained = {key: _explained(cell, pooled, key[1]) for key, cell in known.items()}
    blocks = sorted({block for block, _ in np.argwhere(np.isfinite(logs)).tolist()})
    if any((b, c) not in explained for b, c in np.argwhere(np.isfinite(logs)).tolist()):
        return NO_PARTS
    of_windows = [_of_mean([part for (b, _), part in explained.items() if b == block]) for block in blocks]
    if any(math.isnan(part) for part in of_windows):
        return ONE_WINDOW
    summary = over_conditions(logs)
    assert summary is not None  # some are known
    seen, mean = summary.deviation**2, float(np.mean(of_windows))
    if seen == 0 == mean:
        return ALIKE
    lengths = [len(samples) for cell in known.values() for samples in cell.values()]
    return Components(
        window=float(np.mean([sum(pooled[c, whose] for whose in cell) for (_, c), cell in known.items()])),
        of_windows=mean,
        between=seen - mean,
        windows=len(lengths) / sum(1 / length for length in lengths),
        freedom=freedom,
        blocks=len(blocks),
        is_paired=all(len(cell) == 1 for cell in known.values()),
    )


def _pooled(cells: Mapping[tuple[int, int], Cell]) -> tuple[dict[tuple[int, str], float], int]:
    """The variance of what a window adds, by condition and whose it is, over all blocks; and all degrees of freedom."""
    squares: dict[tuple[int, str], tuple[float, int]] = {}
    for (_, condition), cell in cells.items():
        for whose, samples in cell.items():
            total, freedom = squares.get((condition, whose), (0.0, 0))
            more = float(((samples - samples.mean()) ** 2).sum())
            squares[condition, whose] = total + more, freedom + len(samples) - 1
    known = {key: total / freedom for key, (total, freedom) in squares.items() if freedom}
    return known, sum(freedom for _, freedom in squares.values())


def _explained(cell: Cell, pooled: Mapping[tuple[int, str], float], condition: int) -> float:
    """Variance of one log ratio that its windows explain; nan where their variance is not known."""
    return sum(pooled.get((condition, whose), math.nan) / len(samples) for whose, samples in cell.items())


def _of_mean(parts: Sequence[float]) -> float:
    return sum(parts) / len(parts) ** 2


def components_of(
    matrix: Matrix, metric: str, arm: Arm, among: Collection[Condition] | None = None
) -> Components | str:
    """Of one arm against native over all conditions, or ``among`` those that its ratio is over; or the reason why there
    are none, as where it has no ratio: blocks that hold no 0, and nothing that failed, are the better ones.
    """
    if matrix.baseline is None:
        return "there is no native arm to compare with"
    if len(set(matrix.hosts)) > 1:
        return HOSTS
    held = Ratios.of(matrix, metric, rule_of(matrix.run.plan))
    mine = [number for number, c in enumerate(matrix.conditions) if among is None or c in among]
    row = held.row(arm, None, mine)
    if row.barred:
        return of_barred(row, matrix.metrics[metric]).words
    logs = np.full((len(matrix.blocks), len(matrix.conditions)), np.nan)
    logs[:, mine] = held.logs[:, matrix.arms.index(arm), mine]
    if not np.isfinite(logs).any():
        return "nothing that can be compared with native was measured"
    cells: dict[tuple[int, int], Cell] = {}
    lengths: set[int] = set()
    for b, c in np.argwhere(np.isfinite(logs)).tolist():
        beside = _natives_in(matrix, metric, (b, arm, matrix.conditions[c]))
        if not beside or any(metric not in each.parts for pair in beside for each in pair):
            return NO_PARTS
        lengths |= {len(each.parts[metric][0]) for pair in beside for each in pair}
        cells[b, c] = cell_of(beside[0][0], [native for _, native in beside], metric)
    return ONE_WINDOW if lengths == {1} else components(logs, cells)


def _natives_in(
    matrix: Matrix, metric: str, cell: tuple[int, Arm, Condition]
) -> list[tuple[TrialMetrics, TrialMetrics]]:
    """An arm's trial and each native's that its log ratio is made of."""
    b, arm, condition = cell
    pairs = (matrix.pair(b, arm, condition, native) for native in matrix.against(arm))
    return [pair for pair in pairs if pair is not None and metric in pair[1].values]


def cell_of(mine: TrialMetrics, natives: Sequence[TrialMetrics], metric: str) -> Cell:
    """What each window adds to log(arm) less the mean of log(native) of so many natives."""
    arm, *others = (pull(trial.parts[metric]) for trial in (mine, *natives))
    share, whole = 1 / len(natives), len(natives)
    met = [in_turn(mine, native) and len(each) == len(arm) for native, each in zip(natives, others, strict=True)]
    joined = arm - share * sum((each for each, is_met in zip(others, met, strict=True) if is_met), np.zeros_like(arm))
    alone = [each for each, is_met in zip(others, met, strict=True) if not is_met]
    first = f"arm and {sum(met)} of {whole}" if any(met) else "arm"
    return {first: joined} | {f"native {at} of {whole}": share * each for at, each in enumerate(alone, 1)}


def with_windows(found: Components, summary: Summary, times: float) -> Summary:
    """What a mean over as many blocks would be known by, had each so many times the windows."""
    error = summary.error * math.sqrt(found.narrowed(times))
    return Summary(summary.mean, error, summary.n, summary.spread_of)
