"""How many idle instances of an arm a host held at once, by a run of the probe `density`: a bound for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtoll.analysis.conditions import Condition
from virtoll.analysis.load import Run
from virtoll.analysis.server import deployments
from virtoll.analysis.sizing import Asked
from virtoll.errors import Problem, StudyError
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import size
from virtoll.units import exact_bytes, format_bytes

_PROBE = "density"
_LIVED, _FIT = f"{_PROBE}.instances", f"{_PROBE}.instances_that_fit"
_ALIKE = 0.01  # of a memory: by so much kernels differ in what they keep for themselves


@dataclass(frozen=True)
class Packed:
    """Of one arm: ``held``, in each block, where the host was full in all of them; else ``at_least``, the fewest that
    lived at once. ``of``: the arm that was measured, in whichever network mode; ``tried``: in how many blocks.
    """

    of: Arm
    held: tuple[float, ...] = ()
    at_least: float = 0.0
    tried: int = 0


@dataclass(frozen=True)
class Density:
    """What such a run says for a plan."""

    run: Path
    arms: tuple[Packed, ...]
    memory_limit_bytes: int | None  # of each idle instance
    why_not: str = ""  # it bounds nothing here

    def of(self, arm: Arm) -> Packed | None:
        """Of the same arm; else of its platform with the same settings: idle instances hardly use their network."""
        alike = [p for p in self.arms if (p.of.platform, p.of.settings) == (arm.platform, arm.settings)]
        return next((each for each in alike if each.of.label == arm.label), next(iter(alike), None))

    def held(self, arm: Arm, planned: int | None) -> tuple[float, ...]:
        """How many of an arm it bounds a plan by, in each block; () where it bounds none. ``planned``: the memory limit
        of an instance that was loaded.
        """
        each = self.of(arm)
        return () if each is None or self.why_not or self.is_otherwise_limited(planned) else each.held

    def is_otherwise_limited(self, planned: int | None) -> bool:
        """Whether its instances might take another amount of memory than those that were loaded, or nobody knows."""
        return planned is None or planned != self.memory_limit_bytes


def memory_limit(run: Run, condition: Condition) -> int | None:
    """In bytes, of an instance under a condition; None where the run does not tell it."""
    limit = run.given(dict(condition.levels)).get("limits.memory_bytes")
    return limit if isinstance(limit, int) else None


def density(found: Findings, asked: Asked) -> Density:
    """StudyError for a run that measured no density, several conditions of it, or several hosts."""
    matrix, run = found.matrix, found.run
    conditions = [each for each in matrix.conditions if each.probe == _PROBE]
    problem = ""
    if not conditions:
        problem = "it did not measure how many instances a host holds"
    elif len(conditions) > 1:
        problem = "it measured how many instances a host holds under several conditions, and a plan is for one"
    elif len(set(matrix.hosts)) > 1:
        problem = "several hosts measured it, and a plan is for one kind of host"
    if problem:
        raise StudyError(
            [Problem(problem, f"--density {run.directory}", "`virtoll run density` measures it on a host")]
        )
    packed = []
    for arm in matrix.arms:
        cells = list(matrix.across(arm, conditions[0]).values()) if arm.role != "floor" else []
        lived = [cell.values[_LIVED] for cell in cells if _LIVED in cell.values]
        fit = [cell.values[_FIT] for cell in cells if _FIT in cell.values]
        if lived:
            tried, _ = deployments(matrix, arm, [(0, conditions[0])])
            is_full = len(fit) == len(lived)
            packed.append(Packed(arm, tuple(fit), 0.0, tried) if is_full else Packed(arm, (), min(lived), tried))
    machine = run.environment.comparable.get("machine", {})
    return Density(run.directory, tuple(packed), memory_limit(run, conditions[0]), _other_host(machine, asked))


def _other_host(machine: Mapping[str, Any], asked: Asked) -> str:
    """Why what one host held says nothing of those that are planned; "" where they are alike."""
    cpus, memory = machine.get("cpus"), machine.get("memory_bytes")
    if not isinstance(cpus, int | float) or not isinstance(memory, int | float):
        return "its run does not tell its machine"
    if cpus == asked.host_cpus and abs(memory - asked.host_memory_bytes) <= _ALIKE * memory:
        return ""
    return f"it was measured on a host of {cpus:g} CPUs and {size(memory)}, and others are planned"


def measured_by(arm: Arm, planned: int | None, far: str) -> str:
    """What measures how many idle instances of an arm a host holds, where one that is loaded may have so many bytes of
    memory: a command, but of an arm that `--platforms` does not make, for it takes a platform without settings.
    ``far``: the options by which it is measured where those were that were loaded (`Run.far`).
    """
    if arm.settings:
        limit = "" if planned is None else f", of {exact_bytes(planned)},"
        return f"a study of the probe density with {arm.label} among its arms{limit}"
    limit = "" if planned is None else f" --memory {exact_bytes(planned)}"
    return f"`virtoll run density --platforms {arm.platform}{limit}{far}`"


def said(told: Density | None, arm: Arm, needed: float | None, planned: int | None, far: str) -> Iterator[str]:
    """What of it a reader of an arm's row must know. ``needed``: how many idle ones a host must hold for the plan, what
    is kept free of them included; ``planned``: the memory limit of an instance that was loaded; ``far``: as in
    `measured_by`.
    """
    if told is None:
        return
    again = measured_by(arm, planned, far)
    each = told.of(arm)
    if each is None:
        yield f"how many idle ones a host holds was not measured in {told.run}: {again} measures it"
        return
    if told.why_not:
        yield f"how many idle ones a host holds is not known: {told.why_not}; {again} on such a host measures it"
        return
    if told.is_otherwise_limited(planned):
        theirs, ours = (_limit(limit) for limit in (told.memory_limit_bytes, planned))
        yield (
            f"how many idle ones a host holds is not known: they may have {theirs}, and those that were loaded {ours}"
            + (f"; {again} measures it" if planned is not None else "")
        )
        return
    if each.of.label != arm.label:
        yield f"how many idle ones a host holds is that of {each.of.label}: another network mode of the same platform"
    if not each.held:
        yield from _not_full(each, told.run, needed, again)
    elif len(each.held) < each.tried:
        yield (
            f"how many idle ones a host holds is known by {len(each.held)} of {each.tried} blocks: of the others "
            "nothing valid is known, which may be the worse ones"
        )
    if len(each.held) == 1:
        yield "how many idle ones a host holds is of one block, and so in no interval"


def _limit(memory_bytes: int | None) -> str:
    return "nobody knows what" if memory_bytes is None else format_bytes(memory_bytes)


def _not_full(each: Packed, run: Path, needed: float | None, again: str) -> Iterator[str]:
    if needed is not None and each.at_least >= needed:
        yield f"a host holds at least {each.at_least:,.0f} idle ones: how many it holds binds no plan of fewer"
    else:
        yield (
            f"a host holds at least {each.at_least:,.0f} idle ones, and whether more is not known: not all blocks of "
            f"{run} filled it; {again} with a larger `most` may tell"
        )
