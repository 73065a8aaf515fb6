"""The load generator on another machine, which ssh reaches (`--generator`): who connects, looks, and wires labs.

What carries orders out there is pushed as `--host` pushes it (`virtoll.run.by_ssh`); `virtoll.run.posting` is there.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from virtoll.errors import GoneError, HostError, Problem, TrialError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import CpuPlan, Lab, Uplink
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import free_tag, wired
from virtoll.loads.base import Load
from virtoll.plain import printable
from virtoll.post import clocks, nics
from virtoll.post.orders import MOST_ANSWER_BYTES, Count, Nic, Order, Part, Reply, Standing, part_of, unpacked
from virtoll.post.sessions import Channel, far
from virtoll.post.wires import Wires
from virtoll.record.model import ELSEWHERE, Environment
from virtoll.run import frames
from virtoll.run.apart import OPTION
from virtoll.run.by_ssh import Line, destination_of, host_name
from virtoll.run.fleet import heard
from virtoll.run.obeying import POST
from virtoll.run.pushed import Pushed
from virtoll.study.model import Study
from virtoll.trial.treatment import Driven, treatments

if TYPE_CHECKING:
    from virtoll.run.request import Request

_MOST_DIGEST_CHARS = 200
_SILENCE_S = 60.0  # without a sign of life, which comes each `BEAT_S`
_MOST_STANDING_CHARS = 65_536  # twenty times what a machine tells of itself
_LOST = "the generator's machine was lost"


class SshChannel:
    """The way to it (`virtoll.post.sessions.Channel`). An answer that was not awaited leaves nobody to ask."""

    def __init__(self, line: Line, where: str) -> None:
        self._line, self.where, self._gone = line, where, ""

    def ask(self, order: Order) -> Reply:
        """Have an order carried out. TrialError where it cannot be; GoneError where nobody answers any more."""
        if self._gone:
            raise GoneError(self._gone, where=self.where)
        try:
            self._gone = "its answer was not awaited"  # unless it is
            self._line.tell(order.model_dump_json().encode())
            answer = b""
            while not answer:  # an empty one says that somebody is there
                answer = self._line.next(MOST_ANSWER_BYTES, _SILENCE_S)
        except (OSError, frames.FramesError) as error:
            why = getattr(error, "strerror", None) or error
            self._gone = f"{_LOST}: {self._line.lost(str(why))}"
            raise GoneError(self._gone, where=self.where) from None
        self._gone = ""
        try:
            return unpacked(answer)
        except TrialError as error:
            problem = error.problem
            raise TrialError(problem.what, where=_there(self.where, problem.where), remedy=problem.remedy) from None


@dataclass(frozen=True)
class Posted:
    """The other machine, for one run."""

    channel: SshChannel
    destination: str
    here: Nic  # without what a lab upon it makes the kernel end (`nics.LRO`)
    standing: Standing
    clock: clocks.Reading
    digest: str  # of what was pushed
    image: str = ""  # the digest of that of the loads' own programs, made there; "": they have none

    @property
    def there(self) -> Nic:
        """Its network device."""
        assert self.standing.nic is not None
        return self.standing.nic

    @property
    def name(self) -> str:
        """What reports call it."""
        return host_name(self.destination)

    def told_in(self, environment: Environment) -> Environment:
        """The environment of a run on this machine, with the generator's: what must stay the same, and what may not."""
        standing, machine = self.standing, dict(self.standing.machine)
        may_change = {"memory_bytes": machine.pop("memory_bytes", None), "load_average": standing.load_average}
        same = {
            **machine,
            "cpus": standing.cpus,
            "nic": self.there.model_dump(),
            "nic here": self.here.model_dump(),
            "congestion control": standing.congestion,
            **({"load generators": standing.tools} if standing.tools else {}),
            **({"image": self.image} if self.image else {}),
        }
        clock = {"ahead_ns": self.clock.ahead_ns, "within_ns": self.clock.within_ns}
        server = self.destination.removeprefix("ssh://").rpartition("@")[2].rstrip("/")
        notes = {"at": server, "performer": self.digest, "clock": clock, **may_change}
        warnings = [f"the generator's machine ({self.name}): {printable(line)}" for line in standing.warnings]
        return environment.model_copy(
            update={
                "comparable": {**environment.comparable, ELSEWHERE: same},
                "notes": {**environment.notes, ELSEWHERE: notes},
                "warnings": [*environment.warnings, *warnings],
            }
        )

    @contextmanager
    def steering(self, ledger: Ledger, cpus: CpuPlan) -> Iterator[None]:
        """What comes over our device is worked on by the instance's CPUs."""
        with nics.steered(ledger, self.here.name, cpus.instance):
            yield

    def uplink(self) -> Uplink:
        """That of one more lab, with addresses of its own: a switch may carry several. Locally administered (bit 1 of
        the first octet), and "vt" in the next two; the last bit is the generator's.
        """
        drawn = secrets.randbits(24) & ~1
        near, far_mac = (f"02:76:74:{at >> 16:02x}:{at >> 8 & 255:02x}:{at & 255:02x}" for at in (drawn, drawn | 1))
        return Uplink(self.here.name, near, self.there.name, far_mac, min(self.here.mtu, Uplink.mtu))

    @contextmanager
    def stood(self, lab: Lab, uplink: Uplink) -> Iterator[Lab]:
        """The lab, with its generator's side wired there for the length of the block. HostError where it cannot be."""
        order, ours = Order(kind="wire", lab=lab.run_tag, uplink=uplink), Wires.of(LocalHost(), uplink.nic)
        with ExitStack() as stack:
            try:
                side = stack.enter_context(far(self.channel, order, self.standing.cpus, lab.generator.cpus, ours))
            except TrialError as error:
                raise HostError(error.problem.what, where=error.problem.where, remedy=error.problem.remedy) from None
            yield replace(lab, far=side)


