"""The hosts of a fleet, and what they say: which of them take part in a run, and why others do not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from virtoll import __version__
from virtoll.errors import HostError
from virtoll.plain import listed, printable
from virtoll.record.comparable import MEASURED_BY, alike, differences
from virtoll.record.model import Arm, Environment, HostName, SkippedArm
from virtoll.run import environment
from virtoll.run.hosting import LEFT, Offer, Order, Ready, Refusal
from virtoll.study import document
from virtoll.study.model import Study

OPTION, BY_SSH = "--cluster", "--host"
_REMEDIES = {OPTION: "mend that, or start workers on other hosts", BY_SSH: "mend that there, or name another host"}
_MOST_TOLD = 2000  # characters of what a host says of itself
# What of an environment may be another on each host: the rest decides what is measured.
_OF_A_HOST = ("machine", "tuned", "media")  # which processors of two kinds may encode into other bits
_MOST_REFUSALS = 20  # told one by one where nobody is left; each was told when it was heard
_CLOCKS_APART_S = 1.0  # beyond which it is told how far a host's time of day is from ours


@dataclass(frozen=True)
class Answer:
    """What came of an order. ``lost``: why there is no answer, nor will be; "" where there is."""

    host: str
    data: object = b""  # bytes, of a host that does as it should
    lost: str = ""

    @property
    def refused(self) -> str | None:
        """Why the order was not carried out; None where it was, or nobody says."""
        return refusal(self.data) if isinstance(self.data, bytes) else None


class Cluster(Protocol):
    """Hosts that carry orders out: one at a time each, all at once. Nothing is ever carried out twice."""

    notes: Mapping[str, Any]  # of how they are reached, for the record

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names."""
        ...

    def ask(self, host: str, order: bytes) -> None:
        """Give an order."""
        ...

    def next(self) -> Answer:
        """Wait for any of the answers that are to come."""
        ...

    def close(self) -> None:
        """Leave. A host that was not told to end does so by itself, and undoes what is under way."""
        ...


Said = TypeVar("Said", bound=BaseModel)


