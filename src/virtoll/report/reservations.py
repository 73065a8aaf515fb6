"""What a reader must know before the numbers: where they are no fair sample, or say another thing than they seem to."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Summary, summarise
from virtoll.analysis.load import Run
from virtoll.analysis.metrics import TrialMetrics
from virtoll.record.model import (
    GENERATOR_HEADROOM,
    HEADROOM_FOR_ALL,
    MAY_BE_MEASURED,
    ORIGIN_HEADROOM,
    OTHERS,
    Measured,
    TrialRecord,
    Window,
)
from virtoll.report.findings import Findings
from virtoll.report.words import join

STEADY = 0.05  # by more than this a rate may not change, beyond chance, within a trial
NOTABLE = 0.01  # of a rate that may be too high
BUSY = 0.8  # of its CPUs: what used less in closed loop was not what limited the rate


def reservations(findings: Findings) -> list[str]:
    """All that apply to a run, a sentence or two each."""
    return [*_outrun(findings), *_failing(findings), *how_to_read(findings)]


def how_to_read(findings: Findings) -> list[str]:
    """Those that are of its valid trials."""
    told = (_torn, _disturbed, _of_the_tool, _unsaturated, _short, _unsteady, _noted)
    return [sentence for each in told for sentence in each(findings)]


def cautions(findings: Findings) -> list[str]:
    """What whoever goes by a run's figures must know, and what its files say of themselves."""
    return [*findings.run.notes, *reservations(findings)]


def go_by_cpu(run: Run) -> bool:
    """Whether they go by the CPU time of a run's trials, which is in the files beside its records: in closed loop."""
    measured = (record.measured for record in run.records)
    return not run.objective and any(each is not None and each.loop == "closed" for each in measured)


def _outrun(findings: Findings) -> list[str]:
    """Trials that generator or origin were too slow for were their arms' fastest: those that are left are no fair
    sample.
    """
    return [
        f"{who} had no headroom in {len(outrun)} {'trial' if len(outrun) == 1 else 'trials'}, the "
        f"fastest of {join(sorted(set(outrun)))}: "
        "what is left of these is slower than they are. Ask at a rate (loop = open), for less at a time, or on a "
        "machine with more CPUs"
        for who, names in _OUTRUN.items()
        if (outrun := [t.record.trial.arm.label for t in findings.matrix.trials if _lacked(names, t.record)])
    ]


_OUTRUN = {"the generator": (GENERATOR_HEADROOM, HEADROOM_FOR_ALL), "the origin": (ORIGIN_HEADROOM,)}


def _lacked(names: Sequence[str], record: TrialRecord) -> bool:
    return any(check.name in names and check.passed is False for check in record.checks)


def _of_the_tool(findings: Findings) -> list[str]:
    """Valid trials in which somebody else's tool had no headroom: what it says is of the tool there."""
    by_tool: dict[str, list[str]] = {}
    for trial in findings.matrix.trials:
        measured = trial.record.measured
        is_full = any(c.name == GENERATOR_HEADROOM and c.detail.endswith(MAY_BE_MEASURED) for c in trial.record.checks)
        if trial.record.status == "valid" and measured is not None and is_full:
            by_tool.setdefault(measured.instrument, []).append(trial.record.trial.arm.label)
    return [
        f"{tool} used nearly all of the CPU time that it can use in {len(labels)} valid "
        f"{'trial' if len(labels) == 1 else 'trials'}, of {join(sorted(set(labels)))}: it may be what was measured "
        "there, so that platforms seem more alike than they are. Ask with the load http, which takes less CPU time for "
        "a request, on a machine with more CPUs, or judge by the service's CPU time"
        for tool, labels in by_tool.items()
    ]


def _failing(findings: Findings) -> list[str]:
    """Arms whose service failed its users in some trials: those that are left are the better ones."""
    return [
        f"{arm.label} {failed}: its figures are of the others, which are the better ones"
        for arm in findings.matrix.arms
        if (failed := findings.matrix.failed(arm))
    ]


