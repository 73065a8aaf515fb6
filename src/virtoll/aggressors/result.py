"""What an aggressor's log says: its series and its report (rust/aggress/src/supervisor.rs). Parsing only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from virtoll import strict_json
from virtoll.agent.answers import Fields, clipped

_LARGEST = 2**63 - 1  # that a table's column holds
_MOST_COUNTS, _MOST_SIGNALS, _LONGEST_WORDS = 64, 100, 4096

_ENDINGS: Mapping[str, Literal["time", "told", "refused"]] = {"time": "time", "told": "told", "refused": "refused"}

StoppedBy = Literal["itself", "agent", "host"]


@dataclass(frozen=True)
class AggressorResult:
    """What an aggressor did. Times are CLOCK_MONOTONIC ns where it ran; None where its end was not written down.

    ``ended``: *time* (its duration was over), *told* (by a signal), *refused* (it could not do what it is for:
    ``reason``), *killed* (before it could report: ``counts`` are those of the last line of its series).
    """

    aggressor: str
    ended: Literal["time", "told", "refused", "killed"]
    reason: str = ""
    restarts: int = 0  # times that its first process was killed, and it began again
    killed_by: Sequence[int] = ()  # by which signals: 9 is mostly the OOM killer (at most 100 are told)
    counts: Mapping[str, int] = field(default_factory=dict)
    processes_peak: int | None = None
    # (t_ns, {count: value}); beside its own counts, "processes" and "restarts".
    series: Sequence[tuple[int, Mapping[str, int]]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # what it ran with
    start_ns: int | None = None
    end_ns: int | None = None
    # "host": the agent gave no answer, and whoever holds the instance's cgroup must end what is in it.
    stopped_by: StoppedBy = "itself"
    flood: AggressorResult | None = None  # what its part on the generator's side did; times are the client's

    def began(self, count: str) -> bool:
        """Whether it was at work at all, ``count`` being what says so (the first of `Aggressor.counts`).

        A bomb that was killed and could not begin again is *refused* too, and had begun.
        """
        return self.ended != "refused" or self.counts.get(count, 0) > 0


def parse(aggressor: str, log: bytes, *, lived: bool = False) -> AggressorResult:
    """The result in an aggressor's log. AgentError for a report or a line of a series that is none: root inside may
    write anything there.

    ``lived``: it was alive before it was ended, so that silence is not that of one that could not begin.

    Lines that are no JSON are the agent's complaints, and become the reason when there is nothing else. A last line
    that was cut off is passed over.
    """
    series: list[tuple[int, Mapping[str, int]]] = []
    report: dict[str, Any] = {}
    words = []
    for line in log.split(b"\n"):
        told = _told(line)
        if told is None:
            words.append(line.decode(errors="replace").strip())
        elif "t_ns" in told:
            fields = Fields(told, "series", f"aggressor {aggressor}, its log")
            now = {name: _count(fields, name) for name in ("processes", "restarts")} | _counts(fields, told)
            series.append((_count(fields, "t_ns"), now))
        elif "aggressor" in told:
            report = told
    if report:
        return _reported(aggressor, report, series)
    return _unreported(aggressor, series, clipped(" ".join(filter(None, words)), _LONGEST_WORDS), lived=lived)


def _told(line: bytes) -> dict[str, Any] | None:
    try:
        told = strict_json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _reported(
    aggressor: str, report: Mapping[str, Any], series: list[tuple[int, Mapping[str, int]]]
) -> AggressorResult:
    where = f"aggressor {aggressor}, its log"
    fields = Fields(report, "report", where)
    ended = _ENDINGS.get(fields.text("ended"))
    if ended is None:
        raise fields.error(f"ended is {clipped(fields.text('ended'), 40)!r}")
    return AggressorResult(
        aggressor=aggressor,
        ended=ended,
        reason="" if report.get("refused") is None else fields.words("refused"),
        restarts=_count(fields, "restarts"),
        killed_by=fields.integers("killed_by")[:_MOST_SIGNALS],
        counts=_counts(fields, report),
        processes_peak=_count(fields, "processes_peak"),
        series=series,
        settings=Fields(report.get("settings"), "report: settings", where).facts(),
        start_ns=_count(fields, "start_ns"),
        end_ns=_count(fields, "end_ns"),
    )


def _count(fields: Fields, name: str) -> int:
    """A count that a table holds."""
    value = fields.count(name)
    if value > _LARGEST:
        raise fields.error(f"{name} is too large")
    return value


def _counts(fields: Fields, told: Mapping[str, Any]) -> dict[str, int]:
    counts = told.get("counts")
    if not isinstance(counts, dict) or len(counts) > _MOST_COUNTS:
        raise fields.error("counts is missing, or no object of a few")
    mine = Fields(counts, "counts", "aggressor's log")
    return {clipped(name, 40): _count(mine, name) for name in counts}


def _unreported(
    aggressor: str, series: list[tuple[int, Mapping[str, int]]], words: str, *, lived: bool
) -> AggressorResult:
    if not series:
        if lived:
            return AggressorResult(aggressor=aggressor, ended="killed", reason=words or "it never came to say anything")
        reason = words or "it ended before it said anything"
        return AggressorResult(aggressor=aggressor, ended="refused", reason=reason)
    start_ns, last = series[0][0], dict(series[-1][1])
    last.pop("processes")
    return AggressorResult(
        aggressor=aggressor,
        ended="killed",
        reason="" if lived else words or "it was gone, and had written no report",
        restarts=last.pop("restarts"),
        counts=last,
        series=series,
        start_ns=start_ns,
    )
