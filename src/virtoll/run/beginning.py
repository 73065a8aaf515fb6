"""Before a first run: a study file to begin from, and what is wrong with one, or what it would run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from virtoll.catalogue import catalogue
from virtoll.errors import HostError, Problem, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.platforms.base import expected_overheads_s
from virtoll.record.model import Plan, SkippedArm
from virtoll.record.told import in_groups
from virtoll.run.named import available_studies, is_ready_made, text_of
from virtoll.run.stage import Stage, untried
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.study.values import is_name, nearest
from virtoll.trial.treatment import slower
from virtoll.units import format_duration

_TEMPLATE = "new-study.toml"


def begin(name: str, directory: Path = Path(), like: str = "") -> Path:
    """Write a commented study ``name`` into ``directory``, as the ready-made one ``like`` or small and general; its
    path. StudyError where that cannot be: nothing is ever overwritten.
    """
    if not is_name(name):
        what = f"{name!r} is no name of a study: it has lower-case letters, digits and hyphens"
        raise StudyError([Problem(what, remedy="virtoll new my-study")])
    if is_ready_made(name):
        raise StudyError([Problem(f"a ready-made study is called {name!r}", remedy=f"virtoll new my-{name}")])
    path = directory / f"{name}.toml"
    text = _text_like(like, name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        remedy = "take another name, or move it away: nothing is overwritten"
        raise StudyError([Problem("already exists", str(path), remedy)]) from None
    except OSError as error:
        remedy = "make room, or start virtoll in a directory that you may write to"
        raise StudyError([Problem(f"cannot be written: {error.strerror}", str(path), remedy)]) from error
    return path


def _text_like(ready_made: str, name: str) -> str:
    if not ready_made:
        return (files("virtoll.run") / _TEMPLATE).read_text(encoding="utf-8").replace("@NAME@", name)
    known = available_studies()
    if ready_made not in known:
        what = f"no ready-made study is called {ready_made!r}{nearest(ready_made, known)}"
        raise StudyError([Problem(what, "--like", "`virtoll list studies` shows them")])
    text = (files("virtoll.studies") / f"{ready_made}.toml").read_text(encoding="utf-8")
    return re.sub("^name = .*$", f'name = "{name}"', text, count=1, flags=re.MULTILINE)


@dataclass(frozen=True)
class Variant:
    """What a study, or its quick variant, would run here."""

    study: Study
    plan: Plan
    skipped: list[SkippedArm]
    untried: list[str]  # what only a run can tell

    @property
    def arms(self) -> list[str]:
        """The labels of the arms that would be measured, in the study's order."""
        planned = {trial.arm.label for trial in self.plan.trials}
        return [entry.arm.label for entry in self.study.arms if entry.arm.label in planned]

    @property
    def treatments(self) -> int:
        """How many different things are measured in a block."""
        return len(self.plan.trials) // self.plan.blocks


@dataclass(frozen=True)
class Checked:
    """A study after `check`: every problem of it and of this machine, or what it would run."""

    file: str
    problems: tuple[Problem, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)  # "full", and "quick" where the file has one
    code: int = 0  # what `virtoll run` would end with before it begins; 0: it would take it

    @property
    def is_right(self) -> bool:
        """Whether `virtoll run` would take it."""
        return not self.problems


def check(word: str, host: LocalHost) -> Checked:
    """Read a study, ready-made or a file, and plan it, whole and quick. Nothing is changed, fetched or booted.

    StudyError where it cannot be read at all. That no lab fits on this machine is a problem like others.
    """
    text, file = text_of(word)
    variants: dict[str, Variant] = {}
    problems: dict[Problem, None] = {}
    codes: list[int] = []
    for variant in ("full", "quick") if _has_quick(text) else ("full",):
        try:
            variants[variant] = _variant(read_study(text, file, catalogue(), quick=variant == "quick"), file, host)
        except StudyError as error:
            problems |= dict.fromkeys(error.problems)
            codes.append(error.exit_code)
        except HostError as error:
            problems[error.problem] = None
            codes.append(error.exit_code)
    return Checked(file, tuple(problems), variants, min(codes, default=0))


def _has_quick(text: str) -> bool:
    try:
        return "quick" in tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _variant(study: Study, file: str, host: LocalHost) -> Variant:
    stage = Stage(study, host)
    arms, skipped = stage.offered(file, tries=False)
    overhead_s = expected_overheads_s()
    plan = make_plan(study, arms, overhead_s, groups=stage.groups(arms))
    return Variant(study, plan, skipped, untried(arms, host))


def as_text(checked: Checked) -> str:
    """What a study that is right would run, for a person."""
    full = checked.variants["full"]
    lines = [f"{checked.file} is right. {full.study.question}".rstrip(), f"arms: {', '.join(full.arms)}"]
    lines += [f"not measured here: {entry.arm.label}: {entry.reason.splitlines()[0]}" for entry in full.skipped]
    lines += [f"not known before a run: {what}" for what in full.untried]
    for word, variant in checked.variants.items():
        plan = variant.plan
        time = format_duration(plan.estimate_s * 1e9)
        what = "trials" if plan.groups else "treatments"  # native is measured once a group
        counts = f"{variant.treatments} {what} x {plan.blocks} blocks = {len(plan.trials)} trials, about {time}"
        counts += slower(variant.study)
        lines.append(f"{'with --quick' if word == 'quick' else 'run'}: {counts}")
        if told := in_groups(plan):
            lines.append(told)
    return "\n".join([*lines, "nothing was changed"])


def as_json(checked: Checked) -> dict[str, Any]:
    """The same, and all that is wrong, for programs; docs/JSON.md has the keys."""
    return {
        "file": checked.file,
        "right": checked.is_right,
        "problems": [asdict(problem) for problem in checked.problems],
        "variants": {word: _variant_as_json(variant) for word, variant in checked.variants.items()},
    }


def _variant_as_json(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.study.name,
        "question": variant.study.question,
        "arms": variant.arms,
        "not_measured_here": [{"arm": entry.arm.label, "reason": entry.reason} for entry in variant.skipped],
        "not_known_before_a_run": variant.untried,
        "treatments": variant.treatments,
        "blocks": variant.plan.blocks,
        "trials": len(variant.plan.trials),
        "estimate_s": variant.plan.estimate_s,
        "groups": variant.plan.groups,
    }
