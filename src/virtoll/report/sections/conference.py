"""What a conference costs its server as users join, what they feel, and how many are carried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from virtoll.analysis.carrying import levels_of, rests_of
from virtoll.analysis.server import (
    Browsers,
    Carried,
    browsers,
    carried,
    deployments,
    is_by_participants,
    met_under,
    missed_by_any,
    tells,
    void_levels,
)
from virtoll.record.model import LEVEL
from virtoll.report.by_level import (
    CPU,
    MEMORY,
    PACKETS,
    SWITCHES,
    TRAFFIC,
    Along,
    Asked,
    added,
    differences,
    others,
    views,
)
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING
from virtoll.report.probe_views import view_figures
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import join

_ALONG = Along(LEVEL, "conference", "participant", "participants", is_linear=True)
_ASKED = (
    CPU,
    MEMORY,
    TRAFFIC,
    PACKETS,
    SWITCHES,
    Asked("joins", "How long does a join take?", ("latency_p90_ms", "latency_p50_ms"), is_from_0=False),
    Asked(
        "frozen",
        "How much of the time do streams stand still?",
        ("participants.frozen_percent", "participants.waiting_percent"),
        remark="Frozen by webrtc-stats' rule, or without a first picture; below the latter alone.",
    ),
    Asked(
        "loss",
        "How many packets are lost?",
        ("participants.loss_percent", "participants.loss_before_percent"),
        remark="Above after repair by retransmission, below before.",
    ),
    Asked(
        "delay",
        "How long is the way, and how unsteady?",
        ("participants.round_trip_ms", "participants.rtcp_round_trip_ms", "participants.jitter_ms"),
        remark="Round trips of all by ICE's consent checks, and of those who send by RTCP; jitter as RFC 3550 has it.",
    ),
    Asked(
        "first",
        "How long until a stream that is subscribed to shows something?",
        ("participants.first_packet_ms", "participants.first_key_frame_ms"),
        remark="Its first packet, and its first key frame; one that never came took longer than any.",
    ),
    Asked(
        "audio-silent",
        "How much of the time do participants hear nothing?",
        ("participants.audio_silent_percent", "participants.audio_waiting_percent"),
        remark="150 ms and more without audio, or before its first packet; below the latter alone.",
    ),
    Asked(
        "audio-loss",
        "How many packets of audio are lost?",
        ("participants.audio_loss_percent",),
        remark="Nobody asks for them again.",
    ),
    Asked(
        "audio-delay",
        "How unsteadily does audio come, and how long until one who comes in hears it?",
        ("participants.audio_jitter_ms", "participants.audio_first_packet_ms"),
        remark="Jitter as RFC 3550 has it; the first packet counts from when one comes in.",
    ),
    Asked(
        "browser-frozen",
        "How much of the time do streams stand still in a browser?",
        ("participants.browser_frozen_percent",),
        remark="As a Chromium among the participants counts it; a stream that shows nothing in a window stands still "
        "in it.",
    ),
    Asked(
        "browser-frames",
        "How many frames a second does a browser show?",
        ("participants.browser_webcam_frames_per_s", "participants.browser_desktop_frames_per_s"),
        remark="Decoded by a Chromium among the participants, mean of streams.",
    ),
    Asked(
        "browser-decode",
        "How long does a browser take to decode a frame?",
        ("participants.browser_decode_ms",),
        remark="It tells of the generator's CPUs, not of the server.",
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

    def answer(self, findings: Findings) -> list[str]:
        """Where the answer is of servers at their limit, too, what it is of the others."""
        return _below_the_limit(findings)

    def text(self, findings: Findings) -> list[str]:
        """Which levels tell nothing, and why; which browsers watched, what they took, and who of them did not."""
        return [*_void_words(findings), *_browser_words(findings)]

    def figures(self, findings: Findings) -> list[Figure]:
        """A view each."""
        return view_figures(findings, views(findings, _ALONG, _ASKED))

    def tables(self, findings: Findings) -> list[Table]:
        """Differences to native as the papers state them, what a participant adds, and how many are carried."""
        of = {"": findings}
        made = [differences(of, _ALONG), added(of, _ALONG), _carried(findings)]
        return [table.placed(table.caption) for table in made if table is not None]

    def method(self, findings: Findings) -> list[str]:
        """What a level of a ramp is."""
        return [_LEVELS] if findings.run.parts else []


def _below_the_limit(findings: Findings) -> list[str]:
    """Which levels the answer is over, where some were missed."""
    matrix, last = findings.matrix, findings.fixed_by
    if matrix.baseline is None or not findings.compared or not missed_by_any(matrix):
        return []
    there = [arm for arm in matrix.arms if any(matrix.across(arm, c) for c in matrix.conditions)]
    silent = [arm.label for arm in there if not tells(matrix, arm, last)]
    none = [arm.label for arm in there if not met_under(matrix, arm, last) and arm.label not in silent]
    but = f", but for {join(none)}, which met it at none" if none else ""
    if silent:
        nothing = "nothing is known" if last is None else "those blocks tell nothing"
        but += f", {'and' if none else 'but'} for {join(silent)}, of which {nothing}"
    by = "" if last is None else f" in the first {last} blocks, by which that was fixed"
    of = f"the {len(findings.compared)} of {len(matrix.conditions)} levels"
    return [f"That is over {of} at which all arms met the objective{by}{but}. {_AT_ITS_LIMIT}"]


_AT_ITS_LIMIT = "A server at its limit takes no more, and delivers less."


def _void_words(findings: Findings) -> list[str]:
    told = [
        f"{arm.label}: {words}" for arm in findings.arms if (words := _by_reason(void_levels(findings.matrix, arm)))
    ]
    if not told:
        return []
    return [f"Some levels tell of our own side, and are left out of those deployments: {'; '.join(told)}."]


def _by_reason(void: Mapping[int, tuple[str, ...]]) -> str:
    """Levels with their reasons, those of one reason together; of several deployments' the first."""
    levels: dict[tuple[str, ...], list[int]] = {}
    for level, whys in void.items():
        levels.setdefault(whys, []).append(level)
    told = []
    for (why, *rest), at in levels.items():
        reasons = "reason" if len(rest) == 1 else "reasons"
        more = f" ({len(rest)} other {reasons} in other deployments)" if rest else ""
        told.append(f"at {', '.join(f'{level:,}' for level in at)} participants {why}{more}")
    return "; ".join(told)


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
    if any(void_levels(findings.matrix, arm) for arm, _ in found):
        words.append(
            "Participants have what browsers leave of the generator's CPUs: with `browsers = 0`, or with more CPUs, "
            "there may be fewer levels that tell of our own side."
        )
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


