"""`virtoll calibrate`: a study of equal arms, and of arms whose cost is known, on this machine."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from virtoll.catalogue import catalogue
from virtoll.hosts.local import LocalHost
from virtoll.lab import shaping
from virtoll.record.calibration import EXTRA, LINK, QUOTA
from virtoll.record.model import Arm
from virtoll.run.conduct import run_made
from virtoll.run.request import Request, asked_for
from virtoll.study.file import read_study
from virtoll.study.model import Study, StudyArm
from virtoll.study.plan import conditions
from virtoll.units import format_bit_rate, format_duration

CALIBRATION = "calibration"
_FILE = "calibration.toml"
_COSTS = (0.01, 0.02, 0.05, 0.1)  # of throughput
_QUICK_COSTS = (0.05,)
_COPIES, _QUICK_COPIES = 4, 2
_REQUEST_NS = 7_300_000  # about what a request takes; what an arm burns more is known, what it comes to is measured


def calibrate(request: Request) -> int:
    """Run the calibration, build its report, keep what was found, and return the exit code."""
    study = calibration_study(quick=request.quick)
    if missing := shaping.check(LocalHost(), shaping.LinkShape(rate_bit_per_s=10**8)) if not request.dry_run else []:
        study = _without_link(study)
        print(f"no known cost by a link's rate: {missing[0].what}", file=sys.stderr)
    study = asked_for(request, study)
    return run_made(request, dataclasses.replace(study, command=f"calibrate{' --quick' * request.quick}"), _FILE)


def calibration_study(*, quick: bool) -> Study:
    """Native, native again and copies of it; and native with a quota, with more to do, and on a slower link."""
    text = (files("virtoll.run") / _FILE).read_text(encoding="utf-8")
    study = read_study(text, _FILE, catalogue(), quick=quick)
    computing, linked = conditions(study)
    costs, copies = (_QUICK_COSTS, _QUICK_COPIES) if quick else (_COSTS, _COPIES)
    native = study.arms[0]
    arms = list(study.arms)
    for number in range(1, copies + 1):
        arms.append(_native(native, f"copy {number}", {}, computing))
    for cost in costs:
        arms += _known(study, cost, computing, linked)
    return dataclasses.replace(study, arms=tuple(arms))


def _known(study: Study, cost: float, computing: Mapping[str, Any], linked: Mapping[str, Any]) -> Iterator[StudyArm]:
    """Arms that do ``cost`` less than native, each made so in another way."""
    native = study.arms[0]
    quota = 100 * (1 - cost)
    yield _native(native, f"quota {quota:g} %", {QUOTA: quota}, computing, 1 - cost)
    extra_ns = round(_REQUEST_NS * cost / (1 - cost))
    yield _native(native, f"{format_duration(extra_ns)} more", {EXTRA: extra_ns}, computing)
    rate = round((1 - cost) * linked[LINK])  # a window's lead-in has emptied the link's bucket
    yield _native(native, f"link {format_bit_rate(rate)}", {LINK: rate}, linked, 1 - cost)


def _native(
    native: StudyArm, what: str, values: Mapping[str, Any], only: Mapping[str, Any], share: float | None = None
) -> StudyArm:
    arm = Arm(label=f"{native.arm.label} ({what})", platform=native.arm.platform, network=native.arm.network)
    return StudyArm(arm, optional=False, line=native.line, values=values, only=only, share=share)


def _without_link(study: Study) -> Study:
    """The computing condition alone, where the kernel has no token bucket."""
    computing, linked = conditions(study)
    arms = tuple(entry for entry in study.arms if entry.only != linked)
    base = {**study.base, **computing}
    arms = tuple(dataclasses.replace(entry, only={}) for entry in arms)
    return dataclasses.replace(study, arms=arms, base=base, factors={}, exclude=())
