"""What a conference costs its server as users join, what they feel, and how many are carried."""

from __future__ import annotations

from typing import ClassVar

from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll
from virtoll.analysis.server import (
    Browsers,
    Carried,
    browsers,
    carried,
    deployments,
    is_by_participants,
    per_participant,
    void_levels,
)
from virtoll.record.model import LEVEL
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.probe_views import View, view_figures
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table

_AXIS = "participants"
_SIDES = "A container's tool sees the host's counters, unless lxcfs shows it its own."
# Name, question, metrics (a panel each), whether they are drawn from 0 on whatever they span, and what the caption says
# besides.
_VIEWS = (
    (
        "conference-cpu",
        "How much CPU does the server take, and how much would a tool inside say?",
        ("server_cpus", "server_cpus_inside"),
        True,
        f"Above as the host books it, helpers and emulators too; below as /proc/stat inside has it. {_SIDES}",
    ),
    (
        "conference-memory",
        "How much memory does the server take, and how much would a tool inside say?",
        ("memory_mean_mib", "memory_inside_mib"),
        True,
        f"Above as the host books it, page cache included; below as free(1) inside has it. {_SIDES}",
    ),
    (
        "conference-traffic",
        "How much traffic does the server carry?",
        ("from_server_mbit_per_s", "to_server_mbit_per_s"),
        False,
        "At the host's end of the instance's link.",
    ),
    (
        "conference-switches",
        "How often does the CPU change hands?",
        ("switches_per_s", "switches_per_s_inside"),
        True,
        f"Above of the whole host, the generator's too; below as seen inside. {_SIDES}",
    ),
    ("conference-joins", "How long does a join take?", ("latency_p90_ms", "latency_p50_ms"), False, ""),
    (
        "conference-frozen",
        "How much of the time do streams stand still?",
        ("participants.frozen_percent", "participants.waiting_percent"),
        True,
        "Frozen by webrtc-stats' rule, or without a first picture; below the latter alone.",
    ),
    (
        "conference-loss",
        "How many packets are lost?",
        ("participants.loss_percent", "participants.loss_before_percent"),
        True,
        "Above after repair by retransmission, below before.",
    ),
    (
        "conference-delay",
        "How long is the way, and how unsteady?",
        ("participants.round_trip_ms", "participants.rtcp_round_trip_ms", "participants.jitter_ms"),
        True,
        "Round trips of all by ICE's consent checks, and by RTCP of those who send; jitter as RFC 3550 defines it.",
    ),
    (
        "conference-first",
        "How long until a stream that is subscribed to shows something?",
        ("participants.first_packet_ms", "participants.first_key_frame_ms"),
        True,
        "Its first packet, and its first key frame, of those streams that had one.",
    ),
    (
        "conference-browser-frozen",
        "How much of the time do streams stand still in a browser?",
        ("participants.browser_frozen_percent",),
        True,
        "As a Chromium among the participants counts it; a stream that shows nothing in a window stands still in it.",
    ),
    (
        "conference-browser-frames",
        "How many frames a second does a browser show?",
        ("participants.browser_webcam_frames_per_s", "participants.browser_desktop_frames_per_s"),
        True,
        "Decoded by a Chromium among the participants, mean of streams.",
    ),
    (
        "conference-browser-decode",
        "How long does a browser take to decode a frame?",
        ("participants.browser_decode_ms",),
        True,
        "It tells of the generator's CPUs, not of the server.",
    ),
)


