"""What a post is asked, and what it answers.

An answer is the length of its heading (8 bytes, big endian), the heading (JSON), and what there is of raw bytes: a
log of single requests, or what a server said. Whoever reads one trusts nothing of it. Times are CLOCK_MONOTONIC of the
post's own machine, in ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from virtoll import strict_json
from virtoll.errors import HostError, Problem, TrialError
from virtoll.lab.base import Uplink
from virtoll.loads.base import Load, Measurement, loads
from virtoll.offers import Offer
from virtoll.plain import printable
from virtoll.record.model import Window

MOST_RAW_BYTES = 64 * 1024**2  # twice what a log of single requests has (`REQUEST_LOG_LIMIT`)
MOST_HEADING_BYTES = 16 * 1024**2
MOST_ANSWER_BYTES = 8 + MOST_HEADING_BYTES + MOST_RAW_BYTES
_LENGTH = 8
_MOST_TOLD = 4000  # characters of why an order cannot be carried out
_MOST_BUCKETS = 200_000  # of a histogram: ten times what the native generator's has

# Of the machine, of a lab in it, and of a load's session in that.
_OfMachine = Literal["look", "prepare", "clock", "end"]
_OfLab = Literal["wire", "unwire", "losses", "exchange", "get", "received", "open"]
_OfSession = Literal["warm_up", "lead_in", "lead_at_least", "lead_ns", "gather", "measure", "recover", "rest", "close"]
Kind = _OfMachine | _OfLab | _OfSession


class Part(BaseModel):
    """A load with its settings, or an offer with its fields, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    values: dict[str, Any]


class Order(BaseModel):
    """One order; ``kind`` says which of the fields it has."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    kind: Kind
    nic: str = ""  # look
    loads: list[Part] = []  # look, prepare: all that are to be driven
    lab: str = ""  # which of a run's labs: wire, and all that is asked in it
    uplink: Uplink | None = None  # wire
    load: Part | None = None  # open
    offer: Part | None = None  # open, exchange, get
    is_seeded: bool = False  # open: see `Client.is_seeded`
    sent: bytes = b""  # exchange
    most_bytes: int = 0  # exchange
    path: str = ""  # get
    session: int = 0  # of those that are open, from 1: close, and all that a session is asked
    intensity: float | None = None  # measure, lead_ns
    duration_ns: int | None = None  # warm_up, lead_in, lead_at_least, measure
    start_ns: int | None = None  # measure
    is_logged: bool = True  # measure: whether the log of single requests is to come along


Count = Annotated[int, Field(ge=0, lt=2**63)]
_Histogram = Annotated[list[tuple[Count, Count, Count]], Field(max_length=_MOST_BUCKETS)]
Line = Annotated[str, Field(max_length=_MOST_TOLD)]
# The answer to *losses*: what was counted of its devices, by name ("eth0 rx_dropped"); a bond may have many ports.
Losses = Annotated[dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@ -]{1,64}$")], Count], Field(max_length=1000)]


class Nic(BaseModel):
    """A network device of a machine's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Line
    driver: Line | None  # None: it has none, or the kernel does not tell
    speed_mbit_per_s: int | None
    mtu: int  # bytes
    identity: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]  # of its address: another device has another
    offloads: Annotated[list[Line], Field(max_length=100)] = []  # that are on


class Standing(BaseModel):
    """The answer to *look*: the machine, and what is missing there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: dict[str, Any]  # as `virtoll.run.environment` tells it
    cpus: Annotated[int, Field(ge=1, le=2**16)]  # that the generator may use
    nic: Nic | None  # None: there is none of this name; ``problems`` say so
    congestion: Line | None
    tools: Annotated[dict[str, Line], Field(max_length=100)]  # digests of the programs of its own that the loads run
    load_average: float
    server: Line  # the address that ssh has reached it at; "": it is not known
    warnings: Annotated[list[Line], Field(max_length=100)]
    problems: Annotated[list[tuple[Line, Line, Line]], Field(max_length=100)]  # what, where, remedy


class Use(BaseModel):
    """Of the time of the generator's CPUs while it measured, in s: what others had in user space, what was stolen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    whole_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    others_s: Annotated[
        float, Field(allow_inf_nan=False)
    ]  # the kernel counts in ticks: of next to nothing it may be < 0
    stolen_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Carried(BaseModel):
    """What one of the machine's wires carried while it measured, with what is around each frame."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Line
    speed_mbit_per_s: Annotated[int, Field(gt=0, lt=2**31)] | None  # None: the kernel does not tell
    received_bytes: Count
    sent_bytes: Count
    is_coarse: bool = False  # its counters are brought up to date once a second


class Told(BaseModel):
    """The answer to *measure*; the log, where it comes along, is the raw bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instrument: Annotated[str, Field(max_length=200)]
    window: Window
    histogram: _Histogram | None
    lateness: _Histogram | None
    has_log: bool
    use: Use | None  # None: /proc/stat could not be read
    carried: Annotated[list[Carried], Field(max_length=100)]  # by each wire; []: it has none that is known

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        """As an instrument's buckets are: what is told of them is computed so."""
        for rows in (self.histogram, self.lateness):
            for (lower_ns, upper_ns, _), after in pairwise([*(rows or ()), None]):
                if upper_ns <= lower_ns or (after is not None and after[0] < upper_ns):
                    raise ValueError("buckets that do not ascend")
        return self

    @classmethod
    def of(cls, measurement: Measurement, use: Use | None, carried: list[Carried], *, has_log: bool) -> Told:
        """What a load measured."""
        bulk = measurement.bulk
        return cls(
            instrument=measurement.instrument,
            window=measurement.window,
            histogram=bulk.histogram,
            lateness=bulk.lateness,
            has_log=has_log,
            use=use,
            carried=carried,
        )


