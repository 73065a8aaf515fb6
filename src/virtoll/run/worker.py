"""What waits for studies: a fleet's scheduler, and the worker on each of its hosts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from virtoll.errors import HostError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.run.hosting import hosting, tell_left
from virtoll.run.one_by_one import OneByOne
from virtoll.run.trusted import KEPT, MARK, REACH_S, host_and_port, reach, security, settle

_HTTP = "127.0.0.1:0"  # where Dask's web server, which cannot be left out, listens and answers nothing


async def scheduler(address: str, tls: Path | None) -> distributed.Scheduler:
    """A scheduler that listens at an address of this machine."""
    secure = security(address, tls)
    scheme, _, rest = address.partition("://")
    host, port = host_and_port(address, rest)
    made: distributed.Scheduler = await distributed.Scheduler(
        host=host,
        port=port,
        protocol=f"{scheme}://",
        security=secure,
        dashboard=False,
        dashboard_address=_HTTP,
        allowed_failures=0,
    )
    return made


async def worker(address: str, name: str, tls: Path | None, executor: OneByOne) -> distributed.Worker:
    """The worker of this host, which listens where the scheduler is reached from, and nowhere else."""
    secure = security(address, tls)
    await reach(address, secure, "worker")
    scheme, _, rest = address.partition("://")
    host, port = host_and_port(address, rest)
    made: distributed.Worker = await distributed.Worker(
        address,
        name=name,
        nthreads=1,
        executor=executor,
        resources={MARK: 1},
        host=_own_address(host, port),
        protocol=f"{scheme}://",
        security=secure,
        memory_limit=0,
        dashboard=False,
        dashboard_address=_HTTP,
        death_timeout=REACH_S,
        plugins=(_Leaving(name, executor),),
    )
    try:
        await reach(made.address, secure, "worker")  # as the scheduler will, to fetch what is handed back
    except HostError:
        await made.close(executor_wait=False)
        raise
    return made


def _own_address(host: str, port: int) -> str:
    """That of this host, as the scheduler sees it. Nothing is sent."""
    family, kind, *_, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)
        return str(probe.getsockname()[0])


class _Leaving(WorkerPlugin):
    """Ends a run's session when the one who gave its orders is gone: then Dask frees what it had the worker keep."""

    def __init__(self, name: str, executor: OneByOne) -> None:
        self.name = f"virtoll-leaving-{name}"
        self._host, self._executor = name, executor

    def transition(self, key: object, start: str, finish: str, **_: object) -> None:
        """Dask tells of each step of each task."""
        if start == "memory" and finish in ("released", "forgotten") and str(key).startswith(KEPT):
            run = str(key).rpartition(":")[2]
            self._executor.submit(hosting(self._host).end, run).add_done_callback(self._tell)
            if hosting(self._host).run == run:
                self._executor.cut_short()

    def _tell(self, ended: Future[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            tell_left(self._host, error)


def carry_out(executor: OneByOne, name: str) -> None:
    """In this thread, all that a host is given, until its executor is shut down; nothing of any run is left then."""
    try:
        executor.run()
    finally:
        hosting(name).end()


def serve_scheduler(address: str, tls: Path | None) -> int:
    """`virtoll scheduler`: until Ctrl-C."""
    with TemporaryDirectory(prefix="virtoll-scheduler-") as directory:
        settle(Path(directory))
        _serve_scheduler(address, tls)
    return 0


def _serve_scheduler(address: str, tls: Path | None) -> None:
    async def live() -> None:
        there = await scheduler(address, tls)
        print(f"virtoll: a scheduler listens at {there.address}; Ctrl-C ends it", flush=True)
        try:
            await there.finished()
        finally:
            await there.close()

    _in_words(lambda: asyncio.run(live()), address)


def serve_worker(address: str, name: str, tls: Path | None) -> int:
    """`virtoll worker`: until Ctrl-C, or until the scheduler is gone. HostError says which it was, and what failed."""
    with ledgers.scratch(LocalHost(), "worker") as directory:
        settle(directory)
        _serve_worker(address, name, tls)
    return 0


def _serve_worker(address: str, name: str, tls: Path | None) -> None:
    # Not SIGINT: a shell that starts a command in the background has it ignored.
    executor = OneByOne(lambda: os.kill(os.getpid(), signal.SIGTERM))
    there: list[distributed.Worker] = []
    failed: list[BaseException] = []

    async def live() -> None:
        there.append(await worker(address, name, tls, executor))
        print(f"virtoll: {name} waits for studies from {address}; Ctrl-C ends it", flush=True)
        await there[0].finished()

    def in_the_background() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            failed.append(error)
        finally:
            executor.shutdown()

    background = threading.Thread(target=in_the_background, name="dask", daemon=True)
    background.start()
    try:
        carry_out(executor, name)
    finally:
        if there:
            with suppress(Exception):
                there[0].loop.add_callback(there[0].close, executor_wait=False)
        background.join(REACH_S)

    def said() -> None:
        if failed:
            raise failed[0]
        raise HostError(
            "the scheduler is gone", where=address, remedy="start both again; runs go on where they stopped"
        )

    _in_words(said, address)


def _in_words(do: Callable[[], None], address: str) -> None:
    """What Dask raises where an address or a name cannot be used, as a HostError."""
    try:
        do()
    except (TimeoutError, OSError, ValueError, RuntimeError) as error:
        what, remedy = str(_innermost(error)), "see that the address is this machine's, or can be reached"
        if "name taken" in what:
            what, remedy = f"another host is called so already ({what})", "call this one otherwise: --name NAME"
        raise HostError(what, where=address, remedy=remedy) from None


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
