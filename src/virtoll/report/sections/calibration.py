"""How far virtoll can be trusted on the machine: equal arms, known costs, and what a run of some minutes can find."""

from __future__ import annotations

from typing import ClassVar

from virtoll.record.calibration import ALARMS, Calibration, Known, Noise
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING
from virtoll.report.promises import headline_noise, of_alarms, of_known, share
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import join


class Trust(Section):
    """What `virtoll calibrate` found."""

    name: ClassVar[str] = "calibration"
    summary: ClassVar[str] = "How far can virtoll be trusted on this machine?"
    rank: ClassVar[int] = 50

    def applies(self, findings: Findings) -> bool:
        """To a calibration alone, once two blocks of it are there."""
        return findings.calibration is not None

    def answer(self, findings: Findings) -> list[str]:
        """Alarms, known costs, and what is found in ten minutes; what is wrong comes first."""
        found = findings.calibration
        assert found is not None
        return [
            *_wrong(found),
            f"{_first_upper(of_alarms(found.alarms))}.",
            *_of_costs(found),
            *found.not_judged,
            *_of_smallest(found),
        ]

    def text(self, findings: Findings) -> list[str]:
        """What is wrong, and what the tables hold."""
        found = findings.calibration
        assert found is not None
        return [
            *(f"**{line}**" for line in _wrong(found)),
            *found.not_judged,
            "Native stood here under several names, and under some at a cost that is known beforehand: a CPU quota, "
            "CPU time burnt in each request, a slower link. What virtoll says of them can be held against the truth.",
        ]

    def tables(self, findings: Findings) -> list[Table]:
        """Known costs, and noise."""
        found = findings.calibration
        assert found is not None
        tables = [_known(found), _noise(found)]
        return [table for table in tables if table.rows]

    def method(self, findings: Findings) -> list[str]:
        """How alarms are counted, and what is true of the known costs."""
        found = findings.calibration
        assert found is not None
        return [
            "**Alarms** are of pairs of equal arms that share none, in parts of the run that share no block (at least "
            f"{found.part_blocks} blocks each): independent comparisons, a t test at {share(ALARMS)} each; the rate's "
            "interval is exact (Clopper-Pearson). An arm is called odd where it differs from the mean of its equals "
            "over the whole run at 5 % over all arms, metrics and conditions.",
            "**What is true** of a quota and of a link's rate is their ratio to native's. CPU time that a request "
            "burns more is set beside what native takes of its CPU for one, in the same blocks. The kernel's own work "
            "for packets is outside of a quota: it costs a little less than it says.",
            "**The smallest cost** is that which a t test of as many blocks as fit into the time finds with 90 % "
            "(exact, noncentral t), with native, native again and one more arm under one condition, at the spread seen "
            "here.",
        ]


def _wrong(found: Calibration) -> list[str]:
    lines = []
    if found.alarms.low > ALARMS:
        lines.append("False alarms: equal arms are called different more often than chance explains.")
    for odd in found.odd:
        more = "more" if odd.by > 0 else "less"
        low, high = sorted((abs(odd.low), abs(odd.high)))
        told = f"{share(abs(odd.by))} [{share(low)[:-2]}, {share(high)[:-2]}] {more}"
        lines.append(f"{odd.arm} is odd: {odd.title.lower()} is {told} than that of its equals ({odd.condition}).")
    if lines:
        lines.append("Differences of that size are not to be believed here until the cause is found.")
    return lines


def _of_costs(found: Calibration) -> list[str]:
    missed = [f"{one.arm} ({one.title.lower()})" for one in found.known if not one.is_covered]
    told = f"{_first_upper(of_known(found.known))}."
    return [f"{told[:-1]}; not {join(missed)}." if missed else told]


def _of_smallest(found: Calibration) -> list[str]:
    noise = headline_noise(found)
    told = [(minutes, cost) for minutes, cost in noise.smallest.items() if cost is not None] if noise else []
    if not told:
        return []
    listed = join([f"{share(cost)} in {minutes}" for minutes, cost in told])
    return [f"Costs that a run of one platform finds nine times in ten: {listed} minutes (throughput)."]


def _known(found: Calibration) -> Table:
    heads = ("Arm", "Made by", "What", "True cost", "Found", "Truth in it?", "Seen", "In parts of the run")
    caption = "Costs that are known, and what was found"
    return Table("calibration-known", caption, heads, tuple(_known_row(one) for one in found.known)).placed()


def _known_row(one: Known) -> tuple[Cell, ...]:
    bounds = f"[{percent_of(one.low)}, {percent_of(one.high)}]"
    return (
        Cell(one.arm),
        Cell(one.way),
        Cell(one.title),
        Cell(f"{percent_of(one.true)} %"),
        Cell(f"{percent_of(one.found)} %", detail=bounds),
        Cell("yes", "same") if one.is_covered else Cell("no", "costs"),
        Cell("as a cost", "same") if one.is_found else Cell("cannot tell", "unsure"),
        Cell(f"found in {one.parts_found}, true in {one.parts_covered} of {one.parts}"),
    )


def percent_of(value: float) -> str:
    """Relative, in per cent, with one decimal and its sign."""
    return f"{100 * value:.1f}"


def _noise(found: Calibration) -> Table:
    minutes = list(found.noise[0].smallest)
    heads = (
        "What",
        "Under",
        "Spread of a block",
        "Noise floor",
        "Alarms",
        *(f"Found in {each} min" for each in minutes),
    )
    notes = (
        f"{found.blocks} blocks in {found.design}, {found.trial_s:.1f} s an arm, condition and block. Spread: standard "
        "deviation of the ratio of two equal arms. Noise floor: how far it may lie from 1 by chance in this run. "
        "Found: the smallest cost that a run of one platform finds nine times in ten in so many minutes.",
    )
    rows = tuple(_noise_row(each) for each in found.noise)
    return Table("calibration-noise", "Equal arms, and the smallest cost that is found", heads, rows, notes).placed()


def _noise_row(noise: Noise) -> tuple[Cell, ...]:
    smallest = (Cell(MISSING, "missing") if cost is None else Cell(share(cost)) for cost in noise.smallest.values())
    return (
        Cell(noise.title),
        Cell(noise.condition),
        Cell(share(noise.sd), detail=f"{noise.freedom} degrees of freedom"),
        Cell(share(noise.floor)),
        Cell(f"{noise.alarms.count} of {noise.alarms.of}"),
        *smallest,
    )


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
