"""What a machine does whose generators load another one (`--generator`), order by order, as `virtoll.run.hosting` does
for one that is measured.

From the first look on the machine is that run's alone. An order that fails leaves the rest as it is: whoever gives
orders knows what it still has open.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from virtoll.errors import DiskError, HostError, Problem, VirtollError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts import programs, tuning
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.hosts.tuning import groups_awake
from virtoll.images.base import Image, Images, together
from virtoll.lab.client import SAID, Answer, Programs
from virtoll.lab.others import group_user_s
from virtoll.lab.posts import Stand, stood
from virtoll.loads.base import Session
from virtoll.offers import Http
from virtoll.post import nics
from virtoll.post.orders import Nic, Order, Standing, Told, Use, load_of, offer_of, packed, refused
from virtoll.post.wires import Wires, carried
from virtoll.run import environment
from virtoll.run.alone import alone
from virtoll.run.looking import spent_of
from virtoll.run.stage import built
from virtoll.trial.deployer import Deployer

_Answer = tuple[Any, bytes]
_MOST_SAID_BYTES = 32 * 1024**2


@dataclass
class _Lab:
    """The generator's side of one lab, and the sessions that are open in it."""

    stand: Stand
    wires: Wires  # that its eth0 is upon
    stack: ExitStack  # gives it up
    sessions: dict[int, tuple[Session, ExitStack]] = field(default_factory=dict)
    directories: dict[int, Path] = field(default_factory=dict)  # of the sessions
    programs: Programs | None = None  # a load's own, from its first session on
    programs_stack: ExitStack = field(default_factory=ExitStack)  # ends them


