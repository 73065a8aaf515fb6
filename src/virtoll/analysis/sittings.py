"""Which trials of a block were measured in one sitting of their run: no others are paired.

A sitting is one stretch in which a run was measured: from where it was begun, or gone on with, to where it ended or was
cut short. What the machine did from one sitting to the next is no arm's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt

from virtoll.record.model import TrialRecord
from virtoll.record.store import attempt


def sittings_of(records: Iterable[TrialRecord]) -> dict[str, int]:
    """By trial, a number that it shares with those that were measured in one sitting with it, as far as is known.

    Of runs of before, whose records do not tell, it is 0; but trials in turn were under way together, or it is another:
    virtoll was killed between the seals of two, and the turn came again for the other.
    """
    known = list(records)
    found = {record.trial.id: record.sitting or 0 for record in known}
    untold = [record for record in known if record.sitting is None]
    if any(record.trial.turn and attempt(record.trial.id) for record in untold):
        turns: dict[str, list[TrialRecord]] = {}
        for record in untold:
            if record.trial.turn and record.status != "failed":
                turns.setdefault(record.trial.turn, []).append(record)
        for turn in turns.values():
            found |= _times(turn)
    return found


def in_one_sitting(sides: Sequence[Sequence[Collection[int]]]) -> npt.NDArray[np.bool_]:
    """By block, whether several cells (each with the sittings of its trials, by block) were all measured, in one."""
    return np.array([all(of_block) and len(set().union(*of_block)) == 1 for of_block in zip(*sides, strict=True)])


def _times(turn: Sequence[TrialRecord]) -> dict[str, int]:
    """Of the trials of a turn, at which of the times when it was measured each was: 0, -1, ..."""
    firsts: list[TrialRecord] = []
    found: dict[str, int] = {}
    for record in turn:
        at = next((at for at, first in enumerate(firsts) if _overlap(first, record)), len(firsts))
        firsts += [record] * (at == len(firsts))
        found[record.trial.id] = -at
    return found


def _overlap(one: TrialRecord, other: TrialRecord) -> bool:
    """Whether two trials of a turn, which are all under way together, were so at one time: by the monotonic clock, and
    by the wall's too, for the machine may have been booted between them.
    """
    pairs = zip(_spans_ns(one), _spans_ns(other), strict=True)
    return all(mine[0] < theirs[1] and theirs[0] < mine[1] for mine, theirs in pairs)


def _spans_ns(record: TrialRecord) -> tuple[tuple[int, int], tuple[int, int]]:
    """When a trial began and ended, by the monotonic clock and by the wall's."""
    begun_ns = min((phase.start_ns for phase in record.phases), default=0)
    ended_ns = max((phase.start_ns + phase.duration_ns for phase in record.phases), default=0)
    started_ns = round(datetime.fromisoformat(record.started_at).timestamp() * 1e9)
    return (begun_ns, ended_ns), (started_ns, started_ns + ended_ns - begun_ns + _BEGUN_WITHIN_NS)


_BEGUN_WITHIN_NS = 5 * 10**9  # of each other are all trials of a turn; no machine boots and measures again so soon