def _torn(findings: Findings) -> list[str]:
    """Blocks in which the run was cut short, and gone on with later."""
    matrices = [each.matrix for each in (findings, findings.explanation) if each is not None]
    parts = frozenset[tuple[int, int]]().union(*(each.parts for each in matrices))
    torn = sorted(block for block, count in Counter(block for block, _ in parts).items() if count > 1)
    if not torn:
        return []
    more = [f"{len(torn) - _MOST_BLOCKS:,} more"] * (len(torn) > _MOST_BLOCKS)
    which = join([*map(str, torn[:_MOST_BLOCKS]), *more])
    return [
        f"{f'blocks {which} were' if len(torn) > 1 else f'block {which} was'} cut short, and gone on with in another "
        "sitting: what was measured there before is compared with nothing that was measured after, for the machine may "
        "have been another by then"
    ]


_MOST_BLOCKS = 8


def _disturbed(findings: Findings) -> list[str]:
    """Trials beside which other work took more of the instance's CPUs than chance and daemons explain."""
    valid = [record for record in findings.run.records if record.status == "valid"]
    known = [told for record in valid if (told := _others(record)) is not None]
    took = [cpus for cpus, bound in known if cpus >= bound]
    if not took:
        return []
    return [
        f"other work took up to {max(took):.2f} of the instance's CPUs, in {len(took)} of {len(known)} trials: it "
        "makes intervals wider, and may have been why a service missed an objective. End it, and measure anew what "
        "you go by"
    ]


def _others(record: TrialRecord) -> tuple[float, float] | None:
    """What they took and what is nothing to speak of, CPUs on average; None where it is not known."""
    told = record.facts.get(OTHERS)
    if not isinstance(told, dict):
        return None
    cpus, bound = told.get("cpus"), told.get("bound")
    return (cpus, bound) if isinstance(cpus, int | float) and isinstance(bound, int | float) else None


def _noted(findings: Findings) -> list[str]:
    """What probes and loads said themselves of how to read what they measured. Notes that differ by their numbers alone
    are told once, by the first.
    """
    valid = [trial for trial in findings.matrix.trials if trial.record.status == "valid"]
    said: dict[tuple[str, str], list[tuple[str, str]]] = {}  # by who says what: in which words, and of which arm
    for trial in valid:
        measured = trial.record.measured
        for note in dict.fromkeys(measured.notes if measured is not None else ()):
            which = measured.name if measured is not None else "", _NUMBER.sub("#", note)
            said.setdefault(which, []).append((note, trial.record.trial.arm.label))
    return [_told(name, each, findings, valid) for (name, _), each in said.items()]


_NUMBER = re.compile(r"-?[0-9][0-9.,]*")


def _told(name: str, said: Sequence[tuple[str, str]], findings: Findings, valid: Sequence[TrialMetrics]) -> str:
    of = sum(trial.record.measured is not None and trial.record.measured.name == name for trial in valid)
    labels = [arm.label for arm in findings.matrix.arms if arm.label in {label for _, label in said}]
    whose = f" of {join(labels)}" if len(labels) < len(findings.matrix.arms) else ""
    first = said[0][0]
    alike = "" if len({note for note, _ in said}) == 1 else "; the first is told"
    return f"{name}: {first} (said in {len(said)} of {of} trials{whose}{alike})"


def _unsaturated(findings: Findings) -> list[str]:
    """A closed loop of few users waits for answers and wakes for them: its rate is no capacity."""
    if not findings.is_load or findings.loops != ("closed",):
        return []
    shares = {condition: share for condition in findings.matrix.conditions if (share := _busy(findings, condition))}
    idle = {condition: share for condition, share in shares.items() if share < BUSY}
    if not idle:
        return []
    named = len(findings.matrix.conditions) > 1
    where = {condition: f" under {findings.matrix.label(condition)}" if named else "" for condition in idle}
    told = join([f"{share:.0%}{where[condition]}" for condition, share in idle.items()])
    return [
        f"native used {told} of its CPU: the rate says there how quickly users and service answer each other, which "
        f"scatters with every wake-up, and not how much the service can do. Judge by the CPU time of a "
        f"{findings.unit}, or ask with more users"
    ]


