"""Here: a client, and a load's session, whose generator stands on another machine. Each call is one order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from virtoll.errors import GoneError, TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.hosts.ledger import ElsewhereError
from virtoll.lab.client import SAID, Answer, Client
from virtoll.loads.base import Bulk, Load, Measurement, Session
from virtoll.offers import Http, Offer
from virtoll.post import clocks
from virtoll.post.looks import Looks
from virtoll.post.orders import Count, Losses, Order, Reply, Told, Use, part_of
from virtoll.post.wires import Stretch, Wires, carried, headroom
from virtoll.record.model import ELSEWHERE
from virtoll.units import format_duration

CLOCK_SHARE = 0.01  # of a window: what its times may be off by, for the monitor's are by another clock
OTHERS_SHARE = 0.1  # of the CPU time of the generator's machine: what others may have, or a hypervisor take
CLOCK, OWN = "the generator's clock was known", "the generator's machine was its own"
LINK = "the link to the generator had headroom"


class Channel(Protocol):
    """The way to a post."""

    where: str  # names it in errors

    def ask(self, order: Order) -> Reply:
        """Have an order carried out. TrialError where it cannot be; GoneError where nobody answers any more."""
        ...


class _Nobody:
    """The host of a far client: what would be run on it is not asked for from here."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TrialError("nothing is run there but loads", where=self.where)

    run = spawn = put = read = within = _refuse


@dataclass(frozen=True, kw_only=True)
class FarClient(Client):
    """A client in ``lab`` of the other machine's. Its ``books`` are of this machine, and looked at here: on ``beside``,
    the CPUs that are not the instance's. So are the ``wires`` of this machine's end of the link.
    """

    channel: Channel
    lab: str
    beside: frozenset[int]
    wires: Wires

    @classmethod
    def at(cls, channel: Channel, lab: str, cpus: int, **fields: Any) -> FarClient:
        """One in a lab that is wired. ``cpus``: how many the generator has there."""
        host: Any = _Nobody(channel.where)
        return cls(host, Confinement(), cpus=cpus, channel=channel, lab=lab, **fields)

    @property
    def brings_programs(self) -> bool:
        """They are there."""
        return True

    def opened(self, load: Any, offer: Offer) -> AbstractContextManager[Any]:
        """A session there."""
        return closing(FarSession(load, self, offer))

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        """See `Client.exchange`."""
        order = Order(kind="exchange", lab=self.lab, offer=part_of(offer), sent=sent, most_bytes=most_bytes)
        return self.channel.ask(order).raw[: max(0, most_bytes)]

    def received_bytes(self) -> int:
        """See `Client.received_bytes`."""
        found: int = self.channel.ask(Order(kind="received", lab=self.lab)).read(Count)
        return found

    def get(self, offer: Http, path: str) -> Answer:
        """See `Client.get`."""
        order = Order(kind="get", lab=self.lab, offer=part_of(offer), path=path)
        found: Answer = self.channel.ask(order).read(Answer)
        return found