class Conference(Section):
    """Curves against participants, and what each further one costs."""

    name: ClassVar[str] = "conference"
    summary: ClassVar[str] = "What does it cost as users join, and what do they feel?"
    rank: ClassVar[int] = 215
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Where trials are at several numbers of participants."""
        return findings.is_load and not findings.is_search and is_by_participants(findings.run)

    def text(self, findings: Findings) -> list[str]:
        """Which levels tell nothing, and why; which browsers watched, what they took, and who of them did not."""
        return [*_void_words(findings), *_browser_words(findings)]

    def figures(self, findings: Findings) -> list[Figure]:
        """A view each."""
        return view_figures(findings, views(findings))

    def tables(self, findings: Findings) -> list[Table]:
        """Differences to native as the papers state them, what a participant adds, and how many are carried."""
        made = [_differences(findings), _added(findings), _carried(findings)]
        return [table.placed(table.caption) for table in made if table is not None]

    def method(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """What a level is."""
        return [_LEVELS]


def _void_words(findings: Findings) -> list[str]:
    told = []
    for arm in findings.arms:
        if void := void_levels(findings.matrix, arm):
            levels = ", ".join(f"{level:,}" for level in void)
            told.append(f"{arm.label}: at {levels} participants {next(iter(void.values()))}")
    if not told:
        return []
    return [f"Some levels tell of our own side, and are left out of those deployments: {'; '.join(told)}."]


def _browser_words(findings: Findings) -> list[str]:
    found = [(arm, each) for arm in findings.arms if (each := browsers(findings.matrix, arm)) is not None]
    if not found:
        return []
    number = max(each.number for _, each in found)
    version = next((each.version for _, each in found if each.version), "no version known, for none started")
    spans = [each.cpus for _, each in found if each.cpus is not None]
    who = f"{number} browsers watch" if number > 1 else "One browser watches"
    took = "what they took of the generator's CPUs is not known"
    if spans:
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        took = f"{low:.2f} to {high:.2f} CPUs of the generator's, which its proof of headroom counts, were theirs"
    words = [f"{who} all streams besides the participants of each deployment ({version}); {took}."]
    if missing := "; ".join(text for arm, each in found for text in _missing(arm.label, each)):
        words.append(f"Not all of them told what they saw: {missing}.")
    return words


def _missing(label: str, found: Browsers) -> list[str]:
    """Who failed, level by level."""
    kinds = {
        level: ", ".join(f"{n} {kind}" for kind, n in sorted(each.items())) for level, each in found.failures.items()
    }
    return [f"{label}: at {level:,} participants {told}" for level, told in sorted(kinds.items())]


_LEVELS = (
    "**A ramp is one session.** Participants come in one after another; at each level, when the last has settled, "
    "there is a window, and nobody leaves. Levels of one deployment are compared with the same level on native, never "
    "with each other; intervals are over blocks."
)


def views(findings: Findings) -> list[View]:
    """The views of what was measured."""
    known, found = findings.matrix.metrics, []
    for name, question, metrics, zeros, remark in _VIEWS:
        shown = tuple(known[metric] for metric in metrics if metric in known and not findings.reason(metric))
        entries = tuple(
            (metric, condition, _panel(findings, metric, shown, condition.label(_others(findings))))
            for metric in shown
            for condition in findings.matrix.conditions_of(metric.name)
        )
        if entries:
            found.append(View(shown, LEVEL, entries, name, question, _AXIS, True, remark, zeros, False))
    return found


def _others(findings: Findings) -> tuple[str, ...]:
    return tuple(path for path in findings.matrix.varying if path != LEVEL)


def _panel(findings: Findings, metric: Metric, shown: tuple[Metric, ...], rest: str) -> str:
    parts = (metric.title if len(shown) > 1 else "", rest if _others(findings) else "")
    return ", ".join(part for part in parts if part)


_COMPARED = (("server_cpus", "CPU"), ("memory_mean_mib", "Memory"))


def _differences(findings: Findings) -> Table | None:
    """Mean and largest ratio to native, as the papers print them."""
    arms = [arm for arm in findings.arms if arm.role == "treatment"]
    metrics = [(name, title) for name, title in _COMPARED if name in findings.matrix.metrics]
    if not arms or not metrics or findings.matrix.baseline is None:
        return None
    heads = ["Arm"]
    for _, title in metrics:
        heads += [f"{title}, mean", f"{title}, largest"]
    rows = []
    for arm in arms:
        cells = [Cell(arm.label)]
        for name, _ in metrics:
            tolls, levels = findings.tolls(name), len(findings.matrix.conditions_of(name))
            cells += [_ratio(tolls.total(arm), levels), _largest([toll for toll in tolls.cells if toll.arm == arm])]
        rows.append(tuple(cells))
    notes = (
        "Ratios to native with 95 % intervals. Mean: the geometric mean over all levels, or over those that are told "
        "of both where some are not: arms that are told over different levels cannot be compared with each other. "
        "Levels that missed the objective count too: there a server at its limit takes no more, and delivers less. "
        "Largest: of the level where it is largest, in brackets; picked as the largest of several, it lies above its "
        "true value by chance.",
    )
    return Table("conference-differences", "Mean and largest difference to native", tuple(heads), tuple(rows), notes)


def _ratio(toll: Toll | None, levels: int) -> Cell:
    """Over all levels, or over how many of them."""
    if toll is None or toll.ratio is None:
        return Cell(MISSING, "missing")
    some = f"over {toll.conditions} of {levels} levels" if toll.conditions < levels else ""
    return Cell(f"× {interval(toll.ratio)}", detail=some)


def _largest(tolls: list[Toll]) -> Cell:
    known = [(toll.ratio.value, toll) for toll in tolls if toll.ratio is not None]
    if not known:
        return Cell(MISSING, "missing")
    toll = max(known, key=lambda each: each[0])[1]
    assert toll.condition is not None
    return Cell(f"× {interval(toll.ratio)}", detail=toll.condition.label())


def _added(findings: Findings) -> Table | None:
    """What each further participant takes."""
    metrics = [findings.matrix.metrics[name] for name, _ in _COMPARED if name in findings.matrix.metrics]
    if len(findings.matrix.levels(LEVEL)) < 3 or _others(findings):
        return None
    rows = []
    for arm in findings.arms:
        added = (per_participant(findings.matrix, metric.name, arm) for metric in metrics)
        rows.append((Cell(arm.label), *(Cell(plus_minus(each)) for each in added)))
    heads = ("Arm", *(f"{title} [{metric.unit}]" for metric, (_, title) in zip(metrics, _COMPARED, strict=True)))
    notes = (
        "The slope of a straight line (least squares) through the levels, three at least, at which a deployment met "
        "the objective; mean over blocks with 95 % intervals. It says nothing of participants beyond the highest of "
        "them.",
    )
    return Table("conference-added", "What each further participant takes", heads, tuple(rows), notes)


def _carried(findings: Findings) -> Table | None:
    """How many each arm carried, as far as the ramp went."""
    most = max(findings.matrix.levels(LEVEL))
    told = [(arm, carried(findings.matrix, arm)) for arm in findings.arms]
    if not any(found for _, found in told):
        return None
    rows = []
    for arm, found in told:
        deployed, why = deployments(findings.matrix, arm)
        number = f"{len(found)}" + (f" of {deployed}" if len(found) < deployed else "")
        rows.append((Cell(arm.label), *_carried_cells(found), Cell(number, detail=why)))
    heads = ("Arm", "Carried", "Missed at the next level", "Deployments")
    notes = (
        f"The largest level at which the objective was met, at all lower ones too: lowest to highest over deployments. "
        f"Or more: the ramp ended there (at {most:,}), or its next level is void. What a deployment carries lies "
        "between two of its levels; a search ([knee]) finds it closer. Deployments that are not valid, such as those "
        "whose server did not live to the end, are not among these, and may have carried less.",
    )
    return Table("conference-carried", "How many participants are carried", heads, tuple(rows), notes)


def _carried_cells(told: list[Carried]) -> tuple[Cell, ...]:
    if not told:
        return Cell(MISSING, "missing"), Cell(MISSING, "missing")
    ordered = sorted(told, key=lambda each: (each.level, not each.missed))
    words = [f"{each.level:,}{'' if each.missed else ' or more'}" for each in (ordered[0], ordered[-1])]
    missed = list(dict.fromkeys(text for each in told for text in each.missed))
    return Cell(" to ".join(dict.fromkeys(words))), Cell(", ".join(missed) or MISSING)
