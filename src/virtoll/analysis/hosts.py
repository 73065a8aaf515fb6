"""Blocks of several hosts: one mean over all of them, and how far the hosts lie apart.

Each host has its own mean over its own blocks, and all hosts weigh the same. What is the replicate depends on how many
hosts were planned, and on nothing that was found (docs/METHODOLOGY.md says why):

- few hosts: the block, within its host. The mean is of *these* hosts: where one of them lacks something, there is no
  interval of it. Its error is the root of the sum of squares of theirs over their number, as of any stratified mean.
  Degrees of freedom are Satterthwaite's (Biometrics Bull. 2, 1946), for hosts may scatter differently; where hosts have
  fewer than `ENOUGH` blocks, or one more than twice as many as another, those of the host that has fewest, which never
  promise too much (Hajek, Select. Transl. Math. Stat. Prob. 2, 1962);
- `MANY` hosts or more: the host. Then the interval is of hosts like these, and holds how far they lie apart; a host
  that lacks something is one fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from virtoll.analysis.estimates import Floats, Summary, over_conditions, summarise

MANY = 5  # hosts: with four, an interval by hosts is 3.2 errors to either side, with five 2.8, with three 4.3
ENOUGH = 4  # blocks of each host: with fewer, Satterthwaite's interval misses up to 8 % of what it says it misses 5 of
UNEVEN = 2  # how many times as many blocks one host may have as another, lest an approximation promise too much
_DRAWS, _SEED = 10_000, 20_26  # of the test of no difference: its p is good to 0.002 at 0.05
_AT_ONCE = 4_000_000  # of hosts' draws: their arrays must not grow with the hosts
_FEW = 50  # hosts whose draws are kept: 8 MB


def by_host(hosts: Sequence[str], logs: Floats) -> dict[str, Summary]:
    """`over_conditions` of each host's rows of [block, condition], of the hosts that hold every condition that any of
    them holds: a mean over fewer is of something else. ``hosts``: of each block, from the first on.
    """
    rows: dict[str, list[int]] = {host: [] for host in hosts}
    for row, host in enumerate(hosts[: len(logs)]):
        rows[host].append(row)
    held = np.asarray(np.isfinite(logs).any(axis=0))
    lacking = ~np.isfinite(logs[:, held]).all(axis=1) if held.any() else np.ones(len(logs), dtype=bool)
    without = {hosts[row] for row in np.flatnonzero(lacking).tolist()}
    whole = {host: numbers for host, numbers in rows.items() if numbers and host not in without}
    found = _of_whole(whole, logs[:, held])
    for host in rows.keys() - whole.keys():
        mine: Floats = logs[rows[host]]
        summary = over_conditions(mine) if mine.size else None
        if summary is not None and np.isfinite(mine[:, held]).any(axis=0).all():
            found[host] = summary
    return {host: found[host] for host in rows if host in found}


def _of_whole(rows: Mapping[str, Sequence[int]], logs: Floats) -> dict[str, Summary]:
    """`over_conditions` of each host's rows, where every cell is there: of all hosts with as many blocks at once."""
    of_length: dict[int, list[str]] = {}
    for host, numbers in rows.items():
        of_length.setdefault(len(numbers), []).append(host)
    found: dict[str, Summary] = {}
    for n, hosts in of_length.items():
        mine = logs[[rows[host] for host in hosts]]  # [host, block, condition]
        means, errors = mine.mean(axis=(1, 2)), np.full(len(hosts), np.nan)
        if n > 1:
            moved = ((mine.sum(axis=1, keepdims=True) - mine) / (n - 1)).mean(axis=2) - means[:, None]
            errors = np.sqrt((n - 1) / n * (moved**2).sum(axis=1))
        found |= {h: Summary(m, e, n) for h, m, e in zip(hosts, means.tolist(), errors.tolist(), strict=True)}
    return found


def over_hosts(hosts: Sequence[str], logs: Floats, *, is_of_hosts: bool) -> Summary | None:
    """The mean over hosts, of [block, condition]; None where nothing is known. ``is_of_hosts``: hosts are the
    replicate, and n is theirs; else blocks are. The error is nan where a mean is not of the hosts that were planned:
    of few, each must hold every condition in two blocks or more, of many more than half every condition.
    """
    planned, each = set(hosts), by_host(hosts, logs)
    if not each:
        whole = over_conditions(logs)
        return None if whole is None else Summary(whole.mean, math.nan, whole.n)
    known = list(each.values())
    mean = float(np.mean([summary.mean for summary in known]))
    if is_of_hosts:
        return (
            summarise([s.mean for s in known]) if 2 * len(each) > len(planned) else Summary(mean, math.nan, len(each))
        )
    n = sum(summary.n for summary in known)
    if not _hold_twice(hosts, logs):
        return Summary(mean, math.nan, n)
    error = math.sqrt(sum(summary.error**2 for summary in known)) / len(known)
    return Summary(mean, error, n, spread_of=_freedom(known) + 1)