@dataclass
class Fleet:
    """The hosts that take part, and why others do not."""

    cluster: Cluster
    run: str
    say: Callable[[str], None]
    option: str = OPTION  # which named them
    _there: dict[str, None] = field(default_factory=dict)  # in their order; whoever leaves is not looked for among all
    refused: dict[str, str] = field(default_factory=dict)
    apart_s: dict[str, float] = field(default_factory=dict)  # how far a host's time of day is from ours, at least

    def __post_init__(self) -> None:
        for host in self.cluster.hosts:
            if _is_name(host):
                self._there[host] = None
            else:
                self._leave_out(host, "its name is no plain word: virtoll worker --name NAME")

    @property
    def hosts(self) -> list[str]:
        """Those that take part, in their order."""
        return list(self._there)

    def keep_only(self, names: set[str]) -> None:
        """Those of a run that goes on. HostError where none of them is there."""
        if missing := sorted(names - self._there.keys()):
            self.say(f"not there: {listed(missing)}; their blocks are left")
        self._there = {host: None for host in self._there if host in names}
        self._expect_some(f"none of {listed(sorted(names))} is there")

    def look(self, study: Study, file: str, asked: Sequence[Arm] = ()) -> tuple[list[Arm], list[SkippedArm]]:
        """The study's arms that all hosts offer, and those that some do not; hosts that lack what is no option are left
        out. What a host says of arms that the study does not have is not heard.

        ``asked``: those of a run that goes on; a host that lacks one of them is left out.
        """
        self.say(f"asking {listed(self.hosts)} what they offer")
        asked_s = time.time()
        order = Order(run=self.run, kind="look", study=dict(document.as_json(study)), file=file)
        offers = self._answers(order, Offer)
        heard_s = time.time()
        must = asked or [_as_told(entry.arm) for entry in study.arms if not entry.optional]
        for host, offer in offers.items():
            self._compare_clocks(host, asked_s, offer.wall_s, heard_s)
            lacking = [arm.label for arm in must if arm not in offer.arms]
            if offer.virtoll != __version__:
                self._refuse(host, f"its virtoll is {offer.virtoll}, and this one is {__version__}: install the same")
            elif lacking:
                self._refuse(host, f"it does not offer {', '.join(lacking)}{' any more' if asked else ''}")
        self._expect_some("no host can measure this")
        every = [_as_told(entry.arm) for entry in study.arms]
        arms, skipped = _common(every, {host: offers[host] for host in self.hosts})
        for entry in skipped:
            self.say(printable(f"not measured: {entry.arm.label}: {(entry.reason.splitlines() or [''])[0]}"))
        return arms, skipped

    def prepare(self, arms: Sequence[Arm], skipped: Sequence[SkippedArm]) -> dict[str, Ready]:
        """Make images and all else on every host, outside any measured time."""
        self.say(f"{listed(self.hosts)} make ready what is measured")
        found = self._answers(Order(run=self.run, kind="prepare", arms=list(arms), skipped=list(skipped)), Ready)
        self._expect_some("no host could be made ready")
        return found

    def divided(self, ready: Mapping[str, Ready], arms: Sequence[Arm], design: str) -> dict[str, Ready]:
        """Those that divide a rotation's arms into groups, or not at all: each arm is in one. The others are left."""
        labels = sorted(arm.label for arm in arms if arm.role != "baseline")
        for host, each in ready.items():
            told = sorted(label for group in each.groups for label in group)
            if each.groups and (design != "rotation" or told != labels or not all(each.groups)):
                why = (
                    "not each arm is in one of its groups"
                    if design == "rotation"
                    else "it has groups without a rotation"
                )
                self._refuse(host, f"its answer makes no sense: {why}")
        self._expect_some("no host could be made ready")
        return {host: each for host, each in ready.items() if host in self._there}

    def agreed(self, ready: Mapping[str, Ready]) -> dict[str, Ready]:
        """Those that would measure the same: as most do, of equally many as the first by name. The others are left."""
        kinds = {host: alike(_of_the_measured(each)) for host, each in ready.items()}
        counts = Counter(kinds.values())
        first = max(sorted(ready), key=lambda host: counts[kinds[host]])
        for host in sorted(ready):
            if kinds[host] != kinds[first]:
                apart = differences(_of_the_measured(ready[first]), _of_the_measured(ready[host]))
                self._refuse(host, f"it would measure something else than {first}: {'; '.join(apart[:5])}")
        return {host: each for host, each in ready.items() if host in self._there}

    def expect_same(self, host: str, before: Environment, now: Environment) -> None:
        """Leave a host out that is not as it was when its run began."""
        try:
            environment.require_same(before, now)
        except HostError as error:
            self._refuse(host, str(error))
        self._expect_some("no host is as it was")

    def order(self, host: str, order: Order) -> None:
        """Give one order to one host."""
        self.cluster.ask(host, _packed(order))

    def _answers(self, order: Order, model: type[Said]) -> dict[str, Said]:
        """Give an order to all, and what those say that can carry it out; the others are left out. One that refuses is
        free already, and is told nothing more: at work for another run, it would answer when that one's next turn ends.
        """
        asked, packed, found = self.hosts, _packed(order), {}
        unread: list[tuple[Answer, str]] = []
        for host in asked:
            self.cluster.ask(host, packed)
        for _ in asked:
            said = self.cluster.next()
            try:
                found[said.host] = read(said, model)
            except HostError as error:
                unread.append((said, error.problem.what))
        for said, why in unread:
            if said.lost or said.refused is not None:
                self._leave_out(said.host, why)
            else:
                self._refuse(said.host, why)
        return {host: found[host] for host in asked if host in found}

    def _compare_clocks(self, host: str, asked_s: float, said_s: float, heard_s: float) -> None:
        """Nothing that is measured hangs on it: ratios are of one host, and durations of its own steady clock."""
        apart_s = max(asked_s - said_s, said_s - heard_s)
        if apart_s > _CLOCKS_APART_S:
            self.apart_s[host] = round(apart_s, 3)
            self.say(f"{host}: its time of day is {apart_s:,.0f} s or more from ours; times in its records are its own")

    def _refuse(self, host: str, why: str) -> None:
        """Leave a host out that would carry orders out. It is free again when this returns."""
        self._leave_out(host, why)
        self.order(host, Order(run=self.run, kind="end"))
        said = self.cluster.next()
        if LEFT in (left := said.refused or ""):
            self.say(f"warning: {printable(host)}: {left}")

    def _leave_out(self, host: str, why: str) -> None:
        why = heard(why)
        self.refused[host] = why
        self._there.pop(host, None)
        self.say(f"{printable(host)} does not take part: {why}")

    def _expect_some(self, what: str) -> None:
        if not self._there:
            told = [f"\n  {printable(host)}: {why}" for host, why in self.refused.items()]
            if (more := len(told) - _MOST_REFUSALS) > 0:
                told[_MOST_REFUSALS:] = [f"\n  and {more:,} more"]
            raise HostError(what + "".join(told), where=self.option, remedy=_REMEDIES[self.option])


