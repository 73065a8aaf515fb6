"""What a run asked for: whether two of them asked for the same, so that their ratios to native can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from virtoll.analysis.load import Run
from virtoll.errors import IncomparableError
from virtoll.report.findings import Findings

# Settings by which two runs may differ and still be compared: what is under test, and how much of it was recorded.
_MAY_DIFFER = ("service.", "limits.", "monitor.", "rotation.rounds", "load.log_requests", "load.seed")
_ASKED = ("service", "origin", "load", "design", "programme", "servers")  # keys of study.json


def refuse(before: Findings, after: Findings) -> None:
    """IncomparableError where what two runs asked for is not the same."""
    one, other = before.run, after.run
    where = f"{one.directory} and {other.directory}"
    if (one.plan, one.environment) == (other.plan, other.environment):
        raise IncomparableError("it is the same run twice", where=where, remedy="name two run directories")
    for each in (before, after):
        if why := unusable(each):
            raise IncomparableError(why[0], where=str(each.run.directory), remedy=why[1])
    found = list(asked_differently(one, other))
    natives = [str(each.matrix.baseline and each.matrix.baseline.label) for each in (before, after)]
    if natives[0] != natives[1]:
        found.append(f"native: {natives[0]} in A, {natives[1]} in B")
    if found:
        raise IncomparableError(
            "the two runs did not ask for the same:\n  " + "\n  ".join(found),
            where=where,
            remedy="measure one of them again as the other was, e.g. "
            f"`virtoll run {other.study.get('command') or other.study.get('name') or 'STUDY'}`",
        )


def unusable(findings: Findings) -> tuple[str, str] | None:
    """Why nothing of a run can be compared, and what to do."""
    run = findings.run
    go_on = f"`virtoll run {run.directory}` goes on with it"
    if findings.is_isolation:
        what = "it was studied what neighbours do, and there each arm is compared with itself, not with native"
        return what, "compare the tables of losses in the reports"
    if findings.matrix.baseline is None:
        what = "it has no native arm, and ratios to native are what is compared"
        return what, "measure it with native among the arms"
    if not run.records:
        return f"none of its {len(run.plan.trials)} trials is there yet", go_on
    if not findings.matrix.cells:
        return f"none of its {len(run.records)} trials is valid: {run.records[0].reason}", "mend that, and measure anew"
    return None


def asked_differently(one: Run, other: Run) -> Iterator[str]:
    """What must be the same and is not, a line each. What only one of them knows of (an older virtoll's record) is left
    out.
    """
    for key in _ASKED:
        mine, theirs = (_asked_for(run.study.get(key)) for run in (one, other))
        if mine != theirs and (one.study.get(key) is not None and other.study.get(key) is not None):
            yield f"{key}: {_short(mine)} in A, {_short(theirs)} in B"
    yield from _settings_that_differ(one, other, may=False)


def _asked_for(value: Any) -> Any:
    """What of a study's key says what is measured: of its servers, which there are and who drives them."""
    if isinstance(value, Mapping):
        return {name: [each.get(part) for part in ("service", "load")] for name, each in value.items()}
    return value


def configured(one: Run, other: Run) -> Iterator[str]:
    """What is under test, and differs."""
    yield from _settings_that_differ(one, other, may=True)
    settings = [{trial.arm.label: trial.arm.settings for trial in run.plan.trials} for run in (one, other)]
    for label in sorted(settings[0].keys() & settings[1].keys()):
        if settings[0][label] != settings[1][label]:
            yield f"{label}: {_short(settings[0][label])} in A, {_short(settings[1][label])} in B"


def _settings_that_differ(one: Run, other: Run, *, may: bool) -> Iterator[str]:
    """Fixed values, by dotted path; what either varied is matched condition by condition."""
    varied = paths_of(one) | paths_of(other)
    for name, mine, theirs in _bases(one, other):
        for path in sorted((mine.keys() & theirs.keys()) - varied):
            if mine[path] != theirs[path] and path.startswith(_MAY_DIFFER) is may:
                yield f"{name}{path}: {_short(mine[path])} in A, {_short(theirs[path])} in B"


def _bases(one: Run, other: Run) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    yield "", one.base, other.base
    mine, theirs = (run.study.get("servers") or {} for run in (one, other))
    for name in sorted(mine.keys() & theirs.keys()):
        yield f"{name}: ", mine[name]["base"], theirs[name]["base"]


def paths_of(run: Run) -> set[str]:
    """What its trials' conditions say, by dotted path."""
    return {path for trial in run.plan.trials for path in trial.condition}


def _short(value: Any) -> str:
    text = "nothing" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