def _hold_twice(hosts: Sequence[str], logs: Floats) -> bool:
    """Whether every host holds every condition that any of them holds in two blocks or more, of [block, condition]."""
    names, known = np.array(hosts[: len(logs)]), np.isfinite(logs)
    known = known[:, known.any(axis=0)]
    return all(bool((known[names == host].sum(axis=0) > 1).all()) for host in set(hosts))


def _freedom(known: Sequence[Summary]) -> float:
    blocks = [summary.n for summary in known]
    below = sum(summary.error**4 / summary.freedom for summary in known)
    if len(known) < 2 or min(blocks) < ENOUGH or max(blocks) > UNEVEN * min(blocks) or below == 0:
        return min(summary.freedom for summary in known)
    return sum(summary.error**2 for summary in known) ** 2 / below


@dataclass(frozen=True)
class Apart:
    """Whether hosts differ in what an arm costs, and by how much: the interaction of host and arm.

    ``deviation``: of the hosts' log ratios beyond what chance makes of their blocks, by moments (0 where chance makes
    as much); ``p``: of no difference, where hosts may scatter differently; nan where it cannot be told.
    """

    deviation: float
    p: float
    hosts: int


def apart(each: Mapping[str, Summary]) -> Apart | None:
    """Of hosts with two blocks or more, and half as many as any other; None where there are not two of them."""
    most = max((summary.n for summary in each.values()), default=0)
    known = [summary for summary in each.values() if summary.n > 1 and UNEVEN * summary.n >= most]
    if len(known) < 2:
        return None
    means, squares = np.array([s.mean for s in known]), np.array([s.error**2 for s in known])
    deviation = math.sqrt(max(0.0, float(means.var(ddof=1) - squares.mean())))
    return Apart(deviation, _no_difference(means, squares, np.array([s.freedom for s in known])), len(known))


def _no_difference(means: Floats, squares: Floats, freedom: Floats) -> float:
    """p of equal means, by the parametric bootstrap (Krishnamoorthy, Lu and Mathew, Comput. Stat. Data Anal. 51, 2007):
    how often chance alone, with errors such as were seen, sets them as far apart. It keeps its promise where hosts are
    many and blocks few, as Welch's test of several means (Biometrika 38, 1951) does not: of 16 equal hosts with two
    blocks each that calls half of all studies different.
    """
    if (squares == 0).any():
        return math.nan
    beyond, seen = 0, _between(means, squares)
    for normal, chi_square in _draws(tuple(freedom.tolist())):
        drawn, scatter = normal * np.sqrt(squares), squares * chi_square / freedom
        beyond += int((_between(drawn, scatter) >= seen).sum())
    return beyond / _DRAWS


def _draws(freedom: tuple[float, ...]) -> Iterable[tuple[Floats, Floats]]:
    """Standard normal and chi-squared, of [draw, host], always the same: the last are kept, where they are small, for
    most that is judged in a report is of hosts with as many blocks.
    """
    return _kept_draws(freedom) if len(freedom) <= _FEW else _new_draws(freedom)


@lru_cache(maxsize=1)
def _kept_draws(freedom: tuple[float, ...]) -> list[tuple[Floats, Floats]]:
    return list(_new_draws(freedom))


def _new_draws(freedom: tuple[float, ...]) -> Iterator[tuple[Floats, Floats]]:
    rng, hosts = np.random.default_rng(_SEED), len(freedom)
    for draws in _shares(hosts):
        yield rng.standard_normal((draws, hosts)), rng.chisquare(freedom, (draws, hosts))


def _shares(hosts: int) -> list[int]:
    """All draws, as many at a time as memory is given for (32 MB an array)."""
    at_once = max(1, _AT_ONCE // hosts)
    return [min(at_once, _DRAWS - done) for done in range(0, _DRAWS, at_once)]


def _between(means: Floats, squares: Floats) -> Floats:
    """Weighted sum of squares of means about their weighted mean, along the last axis."""
    weights = 1 / squares
    centre = (weights * means).sum(axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True)
    found: Floats = (weights * (means - centre) ** 2).sum(axis=-1)
    return found
