"""A fleet on this machine's loopback: Dask as it is shipped, and hosts whose labs are fakes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from authority import Authority
from on_fakes import STUDY, on_fakes
from virtoll import cli
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.record.model import Environment, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.run import cluster, hosting, one_by_one, trusted, worker
from virtoll.run.hosting import Hosting, Order
from virtoll.run.stage import Stage
from virtoll.run.trusted import settle

_T = TypeVar("_T")
PATIENCE_S = 600.0  # of whoever waits for a thread of Dask's; no test's outcome hangs on it
SMALL = STUDY.replace("blocks = 2", "blocks = 3\nseed = 4")  # native (twice) and docker: nine trials a host


def wait_for_fleets() -> None:
    """Have whoever is called answer when it can: a thread, which Dask begins for each name it looks up, is made in
    minutes where nothing can begin (`stops` has why). How long a client looks for a scheduler that it has lost is not
    changed: that is waited for.
    """
    trusted.REACH_S = cluster._HANDOVER_S = PATIENCE_S


class Loop:
    """Dask's loop, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, what: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@dataclass
class Host:
    """One worker, and the thread that carries out what it is given."""

    name: str
    worker: Any
    executor: one_by_one.OneByOne
    thread: threading.Thread

    async def die(self) -> None:
        """As `kill -9` would have it: the connections end, and nobody says a word."""
        self.worker.batched_stream.comm.abort()


@dataclass
class Yard:
    """Hosts at a scheduler, and `virtoll run --cluster` with their address.

    ``environments``, ``tolls`` and ``spread`` are by host; ``before`` is called in each trial's beginning.
    """

    directory: Path
    monkeypatch: pytest.MonkeyPatch
    tls: Path | None = None
    tolls: dict[str, Mapping[str, float]] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    spread: float = 0.01
    instead: dict[tuple[str, str], object] = field(default_factory=dict)  # by host and kind of order: what is answered
    fail: dict[str, Any] = field(default_factory=dict)
    before: Callable[[PlannedTrial], None] = lambda _trial: None
    performed: list[str] = field(default_factory=list)
    hosts: dict[str, Host] = field(default_factory=dict)
    scheduler: Any = None
    loop: Loop = field(default_factory=Loop)
    _all: list[Host] = field(default_factory=list)

    def __post_init__(self) -> None:
        wait_for_fleets()
        if self.tls is None:
            self.tls = Authority.made(self.directory / "authority").host("all of them")
        on_fakes(self.monkeypatch, {})

        @contextmanager
        def lab(_stage: Stage, _images: object, pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
            host = pending[0].host
            tolls = self.tolls.get(host, {"native": 1.0, "docker": 1.25})
            yield FakeExperiment(
                tolls, spread=self.spread, fail=self.fail, performed=self.performed, before=self.before
            )

        self.monkeypatch.setattr(Stage, "lab", lab)
        self.monkeypatch.setattr(hosting, "alone", lambda _host: nullcontext([]))
        self.monkeypatch.setattr(hosting, "_HOSTINGS", {})
        self.monkeypatch.setattr(hosting, "hosting", self.hosting)
        self.monkeypatch.setattr(worker, "hosting", self.hosting)
        self.monkeypatch.setattr(one_by_one, "_ARRIVES_S", 0.0)  # no interrupt is on its way (`start`)
        self.hostings: dict[str, Hosting] = {}
        settle(self.directory)
        self.start_scheduler()

    def hosting(self, name: str) -> Hosting:
        """Each host's own; by its thread it is known which environment is asked for."""
        return self.hostings.setdefault(name, _Told(name, self))

    def start_scheduler(self) -> None:
        self.scheduler = self.loop.do(_made(worker.scheduler, "tls://127.0.0.1:0", self.tls))

    @property
    def address(self) -> str:
        return str(self.scheduler.address)

    def start(self, *names: str) -> None:
        """Workers of these names."""
        for name in names:
            for killed in (host for host in self._all if host.name == name):
                killed.executor.shutdown()
                killed.thread.join(PATIENCE_S)  # of a killed process it would be gone with all it held
            executor = one_by_one.OneByOne(lambda: None)  # a thread that is not the main one cannot be interrupted
            thread = threading.Thread(target=worker.carry_out, args=(executor, name), daemon=True)
            thread.start()
            there = self.loop.do(_made(worker.worker, self.address, name, self.tls, executor))
            self.hosts[name] = Host(name, there, executor, thread)
            self._all.append(self.hosts[name])

    def kill(self, name: str) -> None:
        """Its process is gone with all it knew."""
        self.hostings.pop(name)
        self.loop.do(self.hosts.pop(name).die())

    def lose_scheduler(self) -> None:
        self.loop.do(self.scheduler.close())

    @property
    def out(self) -> Path:
        return self.directory / "run"

    @property
    def run_directory(self) -> RunDirectory:
        return RunDirectory(self.out)

    def run(self, *options: str, text: str = SMALL) -> int:
        path = self.directory / "small.toml"
        path.write_text(text)
        return self.virtoll("run", str(path), "--out", str(self.out), *options)

    def go_on(self, *options: str) -> int:
        return self.virtoll("run", str(self.out), *options)

    def virtoll(self, *words: str) -> int:
        with pytest.raises(SystemExit) as end:
            cli.main([*words, "--cluster", self.address, "--tls", str(self.tls)])
        assert isinstance(end.value.code, int)
        return end.value.code

    def end(self) -> None:
        """Nothing of it is left running."""
        for host in self._all:
            self.loop.do(host.worker.close(executor_wait=False))
            host.executor.shutdown()
            host.thread.join(PATIENCE_S)
        self.loop.do(self.scheduler.close())
        self.loop.end()
        assert not [host.name for host in self._all if host.thread.is_alive()]


class _Told(Hosting):
    """A host whose machine is as the yard says."""

    def __init__(self, name: str, yard: Yard) -> None:
        super().__init__(name)
        self._yard = yard

    def answer(self, data: bytes) -> bytes:
        kind = Order.model_validate_json(data).kind
        if (self._name, kind) in self._yard.instead:
            return self._yard.instead[self._name, kind]  # type: ignore[return-value]
        there = self._yard.environments.get(self._name, fake_environment(machine={"cpu_model": "fake"}))
        environment_here.set(there)
        return super().answer(data)


class _Here(threading.local):
    """The environment of the host whose thread asks."""

    def set(self, found: Environment) -> None:
        self.found = found


environment_here = _Here()


async def _made(make: Callable[..., Coroutine[Any, Any, _T]], *arguments: Any) -> _T:
    return await make(*arguments)