class _Failed(BaseModel):
    """Why an order was not carried out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: Line
    where: Line = ""
    remedy: Line = ""


class _Heading(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Any = None
    failed: _Failed | None = None


@dataclass(frozen=True)
class Reply:
    """An answer that came. ``value`` is what JSON holds, and nobody has looked at it yet (`read`)."""

    value: Any
    raw: bytes = b""

    def read(self, kind: Any) -> Any:
        """The value, as of this type. TrialError where it is none."""
        try:
            return TypeAdapter(kind).validate_json(strict_json.dumped(self.value))
        except (ValidationError, RecursionError) as error:
            raise _unreadable(_first(error)) from None


def packed(value: Any = None, raw: bytes = b"") -> bytes:
    """An answer."""
    if len(raw) > MOST_RAW_BYTES:
        return refused(Problem(f"{len(raw):,} B are more than an answer holds"))
    head = _Heading(value=value).model_dump_json().encode()
    return b"".join([len(head).to_bytes(_LENGTH, "big"), head, raw])


def refused(problem: Problem) -> bytes:
    """The answer to an order that cannot be carried out."""
    words = (printable(each[:_MOST_TOLD]) for each in (problem.what, problem.where, problem.remedy))
    failed = _Failed(**dict(zip(("what", "where", "remedy"), words, strict=True)))
    head = _Heading(failed=failed).model_dump_json().encode()
    return b"".join([len(head).to_bytes(_LENGTH, "big"), head])


def unpacked(answer: bytes) -> Reply:
    """TrialError where the order was not carried out, or the answer is none."""
    head = int.from_bytes(answer[:_LENGTH], "big")
    if head > MOST_HEADING_BYTES or len(answer) < _LENGTH + head:
        raise _unreadable(f"{len(answer):,} B with a heading of {head:,}")
    try:
        heading = _Heading.model_validate(strict_json.loads(answer[_LENGTH : _LENGTH + head]))
    except (ValueError, RecursionError) as error:
        raise _unreadable(_first(error)) from None
    if (failed := heading.failed) is not None:
        where, remedy = printable(failed.where), printable(failed.remedy)
        raise TrialError(printable(failed.what), where=where, remedy=remedy)
    return Reply(heading.value, answer[_LENGTH + head :])


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return f"{error.errors()[0]['msg']}"
    return "too deep" if isinstance(error, RecursionError) else str(error)


def _unreadable(what: str) -> TrialError:
    return TrialError(printable(f"what the generator's machine answers cannot be read: {what[:300]}"))


def part_of(thing: Load | Offer) -> Part:
    """As it is sent."""
    if isinstance(thing, Offer):
        return Part(name=type(thing).__name__, values=_plain(thing))
    return Part(name=thing.name, values=_plain(thing.settings))


def load_of(part: Part) -> Load:
    """The load again. HostError where there is none of that name: plugins are not pushed."""
    cls = loads().get(part.name)
    if cls is None:
        remedy = "plugins are not brought to the generator's machine: take one of virtoll's own loads"
        raise HostError(f"no load is called {part.name!r} there", remedy=remedy)
    return cls(TypeAdapter(cls.Settings).validate_python(part.values))


def offer_of(part: Part) -> Offer:
    """The offer again. HostError as of `load_of`."""
    cls = next((each for each in _kinds(Offer) if each.__name__ == part.name), None)
    if cls is None:
        raise HostError(f"no offer is called {part.name!r} there", remedy="plugins are not brought there")
    found: Offer = TypeAdapter(cls).validate_python(part.values)
    return found


def _plain(thing: Any) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(type(thing)).dump_python(thing, mode="json")
    return found


def _kinds(cls: type[Offer]) -> Iterator[type[Offer]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _kinds(each)
