"""Blocks of several hosts: one mean over all of them, and how far the hosts lie apart.

Each host has its own mean over its own blocks, of the same conditions as every other; all hosts weigh the same. What
is the replicate depends on how many hosts were planned, and on nothing that was found (docs/METHODOLOGY.md says why):

- few hosts: the block, within its host. The mean is of *these* hosts, and its error the root of the sum of squares of
  theirs over their number, as of any stratified mean. Degrees of freedom are Satterthwaite's (Biometrics Bull. 2,
  1946), for hosts may scatter differently; where one has fewer than `ENOUGH` blocks those of the host that has
  fewest, which never promise too much (Hajek, Select. Transl. Math. Stat. Prob. 2, 1962);
- `MANY` hosts or more: the host. Then the interval is of hosts like these, and holds how far they lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from virtoll.analysis.estimates import Floats, Summary, over_conditions, summarise

MANY = 5  # hosts: with four, an interval by hosts is 3.2 errors to either side, with five 2.8, with three 4.3
ENOUGH = 4  # blocks of each host: with fewer, Satterthwaite's interval misses up to 8 % of what it says it misses 5 of

Held = npt.NDArray[np.bool_]  # by condition


@dataclass(frozen=True)
class Compared:
    """What a mean over hosts is of: each of the hosts holds each of the ``conditions`` (by their number)."""

    each: Mapping[str, Summary]  # by host
    conditions: tuple[int, ...]


def by_host(hosts: Sequence[str], logs: Floats) -> Compared:
    """Each host's `over_conditions` of its rows of [block, condition]. ``hosts``: of each block, from the first on.

    A mean over other conditions is of something else, so where cells are missing, hosts or conditions are left out:
    what keeps most cells stays, of equally many what keeps most hosts. That hangs on what is there, and not on how
    large it is.
    """
    of_rows = np.array(hosts[: len(logs)])
    rows = {host: logs[of_rows == host] for host in dict.fromkeys(hosts)}
    held = {host: np.isfinite(mine).any(axis=0) for host, mine in rows.items()}
    shared = _shared(list(held.values()), logs.shape[1])
    found: dict[str, Summary] = {}
    for host, mine in rows.items():
        summary = over_conditions(mine[:, shared]) if shared.any() and held[host][shared].all() else None
        if summary is not None:
            found[host] = summary
    return Compared(found, tuple(map(int, np.flatnonzero(shared))))


def _shared(held: Sequence[Held], count: int) -> Held:
    """The conditions under which most cells stay: those of one host, or those that the fullest hosts have in common."""
    best, most = np.zeros(count, dtype=np.bool_), (0, 0)
    fullest = sorted(held, key=lambda mine: -int(mine.sum()))
    together = [np.logical_and.reduce(fullest[:n]) for n in range(1, len(fullest) + 1)]
    for candidate in [*together, *held]:
        if not candidate.any():
            continue
        hosts = sum(bool(mine[candidate].all()) for mine in held)
        if (hosts * int(candidate.sum()), hosts) > most:
            best, most = candidate, (hosts * int(candidate.sum()), hosts)
    return best


def over_hosts(hosts: Sequence[str], logs: Floats, *, is_of_hosts: bool) -> Summary | None:
    """The mean over hosts, of [block, condition]; None where nothing is known. ``is_of_hosts``: hosts are the
    replicate, and n is theirs; else blocks are, and a host of which a single block is known has no part in it.
    """
    each = by_host(hosts, logs).each
    if not each:
        return None
    if is_of_hosts:
        return summarise([summary.mean for summary in each.values()])
    known = [summary for summary in each.values() if summary.n > 1]
    if not known:
        means = [summary.mean for summary in each.values()]
        return Summary(float(np.mean(means)), math.nan, sum(summary.n for summary in each.values()))
    return Summary(
        mean=float(np.mean([summary.mean for summary in known])),
        error=math.sqrt(sum(summary.error**2 for summary in known)) / len(known),
        n=sum(summary.n for summary in known),
        spread_of=_freedom(known) + 1,
    )


def _freedom(known: Sequence[Summary]) -> float:
    least = min(summary.freedom for summary in known)
    below = sum(summary.error**4 / summary.freedom for summary in known)
    if len(known) < 2 or least + 1 < ENOUGH or below == 0:
        return least
    return sum(summary.error**2 for summary in known) ** 2 / below


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
