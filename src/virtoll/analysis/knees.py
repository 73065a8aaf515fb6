"""What a search for the knee says: its value, or the bound that it ended at; and what was used at the knee."""

from __future__ import annotations

from collections.abc import Iterable

from virtoll.analysis.conditions import Condition
from virtoll.analysis.load import Run
from virtoll.analysis.metrics import KNEE, METRICS, TrialMetrics
from virtoll.analysis.usage import all_served, note_usage
from virtoll.record.knee import Knee
from virtoll.record.model import Measured

_MANY = "a search for the knee: its windows are of many intensities"
_AT_IT = "at its own knee"


def note_knee(trial: TrialMetrics, measured: Measured, knee: Knee, run: Run) -> None:
    """Note the knee and what was used there, each a number or the reason why there is none.

    Where the search ended at a bound the knee is `TrialMetrics.censored`: a mean or a ratio of the trials that have one
    would be of the lower, or the higher, ones alone.
    """
    trial.missing |= dict.fromkeys(METRICS, _MANY)
    intensities = [window.at for window in measured.windows]
    if knee.value is None:
        trial.put(KNEE, bound_words(measured, knee))
        trial.censored.add(KNEE)
        return
    trial.put(KNEE, knee.value)
    windows = [measured.windows[number] for number in knee.deciding(intensities, knee.lower)]
    with all_served(trial, windows):
        note_usage(trial, measured.model_copy(update={"windows": windows}), run)
    for name in trial.values.keys() & trial.missing.keys():
        trial.missing.pop(name)
        trial.notes[name] = _AT_IT


def note_bounds(trials: Iterable[TrialMetrics]) -> None:
    """Say beside what was used at the knee that it is of some deployments alone, where the knees of others of that arm
    are bounds: those that ended at the most are the fastest.
    """
    groups: dict[tuple[str, Condition], list[TrialMetrics]] = {}
    for trial in trials:
        plan = trial.record.trial
        if trial.record.status == "valid" and (KNEE in trial.values or KNEE in trial.censored):
            groups.setdefault((plan.arm.label, Condition.of(plan)), []).append(trial)
    for group in groups.values():
        known = [trial for trial in group if KNEE in trial.values]
        if len(known) < len(group):
            note = f"{_AT_IT}, in {len(known)} of {len(group)} deployments: those whose knee is no bound"
            for trial in known:
                trial.notes |= {name: note for name, said in trial.notes.items() if said == _AT_IT}


def bound_words(measured: Measured, knee: Knee) -> str:
    """What is known of a knee that has no value, as a bound named as one."""
    least = min(window.at for window in measured.windows if window.at is not None)
    if knee.ended == "below least":
        return f"below {told(least)} {knee.unit}, the least that was asked for"
    if knee.lower is None:
        return f"not known: the generator was in the way at {told(least)} {knee.unit} already"
    who = "what the generator can offer here" if knee.ended == "beyond generator" else "the most that was asked for"
    return f"beyond {who}: at least {told(knee.lower)} {knee.unit}"


def told(intensity: float) -> str:
    """An intensity in words: steps are coarser than four digits."""
    return f"{intensity:,.0f}" if intensity >= 1000 else f"{intensity:.4g}"


def contradictions(measured: Measured, knee: Knee) -> int:
    """How many windows say other than what was decided: that missed the objective at the knee or below, or met it
    above."""
    return sum(
        (step.told == "not met" and window.at is not None and window.at <= (knee.lower or 0))
        or (step.told == "met" and window.at is not None and knee.upper is not None and window.at >= knee.upper)
        for step, window in zip(knee.steps, measured.windows, strict=True)
    )