class Post:
    """The machine, and the run whose generators stand on it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._host = LocalHost()
        self._stack = ExitStack()
        self._ledger: Ledger | None = None  # from the first look on
        self._labs: dict[str, _Lab] = {}
        self._opened = 0  # sessions, so far
        self._image: Image | None = None  # of the loads' own programs

    def answer(self, data: bytes) -> bytes:
        """Carry an order out; why it could not be, where it fails. An interrupt goes on, and so does a full disk: who
        is not answered loses us, and the trial comes again.
        """
        try:
            order = Order.model_validate_json(data)
            return packed(*self._done(order))
        except Exception as error:
            if is_being_tidied_up_after():
                raise KeyboardInterrupt from error  # it came while that was undone, or led to it
            if (full := DiskError.of(error)) is not None:
                raise full from None
            return refused(_problem(error))

    def end(self) -> None:
        """Undo all, and give the machine up."""
        stack, self._stack = self._stack, ExitStack()
        self._labs.clear()
        self._ledger = None
        stack.close()

    def _done(self, order: Order) -> _Answer:
        if order.kind in _OF_MACHINE:
            return _OF_MACHINE[order.kind](self, order), b""
        if (lab := self._labs.get(order.lab)) is None:
            raise HostError("no lab is wired for this", where=self._name, remedy="begin the run anew")
        return self._in_session(lab, order) if order.session else _IN_LAB[order.kind](self, lab, order)

    def _look(self, order: Order) -> Any:
        """Take the machine, if it is not taken yet, and see what it is."""
        if self._ledger is None:
            self._stack.enter_context(alone(self._host))
            directory = ledgers.state_directory() / "ledger"
            self._ledger = self._stack.enter_context(ledgers.opened(self._host, directory, f"post-{os.getpid()}"))
        problems = nics.problems_of(self._host, order.nic, "the generator's")
        loads = [load_of(part) for part in order.loads]
        problems += [problem for load in loads for problem in load.check(self._host)]
        tools = sorted({load.tool for load in loads if load.tool}) if not problems else []
        told = Standing(
            machine=environment.machine()
            | ({"tuned": tuned} if (tuned := tuning.in_force(tuning.directory())) else {}),
            cpus=len(os.sched_getaffinity(0)),
            nic=self._nic(order.nic),
            congestion=tuning.congestion(),
            tools={name: programs.digest(name) for name in tools},
            load_average=os.getloadavg()[0],
            server=(os.environ.get("SSH_CONNECTION", "").split() or [""] * 3)[2],
            warnings=environment.warnings(is_lab=False),
            problems=[(each.what, each.where, each.remedy) for each in dict.fromkeys(problems)],
        )
        return told.model_dump(mode="json")

    def _prepare(self, order: Order) -> str:
        """Make the image of the loads' own programs; its digest. HostError with all that is not in it."""
        loads = [load_of(part) for part in order.loads]
        wanted = together(load.programs for load in loads)
        if wanted is None or wanted.is_nothing:
            raise HostError("the loads' programs are of no one image", where=self._name)
        self._image = built(self._host, "post-load", wanted, lambda _text: None)
        if problems := [problem for load in loads for problem in load.problems_with(self._image)]:
            raise HostError("".join(f"\n  {each}" for each in dict.fromkeys(problems)), where=self._name)
        return self._image.digest

    def _nic(self, name: str) -> Nic | None:
        try:
            return nics.nic(self._host, name)
        except HostError:
            return None  # which is among the problems

    def _wire(self, order: Order) -> None:
        if self._ledger is None or order.uplink is None or order.lab in self._labs:
            raise HostError("this lab cannot be wired", where=self._name, remedy="begin the run anew")
        with ExitStack() as stack:
            cpus = frozenset(os.sched_getaffinity(0))
            stand = stack.enter_context(stood(self._host, self._ledger, order.uplink, cpus))
            stand.expect_reached(sys.executable)
            lab = _Lab(stand, Wires.of(self._host, order.uplink.far_nic), stack.pop_all())
        self._labs[order.lab] = lab
        self._stack.push(lab.stack)

    def _unwire(self, order: Order) -> None:
        """Nothing, where it could not be wired."""
        if (lab := self._labs.pop(order.lab, None)) is not None:
            lab.stack.close()

    # -- in a lab -----------------------------------------------------------------------------------------

    def _exchange(self, lab: _Lab, order: Order) -> _Answer:
        assert order.offer is not None
        client = lab.stand.client("visitor")
        return None, client.exchange(offer_of(order.offer), order.sent, order.most_bytes)

    def _get(self, lab: _Lab, order: Order) -> _Answer:
        assert order.offer is not None
        offer = offer_of(order.offer)
        assert isinstance(offer, Http)
        found = lab.stand.client("visitor").get(offer, order.path)
        return TypeAdapter(Answer).dump_python(found, mode="json"), b""

    def _open(self, lab: _Lab, order: Order) -> _Answer:
        assert order.offer is not None
        assert order.load is not None
        self._opened += 1
        client = lab.stand.client(f"session-{self._opened}")
        load, offer = load_of(order.load), offer_of(order.offer)
        programs = None if load.programs.is_nothing else self._programs(lab, is_seeded=order.is_seeded)
        client = replace(client, is_seeded=order.is_seeded, programs=programs)
        with ExitStack() as stack:
            session = stack.enter_context(load.session(client, offer))
            lab.sessions[self._opened] = session, stack.pop_all()
        lab.directories[self._opened] = client.directory
        lab.stack.push(lab.sessions[self._opened][1])
        return self._opened, b""

    def _programs(self, lab: _Lab, *, is_seeded: bool) -> Programs:
        """A root filesystem with the load's own programs, for as long as a service lives: one that an earlier trial has
        seeded has them still, and what their seed wrote.
        """
        if self._image is None:
            raise HostError("no image was made of the load's programs", where=self._name, remedy="begin the run anew")
        if lab.programs is None or not is_seeded:
            lab.programs = None
            lab.programs_stack.close()
            with ExitStack() as stack:
                deployer = Deployer(lab.stand.lab, Images(self._image, load=self._image), stack)
                found = stack.enter_context(deployer.programs())
                lab.programs_stack = stack.pop_all()
            lab.stack.push(lab.programs_stack)
            lab.programs = found
        return lab.programs

    # -- in a session -------------------------------------------------------------------------------------

    def _in_session(self, lab: _Lab, order: Order) -> _Answer:
        if order.session not in lab.sessions:
            if order.kind == "close":
                return None, b""
            raise HostError("no such session is open", where=self._name)
        session, stack = lab.sessions[order.session]
        if order.kind == "close":
            del lab.sessions[order.session]
            stack.close()
            return None, _said(lab.directories.pop(order.session))
        if order.kind == "measure":
            return _measured(lab, session, order)
        asked: dict[str, Callable[[], Any]] = {
            "warm_up": lambda: session.warm_up(order.duration_ns),
            "lead_in": lambda: session.lead_in(order.duration_ns or 0),
            "lead_at_least": lambda: session.lead_at_least(order.duration_ns or 0),
            "lead_ns": lambda: session.lead_ns if order.intensity is None else session.lead_ns_at(order.intensity),
            "gather": lambda: session.gather(order.intensity or 0.0),
            "recover": session.recover,
            "rest": session.rest,
        }
        return asked[order.kind](), b""