def read(said: Answer, model: type[Said]) -> Said:
    """What a host has answered. HostError where it cannot, is lost, or says something else."""
    if said.lost:
        raise HostError(said.lost)
    if not isinstance(said.data, bytes):
        raise HostError(f"its answer is a {type(said.data).__name__}, and no bytes")
    if (why := said.refused) is not None:
        raise HostError(why)
    try:
        return model.model_validate_json(said.data)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "too deep"
        raise HostError(f"its answer cannot be read: {first}") from None


def refusal(data: bytes) -> str | None:
    """Why an order was not carried out, as can be printed and kept; None where it was."""
    try:
        return heard(Refusal.model_validate_json(data).refused) if data.startswith(b'{"refused"') else None
    except (ValidationError, RecursionError):
        return "it refuses, and does not say why"


def heard(text: str) -> str:
    """What a host says, as it can be printed and kept: no more than ever helps, and nothing that a terminal obeys."""
    return printable(text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]} ... ({len(text):,} characters)")


def _is_name(host: str) -> bool:
    try:
        TypeAdapter(HostName).validate_python(host)
    except ValidationError:
        return False
    return True


def _as_told(arm: Arm) -> Arm:
    """As it comes back from a host: JSON has lists alone."""
    return Arm.model_validate_json(arm.model_dump_json())


def _common(arms: Sequence[Arm], offers: Mapping[str, Offer]) -> tuple[list[Arm], list[SkippedArm]]:
    """Those that all offer, and the others with the reason of the first host that lacks one."""
    common: list[Arm] = []
    skipped: list[SkippedArm] = []
    for arm in arms:
        host = next((host for host, offer in offers.items() if arm not in offer.arms), None)
        if host is None:
            common.append(arm)
            continue
        why = next((entry.reason for entry in offers[host].skipped if entry.arm == arm), "it does not say why")
        skipped.append(SkippedArm(arm=arm, reason=f"{host}: {heard(why)}"))
    return common, skipped


def _of_the_measured(ready: Ready) -> dict[str, Any]:
    """What decides what a host measures."""
    found = {key: value for key, value in ready.environment.comparable.items() if key not in _OF_A_HOST}
    by = ready.environment.notes.get(MEASURED_BY)
    code = by.get("code") if isinstance(by, dict) else None
    return {"virtoll": ready.environment.virtoll, "code": code} | found


def _packed(order: Order) -> bytes:
    return order.model_dump_json().encode()


def needs_dask(error: ImportError) -> HostError:
    """What to say where the extra is not installed."""
    return HostError(
        f"several hosts need Dask, which is not installed here ({error.name})",
        where=OPTION,
        remedy="setup/install --fleet, or pip install 'virtoll[fleet]', on every host",
    )
