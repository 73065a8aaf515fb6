"""The kinds of faults of studies on fakes."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import virtoll.run.execute
from faults import power
from faults.base import Kind, Place
from faults.fakes import Ends, Fault, hit, injected, lengths
from faults.hooks import Lines, Operations, SyncLog
from faults.laboratory import Laboratory, ScriptedAgent, SimulatedTime, plan
from virtoll.record.model import PlannedTrial
from virtoll.record.store import RunDirectory

_KILLED = Ends((-signal.SIGKILL,))
_STOPPED = Ends((130,))
_FULL = Ends((3, 4))


def _at_line(random_: random.Random, ends: Ends, act: Callable[[Path], None]) -> Fault:
    """A fault at a line of virtoll's, drawn from all that an undisturbed study executes."""
    at = random_.randint(1, lengths()[0])

    def install(top: Path) -> None:
        def strike(where: str) -> None:
            hit(top, where)
            act(top)

        Lines(at, strike).install()

    return Fault(f"line {at}", install, ends=ends)


def _at_operation(random_: random.Random, ends: Ends, act: Callable[[Path], None]) -> Fault:
    """A fault at an operation on a file, drawn from all of an undisturbed study."""
    at = random_.randint(1, lengths()[1])

    def install(top: Path) -> None:
        def strike(where: str) -> None:
            hit(top, where)
            act(top)

        Operations(top, at, strike).install()

    return Fault(f"operation {at}", install, ends=ends)


def _raise(number: signal.Signals, _top: Path) -> None:
    signal.raise_signal(number)


def _error(number: int, _top: Path) -> None:
    raise OSError(number, os.strerror(number))


def _no_memory(_top: Path) -> None:
    raise MemoryError


def _few_descriptors(_top: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) - 1, 4096))


def _no_processes(_top: Path) -> None:
    """From now on no process can be started."""

    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    subprocess.Popen.__init__ = refuse  # type: ignore[method-assign]


def _line(act: Callable[[Path], None], ends: Ends, random_: random.Random, _place: Place) -> Fault:
    return _at_line(random_, ends, act)


def _operation(act: Callable[[Path], None], ends: Ends, random_: random.Random, _place: Place) -> Fault:
    return _at_operation(random_, ends, act)


def _lasting(act: Callable[[Path], None], ends: Ends, random_: random.Random, place: Place) -> Fault:
    """What does not pass with the moment: every trial from then on may have been struck."""
    fault = _line(act, ends, random_, place)
    fault.strikes_all = True
    return fault


def _interrupted_twice(random_: random.Random, _place: Place) -> Fault:
    at, more = random_.randint(1, lengths()[0]), random_.randint(1, 12)

    def install(top: Path) -> None:
        operations = Operations(top)
        operations.install()

        def strike(where: str) -> None:
            hit(top, where)
            operations.arm(more, again)
            signal.raise_signal(signal.SIGINT)

        def again(_where: str) -> None:
            signal.raise_signal(signal.SIGINT)

        Lines(at, strike).install()

    return Fault(f"line {at}, again {more} operations later", install, ends=_STOPPED)


def _power_cut(random_: random.Random, _place: Place) -> Fault:
    at, fate = random_.randint(1, lengths()[0]), random.Random(random_.random())

    def install(top: Path) -> None:
        SyncLog(top / "synced").install()

        def strike(where: str) -> None:
            hit(top, where)
            os.kill(os.getpid(), signal.SIGKILL)

        Lines(at, strike).install()

    def afterwards(top: Path) -> str:
        _keep_promised(top)
        lost = power.lose(top / "runs", top / "synced", fate)
        shutil.rmtree(top / "state", ignore_errors=True)  # namespaces, mounts and processes are gone with the power
        return f": {', '.join(lost) or 'nothing was lost'}"

    return Fault(f"line {at}", install, ends=_KILLED, afterwards=afterwards, certain=True)