@contextmanager
def posted(request: Request, study: Study, say: Callable[[str], None]) -> Iterator[Posted | None]:
    """The machine that a request names, for the length of the block; None, where it names none.

    HostError where it cannot be reached or used, or no lab can stand upon the network devices.
    """
    if request.generator is None:
        yield None
        return
    assert request.nic is not None
    here, there = request.nic
    destination = destination_of(request.generator, OPTION)
    if problems := nics.problems_of(LocalHost(), here, "this machine's"):
        raise _refused(problems)
    pushed, name = Pushed.of_here(), host_name(destination)
    say(f"{name}: what drives the loads is brought there ({pushed.size // 10**6} MB)")
    line = Line(destination, name, pushed, OPTION, [POST])
    try:
        line.begin()
        channel = SshChannel(line, f"the generator's machine, {name}")
        standing = _looked(channel, study, there)
        nic, clock, with_lro = nics.nic(LocalHost(), here), _clock(channel), nics.with_lro(LocalHost(), here)
        ours = nic.model_copy(update={"offloads": [each for each in nic.offloads if each != nics.LRO]})
        found = Posted(channel, destination, ours, standing, clock, pushed.digest)
        _expect_alike(found)
        say(_told(found))
        for each in with_lro:
            say(f"{each}: the kernel ends its large receive offload, for good: ethtool -K {each} lro on puts it back")
        expect_linked(found)
        try:
            yield replace(found, image=_image(channel, study, name, say))
        finally:
            _end(channel, destination, say)
    finally:
        line.end()


def _end(channel: Channel, destination: str, say: Callable[[str], None]) -> None:
    """Have all undone there, and tell where it was not. Whoever interrupts waits for no more than `Line.end`."""
    if is_being_tidied_up_after():
        return
    try:
        channel.ask(Order(kind="end"))
    except GoneError:
        return  # which is told, where it was asked for anything
    except TrialError as error:
        told = f"warning: {error.problem.where}: not all was undone there: {error.problem.what}"
        with suppress(OSError):  # nobody may be there to be told
            say(f"{told}; `virtoll clean --host {shlex.quote(destination)}` removes it")


def _image(channel: Channel, study: Study, name: str, say: Callable[[str], None]) -> str:
    """Have the image of the loads' own programs made there; its digest, "" where they have none."""
    loads = [load for load in _loads(study) if not load.programs.is_nothing]
    if not loads:
        return ""
    say(f"{name}: the image of the load's own programs is made there")
    found: str = _told_by(channel, Order(kind="prepare", loads=_parts(loads)), str)
    return found[:_MOST_DIGEST_CHARS]


def _loads(study: Study) -> list[Load]:
    return [each.work.load for each in treatments(study) if isinstance(each.work, Driven)]


