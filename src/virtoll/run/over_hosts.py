"""One study over many hosts: each measures whole blocks, and the one writer here seals what they hand back.

A host is a blocking factor: native and all arms of a block are measured on one, so that ratios are of one machine. What
a host is asked for is written down before it is asked (the trial's directory), so that nothing can have been measured
that nobody knows of, whoever is lost in the middle.
"""

from __future__ import annotations

import dataclasses
import secrets
import shlex
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from virtoll.errors import StoreError, TrialError
from virtoll.hosts.interrupts import held_off
from virtoll.plain import listed, typed
from virtoll.platforms.base import expected_overheads_s
from virtoll.record.model import Arm, Environment, Plan, PlannedTrial, SkippedArm, TrialRecord
from virtoll.record.store import INTERRUPTED, RunDirectory
from virtoll.report.promises import NOTES
from virtoll.run.elsewhere import announced, without_shared
from virtoll.run.execute import Guarded, in_turn, seal_killed
from virtoll.run.fleet import Answer, Cluster, Fleet, heard, needs_dask
from virtoll.run.handed import unpacked
from virtoll.run.hosting import Order, Ready
from virtoll.run.measuring import finish
from virtoll.run.progress import Progress, progress
from virtoll.run.request import Request
from virtoll.study import document
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.units import plural

_MOST_LOST = 8  # hosts that are told of one by one where a run ends


def connected(request: Request, run: str, say: Callable[[str], None]) -> Cluster:
    """The hosts at the scheduler that a request names, or the one that it names itself, for the ``run`` of orders that
    bear this mark.
    """
    if request.host is not None:
        from virtoll.run.by_ssh import SshCluster, destination_of

        return SshCluster(destination_of(request.host), run, say)
    try:
        from virtoll.run.cluster import DaskCluster  # only whoever has several hosts needs Dask
    except ImportError as error:
        raise needs_dask(error) from None
    return DaskCluster(str(request.cluster), request.tls, run)


def begin(study: Study, request: Request, file: str, out: Path) -> int:
    """Make the run directory ``out``, have its blocks measured, build the report, and return the exit code."""
    run = secrets.token_hex(8)
    with progress(as_json=request.as_json) as told, closing(connected(request, run, told.say)) as cluster:
        fleet = Fleet(cluster, run, told.say, request.far)
        _announce((entry.arm for entry in study.arms), told)
        arms, skipped = fleet.look(study, file)
        arms, skipped = without_shared(study, file, arms, skipped, fleet.hosts)
        ready = fleet.agreed(fleet.divided(fleet.prepare(arms, skipped), arms, study.design))
        plan = planned(study, arms, ready)
        there = {host: each.environment for host, each in ready.items()}
        notes = {"refused hosts": fleet.refused, "time of day apart, s": fleet.apart_s}
        notes |= {**cluster.notes, **_calibrated(there)}
        directory = RunDirectory.create(out, document.as_json(study), plan, _shared(there, skipped, notes), there)
        hosts = f"{len(there)} hosts" if len(there) > 1 else "One host"
        told.say(f"{hosts}, {study.blocks} blocks each: {listed(list(there))}")
        why = measure(directory, fleet, told, _how(request))
    return finish(directory, not why, quiet=request.as_json, why=why, how=_how(request))


def go_on(directory: RunDirectory, study: Study, request: Request) -> int:
    """Have measured what is left of a run, by those of its hosts that are there and still the same."""
    plan, why = directory.plan, ""
    arms = list({trial.arm.label: trial.arm for trial in plan.trials}.values())
    run = secrets.token_hex(8)
    with progress(as_json=request.as_json) as told:
        if names := {trial.host for trial in directory.pending()}:
            with closing(connected(request, run, told.say)) as cluster:
                fleet = Fleet(cluster, run, told.say, request.far)
                fleet.keep_only(names)
                _announce(arms, told)
                fleet.look(study, str(directory.path / "study.json"), arms)
                for host, each in fleet.prepare(arms, []).items():
                    fleet.expect_same(host, directory.environment_of(host), each.environment)
                why = measure(directory, fleet, told, _how(request))
    return finish(directory, not why, quiet=request.as_json, why=why, how=_how(request))


def _announce(arms: Iterable[Arm], told: Progress) -> None:
    """Whom the hosts reach beyond themselves, before they do."""
    for line in announced(arms):
        told.say(line)


