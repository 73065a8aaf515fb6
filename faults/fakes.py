"""Faults of studies on fakes: what every one of them has in common. Milliseconds each."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from faults import laboratory, place
from faults.base import Place, Verdict
from faults.children import CRASHED, HANG_S, asked, await_end, forked
from faults.hooks import Lines, Operations
from faults.laboratory import Laboratory
from faults.sealed import Sealed, changes, outcome, sealed


@dataclass(frozen=True)
class Ends:
    """How a struck session may end, besides 0 and 1."""

    codes: tuple[int, ...] = ()
    excused: bool = False  # virtoll itself may fail for want of what was taken away


@dataclass
class Fault:
    """What is done to one session. All of it was drawn before the session begins."""

    when: str
    install: Callable[[Path], None] = lambda _top: None  # in the child, before the study
    change: Callable[[Laboratory], None] = lambda _laboratory: None
    ends: Ends = field(default_factory=Ends)
    around: Callable[[Path], AbstractContextManager[None]] = lambda _top: nullcontext()
    afterwards: Callable[[Path], str] = lambda _top: ""  # by the harness, when the session has ended; told
    judge: Callable[[Path], list[str]] = lambda _out: []  # promises of this kind alone, after the session
    happened: Callable[[Path, int | None], bool] = lambda top, _code: (top / "hit").exists()
    strikes_all: bool = False  # every trial of the session may have been struck
    certain: bool = False  # only what was told as sealed is held to be (the power was cut)


Draw = Callable[[random.Random, Place], Fault]


def injected(draw: Draw, random_: random.Random, where: Place) -> Verdict:
    """Run the study into the fault, go on with it, and look whether everything that was promised holds."""
    top = where.directory
    (top / "runs").mkdir(parents=True)
    fault = draw(random_, where)
    clean_first = random_.random() < 0.5
    verdict = Verdict(hit=False, when=fault.when)
    with fault.around(top / "runs"):
        before = _inventory(top)
        code = await_end(forked(lambda: _struck(top, fault), top / "struck.log"), HANG_S)
        verdict.hit = fault.happened(top, code)
    if not verdict.hit:
        return verdict
    _judge_end(code, fault, top, verdict)
    if (top / "where").exists():
        verdict.when += f" ({(top / 'where').read_text()})"
    verdict.when += fault.afterwards(top)
    kept, struck = _kept(top, certain=fault.certain), _under_way(top, all_=fault.strikes_all)
    verdict.problems += fault.judge(top / "runs/out")
    if clean_first:
        _clean(top, verdict)
    code = await_end(forked(lambda: laboratory.session(top), top / "resumed.log"), HANG_S)
    if code not in (0, 1):
        verdict.problems.append(f"resuming ended with {code}: {_said(top / 'resumed.err')}")
    told = asked(lambda: _told(top, kept, struck, excused=fault.ends.excused))
    verdict.problems += told["problems"]
    verdict.trials, verdict.resumed = told["trials"], not verdict.problems
    broken = len(verdict.problems)
    _clean(top, verdict)
    verdict.problems += place.differences(before, _inventory(top))
    verdict.tidy = broken == len(verdict.problems)
    if not verdict.tidy:
        place.sweep(where.work, ())
    return verdict


def hit(top: Path, where: str = "") -> None:
    """Note, in the child, that the fault has struck, and the trials under way."""
    (top / "hit").write_text(" ".join([*_told_as(top, "started") - _told_as(top, "sealed")]))
    if where:
        (top / "where").write_text(where)


@cache
def lengths() -> tuple[int, int]:
    """How many lines of virtoll's an undisturbed study executes, and how many operations on files."""
    lines, operations = asked(_counted)
    return lines, operations


def _counted() -> tuple[int, int]:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        top = Path(directory)
        (top / "runs").mkdir()
        lines, operations = Lines(), Operations(top)
        operations.install()
        lines.install()
        if laboratory.session(top) != 0:
            raise RuntimeError("the undisturbed study on fakes is no good")
        return lines.count, operations.count


def _struck(top: Path, fault: Fault) -> int:
    fault.install(top)
    return laboratory.session(top, fault.change)


def _judge_end(code: int | None, fault: Fault, top: Path, verdict: Verdict) -> None:
    said = _said(top / "struck.err")
    if code is None:
        verdict.problems.append(f"it hung:\n{said}")
    elif code not in (0, 1, *fault.ends.codes) and not (code == CRASHED and fault.ends.excused):
        verdict.problems.append(f"exit {code} after the fault: {said}")


def _kept(top: Path, *, certain: bool) -> Sealed:
    """What must stay: all that is sealed, or after a power cut what virtoll had said to be."""
    if not certain:
        return sealed(top / "runs/out")
    return sealed(top / "before-the-cut") if (top / "before-the-cut").exists() else Sealed()


def _under_way(top: Path, *, all_: bool) -> set[str]:
    begun = _told_as(top, "started")
    return begun if all_ else set((top / "hit").read_text().split())


def _told_as(top: Path, word: str) -> set[str]:
    """The trials that the session told as started, or as sealed."""
    lines = (top / "told").read_text().splitlines() if (top / "told").exists() else []
    return {line.partition(" ")[2] for line in lines if line.startswith(f"{word} ")}


def _told(top: Path, kept: Sealed, struck: set[str], *, excused: bool) -> dict[str, object]:
    out = top / "runs/out"
    told = outcome(out, struck, excused=excused)
    return {"problems": [*changes(kept, out), *told.problems], "trials": told.trials}


def _clean(top: Path, verdict: Verdict) -> None:
    code = await_end(forked(lambda: laboratory.clean(top), top / "clean.log"), HANG_S)
    if code != 0:
        verdict.problems.append(f"clean ended with {code}: {_said(top / 'clean.err')}")


def _inventory(top: Path) -> place.Inventory:
    """What a study on fakes could leave: processes, mounts, and files of its state."""
    place.reap()
    state = top / "state"
    files = [path for path in state.rglob("*") if path.name not in ("ledger", "lab", "lock")] if state.exists() else []
    return {
        "processes": frozenset(f"{pid} {words}" for pid, words in place.processes()),
        "mounts": frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": frozenset(str(path) for path in files),
    }


def _said(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-3000:] if path.exists() else ""