def _short(findings: Findings) -> list[str]:
    """Arms whose windows began before each user had been answered once: of a service that answers one after another
    half of what is under way is then told on top of what it did.
    """
    worst: dict[str, float] = {}  # by how much the rate may be too high, by the arm's label
    for trial in findings.matrix.trials:
        measured = trial.record.measured
        if trial.record.status != "valid" or measured is None or measured.loop != "closed":
            continue
        for window in measured.windows:
            under_way, rate_per_s = _under_way(measured, window), window.rate_per_s
            if under_way and rate_per_s and window.start_ns - window.asked_from_ns < under_way * 1e9 / rate_per_s:
                label = trial.record.trial.arm.label
                worst[label] = max(worst.get(label, 0.0), under_way / 2 / window.work)
    told = [f"{label} by up to {much:.0%}" for label, much in sorted(worst.items()) if much >= NOTABLE]
    if not told:
        return []
    return [
        "windows began before each user had been answered once, which may be told on top of what was done: the rate of "
        f"{join(told)}. A warm-up tells how long that takes (load.warm_up); in rotation an arm as slow as this is "
        'better measured with fewer users, or with design = "blocks"'
    ]


def _under_way(measured: Measured, window: Window) -> int:
    """Units of work that the native generator kept under way in closed loop, where several levels were tried at the
    window's; 0: another load, which may not tell.
    """
    settings = measured.settings
    if not measured.instrument.startswith("virtoll-load") or "connections" not in settings:
        return 0
    users = settings["connections"] if window.at is None else window.at
    return int(users) * int(settings.get("pipeline", 1))


def _unsteady(findings: Findings) -> list[str]:
    """A service whose pace falls or rises from window to window is told at another point for each arm."""
    told = []
    is_one_load = findings.is_load and not findings.is_search  # a search asks for more and more
    under = (condition for condition in findings.matrix.conditions if condition not in findings.matrix.searched)
    for condition in under if is_one_load and findings.loops == ("closed",) else ():
        change = _drifted(findings, condition)
        if change is None or change.n < 2 or abs(change.mean) - change.half_width() < math.log1p(STEADY):
            continue
        named = f" under {findings.matrix.label(condition)}" if len(findings.matrix.conditions) > 1 else ""
        verb = "fell" if change.mean < 0 else "rose"
        told.append(
            f"native's rate {verb} by {abs(math.expm1(change.mean)):.0%} from a trial's first windows to its last"
            f"{named}: the service was not steady, and an arm that is slower is told at an earlier point. A longer "
            "warm_up may help, and so may connections that are used again (keep_alive)"
        )
    return told


def _drifted(findings: Findings, condition: Condition) -> Summary | None:
    """The log ratio of native's rate in a trial's last quarter of windows to that in its first, over its trials; None
    where none has four."""
    matrix = findings.matrix
    changes = []
    for trial in matrix.across(matrix.baseline, condition).values() if matrix.baseline is not None else ():
        windows = trial.record.measured.windows if trial.record.measured is not None else []
        first, last = windows[: len(windows) // 4], windows[-(len(windows) // 4) :]
        rates = [_rate(part) for part in (first, last)] if len(windows) >= 4 else []
        if rates and all(rate > 0 for rate in rates):
            changes.append(math.log(rates[1] / rates[0]))
    return summarise(np.array(changes)) if changes else None


def _rate(windows: Sequence[Window]) -> float:
    length_ns = sum(window.duration_ns for window in windows)
    return sum(window.work for window in windows) / length_ns if length_ns else 0.0


def _busy(findings: Findings, condition: Condition) -> float | None:
    """The share of its CPUs that native used, mean over its trials; None: not known."""
    matrix = findings.matrix
    if matrix.baseline is None:
        return None
    given = findings.run.given(dict(condition.levels))
    if given.get("link.rate_bit_per_s"):
        return None  # the link is to be the limit
    vcpus = given.get("limits.vcpus", 1)
    used = [
        trial.values["rate_per_s"] * trial.values["cpu_s_per_1000"] / 1000 / vcpus
        for trial in matrix.across(matrix.baseline, condition).values()
        if trial.values.keys() >= {"rate_per_s", "cpu_s_per_1000"}
    ]
    return sum(used) / len(used) if used else None