def _carried(findings: Findings) -> Table | None:
    """How many each arm carried, as far as the ramp went, under each condition besides."""
    matrix, rest_paths = findings.matrix, others(findings, _ALONG)
    rows, most = [], max(matrix.levels(LEVEL))
    for rest in rests_of(matrix, LEVEL):
        levels = levels_of(matrix, LEVEL, rest)
        condition = [Cell(rest.label(rest_paths))] if rest_paths else []
        for arm in findings.arms:
            found, (deployed, why) = carried(matrix, arm, levels), deployments(matrix, arm, levels)
            number = f"{len(found)}" + (f" of {deployed}" if len(found) < deployed else "")
            cells = (*_carried_cells(found), Cell(number, detail=why))
            rows.append((bool(found), (Cell(arm.label), *condition, *cells)))
    if not any(is_told for is_told, _ in rows):
        return None
    heads = ("Arm", *(["Condition"] if rest_paths else []), "Carried", "Missed at the next level", "Deployments")
    notes = (
        f"The largest level at which the objective was met, at all lower ones too: lowest to highest over deployments. "
        f"Or more: the ramp ended there (at {most:,}), or its next level is void. What a deployment carries lies "
        "between two of its levels; a search ([knee]) finds it closer. Deployments that are not valid, such as those "
        "whose server did not live to the end, are not among these, and may have carried less.",
    )
    named = tuple(cells for _, cells in rows)
    return Table("conference-carried", "How many participants are carried", heads, named, notes)


def _carried_cells(told: list[Carried]) -> tuple[Cell, ...]:
    if not told:
        return Cell(MISSING, "missing"), Cell(MISSING, "missing")
    ordered = sorted(told, key=lambda each: (each.level, not each.missed))
    words = [f"{each.level:,}{'' if each.missed else ' or more'}" for each in (ordered[0], ordered[-1])]
    missed = list(dict.fromkeys(text for each in told for text in each.missed))
    return Cell(" to ".join(dict.fromkeys(words))), Cell(", ".join(missed) or MISSING)
