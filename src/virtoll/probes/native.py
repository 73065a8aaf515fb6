"""What every probe of the agent shares: its command line and its report (rust/probe/src/report.rs)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from virtoll import strict_json
from virtoll.images.base import AGENT
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult, Timed
from virtoll.record.model import Check, Window
from virtoll.units import format_duration

_REBUILD = "the agent is of another version: rebuild it and the image with `make`"
_SPARE_S = 3600.0  # beyond what a probe is to take: an emulated machine may need a hundred times what native needs
AS_LONG_AS_ASKED = "the windows were as long as asked for"
_LEAST_SHARE = 0.5  # of the time asked for
_CALIBRATION_NS = 20_000_000  # rust/probe/src/windows.rs


class NativeProbe(Probe):
    """A probe of virtoll-agent that runs inside the instance; field ``block_bytes`` becomes ``--block-bytes``."""

    timed_inside: ClassVar[bool] = True
    runs_anywhere: ClassVar[bool] = True

    def run(self, place: Place) -> ProbeResult:
        """Run it inside, to its end."""
        argv = [AGENT, *arguments(self.name, self.settings)]
        done = place.instance.agent.run(argv, timeout_s=time_limit_s(self.settings))
        return proved(parse(self.name, done.returncode, done.stdout, done.stderr), self.settings)


def time_limit_s(settings: Any) -> float:
    """After how long a run with these settings is given up."""
    return float(settings.expected_s) + _SPARE_S


def arguments(name: str, settings: Any) -> list[str]:
    """The agent's command line for a probe with these settings; a value of None is left to the agent.

    A window has a length in time or in work, never both.
    """
    words = ["probe", name]
    by_work = getattr(settings, "work", None) is not None
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None and not (by_work and field.name == "time_ns"):
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return [*words, "--json"]


def parse(name: str, returncode: int, stdout: bytes, stderr: bytes) -> ProbeResult:
    """The result in a probe's report; ProbeError where it says why there is none, or nothing that can be read."""
    return result(report(name, returncode, stdout, stderr))


def report(name: str, returncode: int, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    """A probe's report as it is; ProbeError as of `parse`."""
    try:
        report: dict[str, Any] = strict_json.loads(stdout)
    except ValueError:
        said = stderr.decode(errors="replace").strip() or stdout.decode(errors="replace").strip()
        ended = f"was ended by signal {-returncode}" if returncode < 0 else f"ended with exit code {returncode}"
        raise ProbeError(
            f"{ended} without a report: {said or 'it said nothing'}",
            kind="killed" if returncode < 0 else "system",
            where=f"probe {name}",
            remedy="signal 9 is mostly the OOM killer: choose a smaller size or more memory ([limits] memory)",
        ) from None
    if not isinstance(report, dict):
        report = {}
    if "error" in report:
        raise _error(name, report["error"])
    return report


def _error(name: str, told: Any) -> ProbeError:
    """What a report gives as the reason: an instance may say anything there."""
    words = [told.get(key) for key in ("what", "where", "remedy", "kind")] if isinstance(told, dict) else []
    match words:
        case [str(what), str(where), str(remedy), str(kind)]:
            return ProbeError(what, kind=kind, where=f"probe {name}: {where}", remedy=remedy)
    return ProbeError("the reason it gives is of another form", kind="system", where=f"probe {name}", remedy=_REBUILD)


def result(report: dict[str, Any]) -> ProbeResult:
    """What a report says, but for its series: their times are of clocks that it does not know."""
    try:
        return _result(report)
    except (KeyError, TypeError, ValueError) as error:
        raise ProbeError(
            f"the report is of another form ({type(error).__name__}: {error})",
            kind="system",
            where=f"probe {report.get('probe', 'of the agent')}",
            remedy=_REBUILD,
        ) from error


def _result(report: dict[str, Any]) -> ProbeResult:
    return ProbeResult(
        instrument=f"virtoll-agent {report['version']}",
        windows=_windows(report["windows"]),
        facts=report["facts"],
        checks=[Check(**check) for check in report["checks"]],
        notes=report["notes"],
        histogram=[(lower, upper, count) for lower, upper, count in report["histogram"]]
        if "histogram" in report
        else None,
    )


def proved(result: ProbeResult, settings: Timed) -> ProbeResult:
    """``result`` with one more check, where these settings ask for windows of a time: they lasted about so long.

    How much work a window holds is found before the first (rust/probe/src/windows.rs). Where that went wrong, a window
    may be over in a thousandth of the time, and its rate is of a moment. One that is too long has only measured more.
    """
    asked_ns = settings.window_ns
    if asked_ns is None or not result.windows:
        return result
    shortest = min(result.windows, key=lambda window: window.duration_ns)
    longest_ns = max(window.duration_ns for window in result.windows)
    shortest_told, longest_told = format_duration(shortest.duration_ns), format_duration(longest_ns)
    told = f"{shortest_told} the shortest and {longest_told} the longest, of {format_duration(asked_ns)} asked for"
    held: bool | None = shortest.duration_ns >= _LEAST_SHARE * asked_ns
    if not held and asked_ns < _CALIBRATION_NS:
        held, told = None, f"{told}: how long so short a window lasts is the scheduler's to say"
    elif not held and shortest.work == 1 and shortest.duration_ns >= _CALIBRATION_NS:
        held, told = None, f"{told}: each is one unit of work, which took longer before"
    return dataclasses.replace(result, checks=[*result.checks, Check(name=AS_LONG_AS_ASKED, passed=held, detail=told)])


def _windows(raw: Sequence[dict[str, Any]]) -> list[Window]:
    return [
        Window(start_ns=w["start_ns"], duration_ns=w["duration_ns"], work=w["work"], values=w["values"]) for w in raw
    ]