_OF_MACHINE: dict[str, Callable[[Post, Order], Any]] = {
    "clock": lambda _post, _order: time.monotonic_ns(),
    "look": Post._look,
    "prepare": Post._prepare,
    "end": lambda post, _order: post.end(),
    "wire": Post._wire,
    "unwire": Post._unwire,
}
_IN_LAB: dict[str, Callable[[Post, _Lab, Order], _Answer]] = {
    "losses": lambda _post, lab, _order: (lab.stand.losses(), b""),
    "received": lambda _post, lab, _order: (lab.stand.client("visitor").received_bytes(), b""),
    "exchange": Post._exchange,
    "get": Post._get,
    "open": Post._open,
}


def _said(directory: Path) -> bytes:
    """What a load's programs printed, the last of it."""
    path = directory / SAID
    return path.read_bytes()[-_MOST_SAID_BYTES:] if path.exists() else b""


def _measured(lab: _Lab, session: Session, order: Order) -> _Answer:
    """A window, and what others had of the CPUs meanwhile, and passed the wires."""
    before, first = _Used.now(lab.stand), lab.wires.look()
    measurement = session.measure(intensity=order.intensity, duration_ns=order.duration_ns, start_ns=order.start_ns)
    last, after = lab.wires.look(), _Used.now(lab.stand)
    use = None if before is None or after is None else before.until(after)
    log, raw = measurement.bulk.log, b""
    if log is not None:
        raw = log.read_bytes() if order.is_logged else b""
        log.unlink(missing_ok=True)
    has_log = log is not None and order.is_logged
    return Told.of(measurement, use, carried(first, last), has_log=has_log).model_dump(mode="json"), raw


@dataclass(frozen=True)
class _Used:
    """CPU time so far, in s: of the generator's CPUs by kind (`spent_of`), and in user space of all that is the lab's,
    this process included.
    """

    by_kind: Mapping[str, float]
    ours_s: float

    @classmethod
    def now(cls, stand: Stand) -> _Used | None:
        by_kind, ours_s = spent_of(stand.cpus), group_user_s(stand.whole)
        return None if by_kind is None or ours_s is None else cls(by_kind, ours_s + os.times().user)

    def until(self, later: _Used) -> Use:
        spent = {kind: later.by_kind[kind] - self.by_kind[kind] for kind in self.by_kind}
        # In the kernel much of the network's work is booked to whom it interrupts: to others, or to us (`lab.others`).
        # The loops of `virtoll tune awake` are on each CPU, and nice, and give way to all else.
        at_work_s = spent["user"] + (0.0 if groups_awake(hierarchies()) else spent["nice"])
        return Use(
            whole_s=max(0.0, sum(spent.values())),
            others_s=at_work_s - (later.ours_s - self.ours_s),
            stolen_s=max(0.0, spent["steal"]),
        )


def _problem(error: Exception) -> Problem:
    if isinstance(error, VirtollError):
        return error.problem if hasattr(error, "problem") else Problem(str(error))  # a StudyError has several
    if isinstance(error, ValidationError | RecursionError):
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "too deep"
        return Problem(f"the order cannot be read: {first}")
    return Problem(f"virtoll itself failed: {''.join(traceback.format_exception(error)[-3:])}")