def _parts(loads: Sequence[Load]) -> list[Part]:
    """Each once."""
    parts = [part_of(load) for load in loads]
    return [each for i, each in enumerate(parts) if each not in parts[:i]]


def _asked(channel: Channel, order: Order) -> Reply:
    """What is answered before a run. HostError where it is not."""
    try:
        return channel.ask(order)
    except (TrialError, GoneError) as error:
        raise HostError(
            error.problem.what, where=f"{OPTION} {error.problem.where}", remedy=error.problem.remedy
        ) from None


def _told_by(channel: Channel, order: Order, kind: Any) -> Any:
    """The same, as of this type."""
    try:
        return _asked(channel, order).read(kind)
    except TrialError as error:
        raise HostError(error.problem.what, where=f"{OPTION} {channel.where}") from None


def _there(machine: str, where: str) -> str:
    """A place that the other machine names: to itself it is "localhost", which here is another one."""
    return machine if where in ("", LocalHost.where) or machine.endswith(f" {where}") else f"{machine}: {where}"


def _looked(channel: Channel, study: Study, nic: str) -> Standing:
    """The machine. HostError with all that is missing there."""
    standing: Standing = _told_by(channel, Order(kind="look", nic=nic, loads=_parts(_loads(study))), Standing)
    if standing.problems:
        told = (Problem(*map(printable, each)) for each in standing.problems)
        raise _refused([replace(each, where=_there(channel.where, each.where)) for each in told])
    if standing.nic is None or len(standing.model_dump_json()) > _MOST_STANDING_CHARS:
        raise HostError("what it tells of itself cannot be kept", where=channel.where)
    return standing


def _clock(channel: Channel) -> clocks.Reading:
    try:
        return clocks.read(lambda: channel.ask(Order(kind="clock")).read(Count))
    except (TrialError, GoneError) as error:
        raise HostError(error.problem.what, where=f"{OPTION} {channel.where}") from None


def _refused(problems: Sequence[Problem]) -> HostError:
    told = [f"\n  {each}" for each in problems]
    return HostError("the generator cannot stand on another machine:" + "".join(told), where=OPTION)


def expect_linked(found: Posted) -> None:
    """HostError where no lab can be wired, or the two devices are on no one link: a lab is made, and undone.

    That is known before anything is made ready, and before there is a run directory whose devices are wrong for good.
    """
    host, tag, uplink = LocalHost(), free_tag(), found.uplink()
    directory = ledgers.state_directory() / "ledger"
    try:
        with (
            ledgers.opened(host, directory, f"link-{tag}") as ledger,
            wired(host, ledger, tag, cpu_plan(host, 1), uplink=uplink) as lab,
            found.stood(lab, uplink),
        ):
            pass
    except GoneError as error:  # no trial comes again: none was begun
        raise HostError(error.problem.what, where=f"{OPTION} {error.problem.where}") from None


def _expect_alike(found: Posted) -> None:
    """HostError where the two devices would not carry the same."""
    here, there = found.here, found.there
    if here.mtu != there.mtu:
        what = f"the MTU of {here.name} here is {here.mtu}, and that of {there.name} there is {there.mtu}"
        raise HostError(what, where=OPTION, remedy=f"give both the same: ip link set {here.name} mtu ...")


def _told(found: Posted) -> str:
    """In a line; also where the measured link is ssh's own."""
    there, here = found.there, found.here
    speed = f", {there.speed_mbit_per_s:,} Mbit/s" if there.speed_mbit_per_s else ""
    told = f"{found.name}: {found.standing.cpus} CPUs; {here.name} here, {there.name} there{speed}"
    if _way_to(found.standing.server) == here.name:
        told += f"; ssh uses {here.name}, too: an order, an answer and a sign of life each 10 s pass it"
    return heard(told)


def _way_to(address: str) -> str:
    """The device that leads to an address; "" where nobody knows. (The other machine says it: it may be anything.)"""
    try:
        if "%" in address:  # a zone is that machine's own
            return ""
        ip_address(address)
    except ValueError:
        return ""
    done = LocalHost().run(["ip", "-o", "route", "get", address], check=False)
    words = done.text.split()
    return words[words.index("dev") + 1] if done.returncode == 0 and "dev" in words[:-1] else ""
