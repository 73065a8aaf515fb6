"""What the user asks `virtoll run` for, and the study and the plan that come of it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.instruments.base import instruments
from virtoll.platforms.base import expected_overheads_s
from virtoll.record.model import Arm, Plan
from virtoll.run.explaining import explained
from virtoll.run.named import text_of
from virtoll.run.rule import Asked, with_room, with_rule
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.model import Case, Study
from virtoll.study.plan import make_plan, with_only
from virtoll.trial.treatment import make_probe
from virtoll.units import exact_bytes, exact_percent


@dataclass(frozen=True)
class Request:
    """What the user asked `virtoll run` for."""

    study: str
    quick: bool = False
    platforms: Sequence[str] | None = None
    memory_bytes: int | None = None  # the limit of each instance, in place of the study's
    blocks: int | None = None
    budget_s: float | None = None
    seed: int | None = None
    dry_run: bool = False
    out: Path | None = None
    as_json: bool = False
    cross_check: bool = False
    explain: bool = False
    decide: float | None = None  # relative: a run ends when every arm is different, or within so much
    precision: float | None = None  # relative: the half-width that decides how many blocks there are
    cluster: str | None = None  # the address of a scheduler, where other hosts measure
    tls: Path | None = None  # the directory of its certificates
    host: str | None = None  # ssh://..., where that machine measures
    generator: str | None = None  # ssh://..., where the load generator stands on that machine
    nic: tuple[str, str] | None = None  # the network devices of this machine and of that one, on one link

    @property
    def far(self) -> str:
        """The option by which others measure; "" where this machine does."""
        return "--host" if self.host is not None else "--cluster" if self.cluster is not None else ""

    @property
    def going_on(self) -> str:
        """What is to be told, besides the run directory, when it goes on: with the same generator."""
        if self.generator is None or self.nic is None:
            return ""
        return f" --generator {shlex.quote(self.generator)} --nic {','.join(self.nic)}"

    @property
    def asked(self) -> Asked:
        """What makes the rule that may end it."""
        return Asked(self.decide, self.precision, self.blocks, self.budget_s)

    @property
    def command(self) -> str:
        """What `virtoll run` was told that shapes the study; blocks and seed are in the plan."""
        words = [self.study, *["--quick"] * self.quick, *["--cross-check"] * self.cross_check]
        words += ["--explain"] * self.explain
        words += [] if self.memory_bytes is None else ["--memory", exact_bytes(self.memory_bytes)]
        for option, share in (("--decide", self.decide), ("--precision", self.precision)):
            words += [] if share is None else [option, f"{exact_percent(share)}%"]
        return shlex.join(words if self.platforms is None else [*words, "--platforms", ",".join(self.platforms)])


def read(request: Request) -> tuple[Study, str]:
    """The study that is asked for, with the command line's changes, and the name of its file."""
    text, name = text_of(request.study)
    known = catalogue().platforms
    is_all = request.platforms == ["all"]
    platforms = [*known] if is_all else request.platforms
    further = [platform for platform in platforms or () if platform in known]
    study = read_study(
        text,
        name,
        catalogue(),
        quick=request.quick,
        platforms=further,
        all_that_can=is_all,
        memory_bytes=request.memory_bytes,
    )
    if request.cross_check:
        study = dataclasses.replace(study, programme=_crossed(study))
    if request.explain:
        study = explained(study)
    if platforms is not None:
        study = with_only(study, platforms)
    study = with_room(asked_for(request, study), request.asked)
    return dataclasses.replace(study, command=request.command), name


def asked_for(request: Request, study: Study) -> Study:
    """The study with the blocks and the seed that the command line names, where it does."""
    if request.blocks is not None:
        if request.blocks < 2:
            raise StudyError([Problem("one block gives no interval", "--blocks", "ask for at least 2")])
        study = dataclasses.replace(study, blocks=request.blocks)
    return study if request.seed is None else dataclasses.replace(study, seed=request.seed)


def _crossed(study: Study) -> tuple[Case, ...]:
    """The programme, and behind each case the outside instruments that can do the same; StudyError if there is none."""
    tools = [cls() for cls in instruments().values()]
    crossed: list[Case] = []
    for case in study.programme:
        crossed.append(case)
        settings = make_probe(case).settings
        for tool in tools:
            if tool.stands_for(case.probe, settings):
                told = {**case.condition, "instrument": tool.name}
                crossed.append(dataclasses.replace(case, condition=told, instrument=tool.name))
    if len(crossed) == len(study.programme):
        remedy = "leave --cross-check out; `virtoll list instruments` shows what there is"
        raise StudyError([Problem(f"no outside instrument can do what {study.name} measures", "--cross-check", remedy)])
    return tuple(crossed)


def plan_of(stage: Stage, arms: Sequence[Arm], request: Request) -> Plan:
    """What would be measured of a study, in its order, with the rule that may end it."""
    overhead_s = expected_overheads_s()
    plan = make_plan(stage.study, arms, overhead_s, budget_s=request.budget_s, groups=stage.groups(arms))
    return with_rule(plan, request.asked)