@dataclass
class FarSession(Session):
    """A load's session there. What it measures is moved to our clock, and what the instance used is looked at here."""

    load: Load
    client: FarClient
    offer: Offer
    _number: int = field(init=False)  # of it there
    _windows: list[clocks.Moved] = field(default_factory=list)
    _uses: list[Use | None] = field(default_factory=list)
    _stretches: list[Stretch] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = Order(
            kind="open",
            lab=self.client.lab,
            load=part_of(self.load),
            offer=part_of(self.offer),
            is_seeded=self.client.is_seeded,
        )
        self._number = self.client.channel.ask(order).read(Count)

    def warm_up(self, duration_ns: int | None = None) -> float | None:
        """See `Session.warm_up`."""
        pace: float | None = self._ask("warm_up", duration_ns=duration_ns).read(float | None)
        return pace

    def lead_in(self, duration_ns: int) -> None:
        """See `Session.lead_in`."""
        self._ask("lead_in", duration_ns=duration_ns)

    def lead_at_least(self, duration_ns: int) -> None:
        """See `Session.lead_at_least`."""
        self._ask("lead_at_least", duration_ns=duration_ns)

    @property
    def lead_ns(self) -> int:
        """See `Session.lead_ns`."""
        return self.lead_ns_at(None)

    def lead_ns_at(self, intensity: float | None) -> int:
        """See `Session.lead_ns_at`."""
        found: int = self._ask("lead_ns", intensity=intensity).read(Count)
        return found

    def gather(self, intensity: float) -> None:
        """See `Session.gather`."""
        self._ask("gather", intensity=intensity)

    def recover(self) -> None:
        """See `Session.recover`."""
        self._ask("recover")

    def rest(self) -> None:
        """See `Session.rest`."""
        self._ask("rest")

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`. TrialError also where what is told is no window that was asked for."""
        before = self._clock()
        theirs_ns = None if start_ns is None else start_ns + before.ahead_ns
        words = {"intensity": intensity, "duration_ns": duration_ns, "start_ns": theirs_ns}
        is_logged = not self._windows  # of several windows nobody keeps them (`tables_of`)
        with Looks(self.client.books, self.client.beside) as looks:
            looked_ns, first = time.monotonic_ns(), self.client.wires.look()
            reply = self._ask("measure", is_logged=is_logged, **words)
            last, looked_ns = self.client.wires.look(), time.monotonic_ns() - looked_ns
        told: Told = reply.read(Told)
        moved = clocks.moved(told.window, before, self._clock())
        self._windows.append(moved)
        self._uses.append(told.use)
        self._stretches.append(Stretch(moved.window, carried(first, last), told.carried, looked_ns))
        window = moved.window.model_copy(update={"booked": looks.booked(moved.window)})
        log = self._kept(reply.raw) if told.has_log else None
        return Measurement(told.instrument, window, Bulk(told.histogram, told.lateness, log))

    def proofs(self) -> Sequence[tuple[str, bool | None, str]]:
        """That its clock was known well enough in each window, that its machine was nobody else's, and that it was not
        the link that was measured.
        """
        if not self._windows:
            return []
        return [self._clock_proof(), self._own_proof(), (LINK, *headroom(self._stretches))]

    @property
    def facts(self) -> dict[str, Any]:
        """Which machine it was, and how its clock stood against ours."""
        clock = [{"ahead_ns": each.ahead_ns, "within_ns": each.within_ns} for each in self._windows]
        used = [use.model_dump() for use in self._uses if use is not None]
        return {ELSEWHERE: {"at": self.client.channel.where, "clock": clock, "use": used}}

    def close(self) -> None:
        """It ends there; by itself, where nobody answers any more."""
        with suppress(GoneError):
            said = self._ask("close").raw
            if said:
                (self.client.directory / SAID).write_bytes(said)

    def _ask(self, kind: Any, **fields: Any) -> Reply:
        return self.client.channel.ask(Order(kind=kind, lab=self.client.lab, session=self._number, **fields))

    def _clock(self) -> clocks.Reading:
        return clocks.read(lambda: self.client.channel.ask(Order(kind="clock")).read(Count))

    def _kept(self, raw: bytes) -> Path:
        path = self.client.directory / f"requests-far-{self._number}-{time.monotonic_ns()}.bin"
        path.write_bytes(raw)
        return path

    def _clock_proof(self) -> tuple[str, bool | None, str]:
        windows = [each for each in self._windows if each.window.duration_ns]
        if not windows:
            return CLOCK, None, "the windows have no length: all requests were sent at once"
        worst = max(windows, key=lambda each: each.within_ns / each.window.duration_ns)
        share = worst.within_ns / worst.window.duration_ns
        within, length = format_duration(worst.within_ns), format_duration(worst.window.duration_ns)
        return CLOCK, share <= CLOCK_SHARE, f"to within {within} in a window of {length} ({CLOCK_SHARE:.0%} may be)"

    def _own_proof(self) -> tuple[str, bool | None, str]:
        uses = [use for use in self._uses if use is not None]
        whole_s = sum(use.whole_s for use in uses)
        if len(uses) < len(self._uses) or whole_s <= 0:
            return OWN, None, "its /proc/stat does not tell"
        others = sum(max(0.0, use.others_s) for use in uses) / whole_s  # no window makes up for another's
        stolen = sum(use.stolen_s for use in uses) / whole_s
        told = f"others had {others:.1%} of its CPU time, and {stolen:.1%} was stolen"
        return OWN, max(others, stolen) <= OTHERS_SHARE, f"{told} ({OTHERS_SHARE:.0%} each may be)"


@dataclass(frozen=True)
class Far:
    """The generator of one lab (`virtoll.lab.base.FarGenerator`)."""

    channel: Channel
    lab: str
    cpus: int
    beside: frozenset[int]
    wires: Wires

    def client(self, directory: Path, books: Mapping[str, Path]) -> Client:
        """See `FarGenerator.client`."""
        fields = {"directory": directory, "books": books, "beside": self.beside, "wires": self.wires}
        return FarClient.at(self.channel, self.lab, self.cpus, **fields)

    def losses(self) -> dict[str, int]:
        """See `FarGenerator.losses`."""
        found: dict[str, int] = self.channel.ask(Order(kind="losses", lab=self.lab)).read(Losses)
        return found


@contextmanager
def far(channel: Channel, wire: Order, cpus: int, beside: frozenset[int], ours: Wires) -> Iterator[Far]:
    """The generator's side of a lab, wired there for the length of the block. ElsewhereError as of `_unwire`."""
    try:
        channel.ask(wire)
        yield Far(channel, wire.lab, cpus, beside, ours)
    finally:
        _unwire(channel, wire.lab)


def _unwire(channel: Channel, lab: str) -> None:
    """Have it undone. ElsewhereError where that fails: it is in nobody's way here, and tried again there at the end of
    the run; after an interrupt, not even that, as of what is here (`Ledger`).
    """
    try:
        channel.ask(Order(kind="unwire", lab=lab))
    except GoneError:
        return  # it is undone there, without being told
    except TrialError as error:
        if is_being_tidied_up_after():
            return
        what = f"a lab could not be undone there: {error.problem.what}"
        remedy = "it is tried once more when the run ends; then `virtoll clean --host` names what is left"
        raise ElsewhereError(what, where=error.problem.where or channel.where, remedy=remedy) from error