def _how(request: Request) -> str:
    """The options by which a run goes on, as a shell reads them: an IPv6 address is a pattern to it."""
    if request.host is not None:
        return f" {request.far} {shlex.quote(request.host)}"
    tls = f" --tls {typed(request.tls)}" if request.tls is not None else ""
    return f" {request.far} {typed(request.cluster)}{tls}"


def _shared(there: Mapping[str, Environment], skipped: Sequence[SkippedArm], notes: Mapping[str, Any]) -> Environment:
    """What all hosts have alike, and what each has of its own: so a run is comparable with one of the same hosts."""
    first = next(iter(there.values()))
    comparable = _alike([each.comparable for each in there.values()])
    own = {host: _rest(each.comparable, comparable) for host, each in there.items()}
    return Environment(
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        virtoll=first.virtoll,
        comparable={**comparable, "hosts": own},
        notes={key: value for key, value in notes.items() if value},
        skipped=list(skipped),
        warnings=_warnings(there),
    )


def _calibrated(there: Mapping[str, Environment]) -> dict[str, Any]:
    """What a report promises by the calibration of the machine that measures, where it is one."""
    notes = [each.notes for each in there.values()]
    return {key: notes[0][key] for key in NOTES if key in notes[0]} if len(notes) == 1 else {}


def _warnings(there: Mapping[str, Environment]) -> list[str]:
    """Each once, and whose it is."""
    whose: dict[str, list[str]] = {}
    for host, each in there.items():
        for warning in each.warnings:
            whose.setdefault(warning, []).append(host)
    return [f"{listed(hosts)}: {warning}" for warning, hosts in whose.items()]


