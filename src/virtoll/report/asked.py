"""What a run asked for: whether two of them asked for the same, so that their ratios to native can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from virtoll.analysis.calibration import is_calibration
from virtoll.analysis.conditions import Condition
from virtoll.analysis.load import Run
from virtoll.errors import IncomparableError
from virtoll.plain import typed
from virtoll.record.model import SERVER
from virtoll.record.rules import Decide
from virtoll.report.findings import Findings

# Settings by which two runs may differ and still be compared: what is under test, and how much of it was recorded.
_MAY_DIFFER = ("service.", "limits.", "monitor.", "rotation.rounds", "load.log_requests", "load.seed")
_ASKED = ("service", "origin", "load", "design", "servers")  # keys of study.json


@dataclass(frozen=True)
class Asked:
    """What one run asked for, as plain values."""

    title: str  # of its study
    what: Mapping[str, Any]  # of _ASKED, what is known
    base: Mapping[str, Any]  # fixed values by dotted path
    of_servers: Mapping[str, Mapping[str, Any]]  # the same of each of several servers
    of_configurations: Mapping[str, Mapping[str, Any]]  # the same of each of two configurations, where they differ
    cases: Mapping[str, Mapping[str, Any]]  # of a programme, by their conditions as JSON: settings of their probes
    native: str  # label of the arm that all others are compared with
    settings: Mapping[str, Mapping[str, Any]]  # by an arm's label
    conditions: tuple[Condition, ...]

    @classmethod
    def of(cls, findings: Findings) -> Asked:
        """Of a run that has a native arm."""
        matrix, study = findings.matrix, findings.run.study
        servers = study.get("servers") or {}
        return cls(
            title=str(study.get("command") or study.get("name") or "STUDY"),
            what={key: _asked_for(study[key]) for key in _ASKED if study.get(key) is not None},
            base=dict(findings.run.base),
            of_servers={name: dict(server["base"]) for name, server in servers.items()},
            of_configurations={name: dict(each["values"]) for name, each in findings.run.configurations.items()},
            cases={
                json.dumps(case["condition"], sort_keys=True): dict(case["settings"])
                for case in findings.run.programme
                if not case["instrument"]
            },
            native="" if matrix.baseline is None else matrix.baseline.label,
            settings={arm.label: arm.settings for arm in matrix.arms},
            conditions=matrix.conditions,
        )

    @property
    def varied(self) -> set[str]:
        """What its conditions say, by dotted path."""
        return {path for condition in self.conditions for path, _ in condition.levels}

    def keys(self, paths: set[str]) -> dict[Condition, Condition]:
        """Its conditions by their levels of all these: what one run varies may be fixed in another."""
        held = ({**self._fixed(each, paths), **dict(each.levels)} for each in self.conditions)
        return {Condition.of_levels(levels): each for levels, each in zip(held, self.conditions, strict=True)}

    def _fixed(self, condition: Condition, paths: set[str]) -> dict[str, Any]:
        """What holds under a condition of these paths, where it does not say: a server's own before the study's."""
        held = {**self.base, **self.of_servers.get(str(condition.get(SERVER)), {})}
        return {path: value for path, value in held.items() if path in paths}


def command(run: Run) -> str:
    """What `virtoll` was told that began a run, less its blocks and seed: ``run proxy --quick``."""
    if is_calibration(run):
        return str(run.study.get("command") or "calibrate")
    words = str(run.study.get("command") or run.study.get("name") or "STUDY.toml")
    return words if run.configurations else f"run {words}"


def anew(findings: Findings) -> str:
    """What begins the same run anew: as many blocks on each host; with a rule as many as there may be, for by them it
    looks.
    """
    run, hosts = findings.run, set(findings.run.plan.hosts.values())
    blocks = len(findings.matrix.blocks) // max(1, len(hosts))
    if isinstance(run.plan.rule, Decide):
        blocks = run.plan.rule.looks[-1]
    elif run.plan.rule is not None:
        blocks = run.plan.rule.most
    return f"{command(run)} --blocks {blocks} --seed {run.plan.seed}{run.far}"


def identity(findings: Findings) -> str:
    """What a run and its copies have alike, and no two runs: their environment and their seed (sha256)."""
    run = findings.run
    return hashlib.sha256(f"{run.plan.seed} {run.environment.model_dump_json()}".encode()).hexdigest()


def refuse(before: Findings, after: Findings) -> None:
    """IncomparableError where what two runs asked for is not the same."""
    where = f"{before.run.directory} and {after.run.directory}"
    if identity(before) == identity(after):
        raise IncomparableError("it is the same run twice", where=where, remedy="name two run directories")
    for each in (before, after):
        if why := unusable(each):
            raise IncomparableError(why[0], where=str(each.run.directory), remedy=why[1])
    one, other = Asked.of(before), Asked.of(after)
    found = list(asked_differently(one, other))
    if found:
        raise IncomparableError(
            "the two runs did not ask for the same:\n  " + "\n  ".join(found),
            where=where,
            remedy="measure one of them again as the other was: "
            f"A by `virtoll {command(after.run)}`, or B by `virtoll {command(before.run)}`",
        )


def unusable(findings: Findings) -> tuple[str, str] | None:
    """Why nothing of a run can be compared, and what to do."""
    run = findings.run
    go_on = f"`virtoll run {typed(run.directory)}{run.far}` goes on with it"
    if findings.is_isolation:
        what = "it was studied what neighbours do, and there each arm is compared with itself, not with native"
        return what, "compare the tables of losses in the reports"
    if findings.matrix.baseline is None:
        what = "it has no native arm, and ratios to native are what is compared"
        return what, "measure it with native among the arms"
    if not any(arm.role == "treatment" for arm in findings.matrix.arms):
        return "it has no arm but native, and ratios to native are what is compared", "measure it with another arm"
    if not run.records:
        return f"none of its {len(run.plan.trials)} trials is there yet", go_on
    if not findings.matrix.cells:
        return f"none of its {len(run.records)} trials is valid: {run.records[0].reason}", "mend that, and measure anew"
    return None


def asked_differently(one: Asked, other: Asked) -> Iterator[str]:
    """What must be the same and is not, a line each. What only one of them knows of (an older virtoll's record) is left
    out.
    """
    for key in _ASKED:
        if key in one.what and key in other.what and one.what[key] != other.what[key]:
            yield f"{key}: {_short(one.what[key])} in A, {_short(other.what[key])} in B"
    for case in sorted(one.cases.keys() & other.cases.keys()):
        if one.cases[case] != other.cases[case]:
            yield f"{case}: {_short(one.cases[case])} in A, {_short(other.cases[case])} in B"
    if one.native != other.native:
        yield f"native: {one.native} in A, {other.native} in B"
    yield from _settings_that_differ(one, other, may=False)


def _asked_for(value: Any) -> Any:
    """What of a study's key says what is measured: of its servers, which there are and who drives them."""
    if isinstance(value, Mapping):
        return {name: [each.get("service"), each.get("load"), *_searched(each)] for name, each in value.items()}
    return value


def _searched(server: Mapping[str, Any]) -> list[str]:
    """The objective of a server that alone is searched for its knee."""
    return list(server.get("base", {}).get("knee.objective") or ())


def configured(one: Asked, other: Asked, names: tuple[str, str] = ("A", "B")) -> Iterator[str]:
    """What is under test, and differs, of two runs that are called so."""
    yield from _settings_that_differ(one, other, names, may=True)
    for label in sorted(one.settings.keys() & other.settings.keys()):
        mine, theirs = one.settings[label], other.settings[label]
        if mine != theirs:
            yield f"{label}: {_short(mine)} in {names[0]}, {_short(theirs)} in {names[1]}"


def _settings_that_differ(one: Asked, other: Asked, names: tuple[str, str] = ("A", "B"), *, may: bool) -> Iterator[str]:
    """Fixed values, by dotted path; what either varied is matched condition by condition."""
    varied = one.varied | other.varied
    for name, mine, theirs in _bases(one, other):
        for path in sorted((mine.keys() & theirs.keys()) - varied):
            if mine[path] != theirs[path] and path.startswith(_MAY_DIFFER) is may:
                yield f"{name}{path}: {_short(mine[path])} in {names[0]}, {_short(theirs[path])} in {names[1]}"


def _bases(one: Asked, other: Asked) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    yield "", one.base, other.base
    for name in sorted(one.of_servers.keys() & other.of_servers.keys()):
        yield f"{name}: ", one.of_servers[name], other.of_servers[name]
    for name in sorted(one.of_configurations.keys() & other.of_configurations.keys()):
        paths = one.of_configurations[name].keys() | other.of_configurations[name].keys()
        yield f"configuration {name}: ", _held(one, name, paths), _held(other, name, paths)


def _held(run: Asked, configuration: str, paths: Collection[str]) -> dict[str, Any]:
    """What holds under a configuration: what is one run's own may hold for all of another."""
    every = {**run.base, **run.of_configurations[configuration]}
    return {path: value for path, value in every.items() if path in paths}


def _short(value: Any) -> str:
    text = "nothing" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
