"""Blocks of several hosts: one mean over all of them, and how far the hosts lie apart.

Each host has its own mean over its own blocks; all hosts weigh the same. What is the replicate depends on how many
hosts were planned, and on nothing that was found (docs/METHODOLOGY.md says why):

- few hosts: the block, within its host. The mean is of *these* hosts, and its error the root of the sum of squares of
  theirs over their number, as of any stratified mean; degrees of freedom by Satterthwaite (Biometrics Bull. 2, 1946),
  for hosts may scatter differently;
- `MANY` hosts or more: the host. Then the interval is of hosts like these, and holds how far they lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.estimates import Floats, Summary, over_conditions, summarise

MANY = 5  # hosts: with four, an interval by hosts is 3.2 errors to either side, with five 2.8, with three 4.3


def by_host(hosts: Sequence[str], logs: Floats) -> dict[str, Summary]:
    """`over_conditions` of each host's rows of [block, condition], of the hosts that hold every condition that any of
    them holds: a mean over fewer is of something else. ``hosts``: of each block, from the first on.
    """
    of_rows = np.array(hosts[: len(logs)])
    held = np.isfinite(logs).any(axis=0)
    found: dict[str, Summary] = {}
    for host in dict.fromkeys(hosts):
        mine = logs[of_rows == host]
        summary = over_conditions(mine) if mine.size else None
        if summary is not None and np.isfinite(mine).any(axis=0)[held].all():
            found[host] = summary
    return found


def over_hosts(hosts: Sequence[str], logs: Floats, *, is_of_hosts: bool) -> Summary | None:
    """The mean over hosts, of [block, condition]; None where nothing is known. ``is_of_hosts``: hosts are the
    replicate, and n is theirs; else blocks are, and a host of which a single block is known has no part in it.
    """
    each = by_host(hosts, logs)
    if not each:
        whole = over_conditions(logs)
        return None if whole is None else Summary(whole.mean, math.nan, whole.n)
    if is_of_hosts:
        return summarise([summary.mean for summary in each.values()])
    known = [summary for summary in each.values() if summary.n > 1]
    if not known:
        means = [summary.mean for summary in each.values()]
        return Summary(float(np.mean(means)), math.nan, sum(summary.n for summary in each.values()))
    error = math.sqrt(sum(summary.error**2 for summary in known)) / len(known)
    below = sum(summary.error**4 / summary.freedom for summary in known)
    total = sum(summary.freedom for summary in known)
    freedom = sum(summary.error**2 for summary in known) ** 2 / below if below > 0 else total
    return Summary(
        mean=float(np.mean([summary.mean for summary in known])),
        error=error,
        n=sum(summary.n for summary in known),
        spread_of=freedom + 1,
    )


@dataclass(frozen=True)
class Apart:
    """Whether hosts differ in what an arm costs, and by how much: the interaction of host and arm.

    ``deviation``: of the hosts' log ratios beyond what chance makes of their blocks, by moments (0 where chance makes
    as much); ``p``: of no difference, by Welch's test of several means (Biometrika 38, 1951), which lets hosts scatter
    differently; nan where it cannot be made.
    """

    deviation: float
    p: float
    hosts: int


def apart(each: Mapping[str, Summary]) -> Apart | None:
    """Of hosts with two blocks or more; None where there are not two of them."""
    known = [summary for summary in each.values() if summary.n > 1]
    if len(known) < 2:
        return None
    means, squares = np.array([s.mean for s in known]), np.array([s.error**2 for s in known])
    deviation = math.sqrt(max(0.0, float(means.var(ddof=1) - squares.mean())))
    return Apart(deviation, _welch(known), len(known))


def _welch(known: Sequence[Summary]) -> float:
    from scipy import special  # slow to import, and most runs have one host

    if any(summary.error == 0 for summary in known):
        return math.nan
    hosts = len(known)
    weights = np.array([1 / summary.error**2 for summary in known])
    means, freedom = np.array([s.mean for s in known]), np.array([s.freedom for s in known])
    centre = float(weights @ means / weights.sum())
    between = float(weights @ (means - centre) ** 2) / (hosts - 1)
    uneven = float(((1 - weights / weights.sum()) ** 2 / freedom).sum())
    statistic = between / (1 + 2 * (hosts - 2) / (hosts**2 - 1) * uneven)
    return float(special.fdtrc(hosts - 1, (hosts**2 - 1) / (3 * uneven), statistic))