def _keep_promised(top: Path) -> None:
    """A copy of what virtoll had said to be made or sealed before the power was cut."""
    told = (top / "told").read_text().splitlines() if (top / "told").exists() else []
    if "created " not in told:
        return
    copy = top / "before-the-cut"
    shutil.copytree(top / "runs/out", copy)
    promised = sum(line.startswith("sealed ") for line in told)
    lines = (copy / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "trials.jsonl").write_bytes(b"".join(lines[:promised]))


def _disk_full(random_: random.Random, _place: Place) -> Fault:
    kib = random_.randrange(4, 100, 4)

    @contextlib.contextmanager
    def around(runs: Path) -> Iterator[None]:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(runs)], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,size=64m", str(runs)], check=True)

    def happened(_top: Path, code: int | None) -> bool:
        return code not in (0, 1)  # else it was large enough

    return Fault(f"{kib} KiB of disk", hit, ends=_FULL, around=around, happened=happened)


def _agent(what: str, random_: random.Random, _place: Place) -> Fault:
    """The agent of one trial is silent, ends, says rubbish or lies from one message on."""
    number, message = random_.choice(plan().trials).id, random_.randint(1, 22)
    rubbish = random_.randbytes(random_.randint(1, 200))
    lie = random_.choice((b"{}", b"[]", b"null", b'{"id":%d,"ok":[]}', b'{"id":%d,"ok":{}}', b'{"id":%d,"ok":null}',
                          b'{"id":%d,"ok":{"t_ns":"x"}}', b'{"id":%d,"error":{}}', b'{"id":%d,"error":7}'))  # fmt: skip

    def change(laboratory: Laboratory) -> None:
        top = laboratory.directory.parent.parent

        def mischief(count: int, _op: str, answer: bytes) -> bytes:
            if count < message:
                return answer
            (top / "hit").write_text(number)
            if what == "lies":
                return (lie % count if b"%d" in lie else lie) + b"\n"
            return {"silent": b"", "garbage": rubbish + b"\n", "half": answer[: len(answer) // 2]}[what]

        def agent(clock: SimulatedTime, trial: PlannedTrial) -> ScriptedAgent:
            scripted = ScriptedAgent(clock)
            if trial.id == number:
                scripted.mischief = mischief
            return scripted

        laboratory.agent = agent

    return Fault(f"{number}, message {message}" + (f", {lie!r}" if what == "lies" else ""), change=change)


def _guest_clock_stepped(random_: random.Random, _place: Place) -> Fault:
    """The instance's clock jumps in a window: that trial is invalid, and it alone."""
    number = random_.choice(plan().trials).id
    step_ns = round(random_.choice((-1, 1)) * 10 ** random_.uniform(6.7, 12.6))

    def change(laboratory: Laboratory) -> None:
        top = laboratory.directory.parent.parent

        def agent(clock: SimulatedTime, trial: PlannedTrial) -> ScriptedAgent:
            scripted = ScriptedAgent(clock)

            def mischief(_count: int, op: str, answer: bytes) -> bytes:
                if trial.id == number and op == "sample_start":
                    (top / "hit").write_text(number)
                    scripted.skew_ns = max(step_ns, -clock.monotonic_ns())  # such a clock is never below 0
                return answer

            scripted.mischief = mischief
            return scripted

        laboratory.agent = agent

    def judge(out: Path) -> list[str]:
        (record,) = (record for record in RunDirectory(out).records() if record.trial.id == number)
        is_void = record.status == "invalid" and record.reason.startswith("the clock held")
        return [] if is_void else [f"{number} is {record.status} though its clock jumped by {step_ns} ns"]

    return Fault(f"{number}, by {step_ns / 1e9:.3f} s", change=change, judge=judge)


def _host_clock_stepped(random_: random.Random, _place: Place) -> Fault:
    """CLOCK_REALTIME jumps at every look: no trial is the worse for it."""
    seed = random_.random()

    def install(top: Path) -> None:
        steps = random.Random(seed)

        class Stepped(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Stepped:
                if not (top / "hit").exists():
                    hit(top)
                return cls(2026, 1, 1, tzinfo=tz or UTC) + timedelta(days=steps.uniform(-9000, 9000))

        vars(virtoll.run.execute)["datetime"] = Stepped

    def judge(out: Path) -> list[str]:
        return [f"{record.trial.id} is {record.status}" for record in RunDirectory(out).records()
                if record.status != "valid"]  # fmt: skip

    return Fault(f"steps {seed:.3f}", install, judge=judge)


def _killed_twice(random_: random.Random, _place: Place) -> Fault:
    fault = _at_line(random_, _KILLED, partial(_raise, signal.SIGKILL))
    again = random_.randint(1, lengths()[0])

    def afterwards(top: Path) -> str:
        from faults import laboratory
        from faults.children import HANG_S, await_end, forked

        def work() -> int:
            Lines(again, lambda _where: signal.raise_signal(signal.SIGKILL)).install()
            return laboratory.session(top)

        code = await_end(forked(work, top / "again.log"), HANG_S)
        return f", then line {again} of the next" + ("" if code == -signal.SIGKILL else " (too late)")

    fault.afterwards = afterwards
    return fault


def _kind(name: str, sentence: str, weight: float, draw: Callable[[random.Random, Place], Fault]) -> Kind:
    return Kind(name, sentence, "fakes", weight, partial(injected, draw))


_SIGKILL, _SIGINT, _SIGTERM = (partial(_raise, n) for n in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
KINDS = [
    _kind("killed-at-a-line", "kill -9 at any line of store, run loop and ledger", 14,
          partial(_line, _SIGKILL, _KILLED)),
    _kind("killed-at-an-operation", "kill -9 before any operation on a file", 10,
          partial(_operation, _SIGKILL, _KILLED)),
    _kind("killed-twice", "kill -9 at a line, and again at one of the run that goes on", 8, _killed_twice),
    _kind("ctrl-c-at-a-line", "Ctrl-C at any line", 10, partial(_line, _SIGINT, _STOPPED)),
    _kind("ctrl-c-twice", "Ctrl-C at any line, and again while it is being obeyed", 10, _interrupted_twice),
    _kind("terminated-at-a-line", "SIGTERM at any line", 6, partial(_line, _SIGTERM, _STOPPED)),
    _kind("power-cut", "the power is cut at any line: what was not fsynced is lost, cut short or kept", 14, _power_cut),
    _kind("disk-full", "the run directory's file system is full from some write on", 10, _disk_full),
    _kind("write-fails", "ENOSPC from any operation on a file", 8, partial(_operation, partial(_error, errno.ENOSPC),
                                                                           _FULL)),
    _kind("disk-broken", "EIO from any operation on a file", 8, partial(_operation, partial(_error, errno.EIO), _FULL)),
    _kind("memory-out", "MemoryError at any line", 8, partial(_line, _no_memory, Ends((3, 4), excused=True))),
    _kind("descriptors-out", "no file can be opened from any line on", 5,
          partial(_lasting, _few_descriptors, Ends((3, 4), excused=True))),
    _kind("processes-out", "no process can be started from any line on", 5, partial(_lasting, _no_processes, _FULL)),
    _kind("agent-silent", "the agent answers no more from any message on", 6, partial(_agent, "silent")),
    _kind("agent-garbage", "the agent says rubbish from any message on", 5, partial(_agent, "garbage")),
    _kind("agent-half", "the agent says half of each answer from any message on", 4, partial(_agent, "half")),
    _kind("agent-lies", "the agent answers in the right form with the wrong contents", 5, partial(_agent, "lies")),
    _kind("guest-clock-stepped", "the instance's clock jumps in a window", 6, _guest_clock_stepped),
    _kind("host-clock-stepped", "CLOCK_REALTIME jumps about", 4, _host_clock_stepped),
]  # fmt: skip