def _alike(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in each[0].items():
        values = [other.get(key) for other in each]
        if all(isinstance(one, dict) for one in values):
            found[key] = _alike([one for one in values if isinstance(one, dict)])
        elif all(one == value and key in other for one, other in zip(values, each, strict=True)):
            found[key] = value
    return found


def _rest(mine: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mine.items():
        if key not in shared:
            found[key] = value
        elif isinstance(value, dict) and value != shared[key]:
            found[key] = _rest(value, shared[key])
    return found


def planned(study: Study, arms: Sequence[Arm], ready: Mapping[str, Ready]) -> Plan:
    """As many blocks of the study on every host, each host's among the others': a late half hour is nobody's alone.

    Where memory divides the arms, it is by the host that has least of it.
    """
    hosts = sorted(ready)
    overhead_s = expected_overheads_s()
    groups = min(ready.values(), key=lambda each: each.free_bytes).groups
    plan = make_plan(dataclasses.replace(study, blocks=study.blocks * len(hosts)), arms, overhead_s, groups=groups)
    trials = [trial.model_copy(update={"host": hosts[(trial.block - 1) % len(hosts)]}) for trial in plan.trials]
    return plan.model_copy(update={"trials": trials, "estimate_s": plan.estimate_s / len(hosts)})


def measure(directory: RunDirectory, fleet: Fleet, told: Progress, how: str) -> str:
    """Have performed what is pending, and seal it; why not all of it was, or "" where it was. ``how``: the options by
    which the run goes on.
    """
    with directory.writing():
        reporter = _sat_down(directory, told)
        measuring = _Measuring(directory, fleet, reporter, directory.pending())
        try:
            measuring.all()
        except BaseException as error:
            is_by_user = isinstance(error, KeyboardInterrupt)
            measuring.give_up(f"{INTERRUPTED}{'by the user' if is_by_user else error}")
            if is_by_user:
                with suppress(OSError):  # nobody may be there to be told
                    told.say(f"interrupted; `virtoll run {typed(directory.path)}{how}` goes on")
            raise
        left = len(directory.pending())
    if not left:
        return ""
    return f"{left} {plural('trial') if left > 1 else 'trial'} left{_why_lost(measuring.lost)}"


def _sat_down(directory: RunDirectory, told: Progress) -> Guarded:
    """Begin a sitting; who is told how it goes on, and was told of what there is."""
    records, reporter = directory.records(), Guarded(told)
    told.planned(directory.plan, records)
    seal_killed(directory, reporter)  # first: what was killed in its middle is pending again, under a new id
    directory.begin_sitting(records)
    return reporter


def _why_lost(lost: Mapping[str, str]) -> str:
    """Of each host, but of no more than can be read."""
    told = [f"; {host}: {why}" for host, why in lost.items()]
    more = f"; and {len(told) - _MOST_LOST:,} hosts more" if len(told) > _MOST_LOST else ""
    return "".join(told[:_MOST_LOST]) + more


@dataclass
class _Asked:
    """What a host is at: trials of one turn that are not sealed, or, where there are none, its lab."""

    at: str  # ISO 8601, UTC, here
    turn: list[PlannedTrial]


@dataclass
class _Measuring:
    """Each host is given its turns in the plan's order, one when the one before is sealed."""

    directory: RunDirectory
    fleet: Fleet
    reporter: Guarded
    pending: Sequence[PlannedTrial]
    lost: dict[str, str] = field(default_factory=dict)  # hosts that ended before their last trial, and why
    _turns: dict[str, deque[list[PlannedTrial]]] = field(default_factory=dict)
    _asked: dict[str, _Asked] = field(default_factory=dict)

    def all(self) -> None:
        """To the end of each, or its loss."""
        of_hosts: dict[str, list[PlannedTrial]] = {}
        for trial in self.pending:
            of_hosts.setdefault(trial.host, []).append(trial)
        hosts = self.fleet.hosts
        for host in hosts:
            mine = of_hosts.get(host, [])
            self._turns[host] = deque(in_turn(mine))
            self._order(host, Order(run=self.fleet.run, kind="wire", trials=mine))
        at_work = len(hosts)
        while at_work:
            at_work -= not self._goes_on(self.fleet.cluster.next())
        self.reporter.expect_heard()

    def give_up(self, why: str) -> None:
        """Seal what is under way anywhere, as far as it can be."""
        with suppress(StoreError):  # which is what ended it: then the trials' directories tell
            sealed = {record.trial.id for record in self.directory.records()}  # a turn that was being kept, too
            for host in list(self._asked):
                self._seal_undone(host, why, sealed)

    def _goes_on(self, said: Answer) -> bool:
        """Take an answer, and give the next order; false where that host is done, or lost."""
        host = said.host
        if host not in self._asked:  # it has said its last
            if left := said.refused:
                self.fleet.say(f"warning: {host}: {left}")
            return False
        lost = heard(said.lost) or said.refused
        if lost:
            self._seal_undone(host, f"{INTERRUPTED}{host}: {lost}")
            self.lost[host] = (lost.splitlines() or [lost])[0]
            return False
        if self._keep(host, said.data) and self._turns[host] and self.reporter.is_heard:
            self._give(host, self._turns[host].popleft())
        else:
            self._asked.pop(host, None)
            self.fleet.order(host, Order(run=self.fleet.run, kind="end"))
        return True

    def _give(self, host: str, turn: list[PlannedTrial]) -> None:
        """Write down that they are begun, then have them begun."""
        for trial in turn:
            self.reporter.trial_started(trial)
            self.directory.trial_directory(trial)
        self._order(host, Order(run=self.fleet.run, kind="perform", trials=turn))

    def _order(self, host: str, order: Order) -> None:
        turn = order.trials if order.kind == "perform" else []
        self._asked[host] = _Asked(datetime.now(UTC).isoformat(timespec="milliseconds"), list(turn))
        self.fleet.order(host, order)

    def _keep(self, host: str, data: object) -> bool:
        """Seal what a host has handed back; false where it cannot be read, and what it says is not asked for again."""
        turn = self._asked[host].turn
        if not turn:
            return True  # it has wired its lab
        try:
            handed = unpacked(data, turn)
        except TrialError as error:
            self.lost[host] = str(error)
            self._seal_undone(host, f"{host}: {error}")
            return False
        # Were some sealed before an interrupt, or a full disk, the others would come again another day, beside these.
        with held_off():
            for each in handed:
                self.directory.write_together(each.record.trial, each.files)
            sealed = self.directory.seal(*(each.record for each in handed))
            turn.clear()
        for record in sealed:
            self.reporter.trial_sealed(record)
        return True

    def _seal_undone(self, host: str, why: str, sealed: Collection[str] = ()) -> None:
        """Those that a host had been asked for are failed, and never unknown; what is ``sealed`` already stays so."""
        asked = self._asked.pop(host)
        for trial in (trial for trial in asked.turn if trial.id not in sealed):
            record = TrialRecord(trial=trial, status="failed", reason=why, started_at=asked.at)
            self.reporter.trial_sealed(*self.directory.seal(record))
