"""The hosts that wait at a scheduler of Dask's, as those of a fleet."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dask
import distributed

from virtoll.errors import HostError
from virtoll.run.fleet import Answer
from virtoll.run.handed import MOST_BYTES
from virtoll.run.hosting import answer
from virtoll.run.trusted import KEPT, MARK, REACH_S, SETTINGS, reach, remedy_of, security, settle, unreached

_MUST = ("distributed.scheduler.allowed-failures", "distributed.scheduler.work-stealing")
_LOOK_S = 2.0  # how often it is looked whether those who are at work, or hand over what they did, are still there
_HANDOVER_S = 120.0  # for the bytes of a turn that is over


@dataclass(frozen=True)
class _Came:
    """An answer that is there, or will never be."""

    host: str
    future: Any


class DaskCluster:
    """The hosts that wait at a scheduler, as `virtoll.run.fleet.Cluster`; one order at a time for each."""

    notes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, address: str, tls: Path | None, run: str) -> None:
        settle()
        self._address, self._run = address, run
        secure = security(address, tls)
        asyncio.run(reach(address, secure, "client"))
        self._inbox: queue.SimpleQueue[_Came] = queue.SimpleQueue()
        self._count = 0
        self._at_work: dict[str, Any] = {}  # by host, the future of its order; None: it was never given
        self._gone: deque[Answer] = deque()  # of those who left without a word, not yet told
        self._kept: dict[str, Any] = {}  # by host, what it holds as long as we are there
        try:
            self._client = distributed.Client(address, security=secure, timeout=REACH_S, set_as_default=False)
        except (TimeoutError, OSError) as error:
            raise HostError(unreached(error), where=address, remedy=remedy_of(error)) from None
        try:
            self._expect_settings()
            self._hosts = self._found()
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted(self._hosts))

    def ask(self, host: str, order: bytes) -> None:
        """Give an order; `next` gives the answer."""
        if self._client.status != "running":
            self._at_work[host] = None  # `next` will find that nobody is there to carry it
            return
        if host not in self._kept:
            self._kept[host] = self._submit(host, f"{KEPT}{host}:{self._run}", str, self._run)
        self._count += 1
        future = self._submit(host, f"virtoll-order:{host}:{self._run}:{self._count}", answer, host, order)
        self._at_work[host] = future
        future.add_done_callback(lambda done: self._inbox.put(_Came(host, done)))

    def next(self) -> Answer:
        """Wait for the next answer of anybody."""
        while not self._gone:
            try:
                came = self._inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                self._gone.extend(self._look())
                continue
            waited = self._at_work.get(came.host)
            if waited is not None and waited.key == came.future.key:  # else it was given up before
                del self._at_work[came.host]
                return self._answered(came)
        return self._gone.popleft()

    def close(self) -> None:
        """Leave; each host that still worked for us undoes what it has under way."""
        with suppress(Exception):
            self._client.close(timeout=REACH_S)

    def _submit(self, host: str, key: str, function: Callable[..., Any], *args: object) -> Any:
        return self._client.submit(
            function,
            *args,
            key=key,
            workers=[self._hosts[host]],
            allow_other_workers=False,
            resources={} if key.startswith(KEPT) else {MARK: 1},
            retries=0,
            pure=False,
        )

    def _answered(self, came: _Came) -> Answer:
        """What is lost is so by a scheduler that is gone, if it is: as it ends it loses its workers, and says that."""
        if came.future.status == "cancelled":
            return Answer(came.host, lost=self._no_scheduler)
        answer = self._heard(came)
        return answer if not answer.lost or self._has_scheduler() else Answer(came.host, lost=self._no_scheduler)

    def _heard(self, came: _Came) -> Answer:
        future = came.future
        if future.status == "error":
            return Answer(came.host, lost=_lost(future))
        try:
            size = self._client.nbytes([future.key], summary=False).get(future.key, 0)
            if size > MOST_BYTES:
                return Answer(came.host, data=b"", lost=f"its answer is {size:,} B: more than any host hands back")
            return self._handed_over(came)
        except Exception as error:
            return Answer(came.host, lost=f"its answer did not arrive: {type(error).__name__}: {error}")

    def _handed_over(self, came: _Came) -> Answer:
        """The bytes of an answer, from the worker that holds it: while that one is there, and for so long. They are
        fetched once: to wait for them again would be to fetch them again.
        """
        fetched = self._fetched(came.future)
        deadline_s = time.monotonic() + _HANDOVER_S
        while True:
            done, _ = futures.wait([fetched], timeout=_LOOK_S)
            if done:
                return Answer(came.host, data=fetched.result())
            if not self._is_there(came.host):
                fetched.cancel()
                return Answer(came.host, lost="its worker has left with its answer")
            if time.monotonic() > deadline_s:
                fetched.cancel()
                return Answer(came.host, lost=f"its answer was not here after {_HANDOVER_S:g} s")

    def _fetched(self, future: Any) -> futures.Future[Any]:
        """The bytes of an answer, some time: Dask's own loop fetches them."""
        loop: Any = self._client.loop  # of tornado's, which wraps asyncio's
        return asyncio.run_coroutine_threadsafe(self._client.gather(future, asynchronous=True), loop.asyncio_loop)

    def _is_there(self, host: str) -> bool:
        """Whether the scheduler still knows its worker; true as well where the scheduler does not say."""
        try:
            return bool(self._client.nthreads([self._hosts[host]]))
        except Exception:
            return self._client.status == "running"

    def _has_scheduler(self) -> bool:
        """Whether it is there and does not end."""
        try:
            return bool(self._client.run_on_scheduler(_is_at_work))
        except Exception:
            return False

    def _look(self) -> list[Answer]:
        """Give up all that are at work and have left the scheduler without a word. It is asked once, of all of them."""
        assert self._at_work, "nobody is at work"
        if self._client.status != "running":  # it may come back, but not what it knew of our orders
            return self._given_up(list(self._at_work), self._no_scheduler)
        never = [host for host, future in self._at_work.items() if future is None]
        if never:
            return self._given_up(never, self._no_scheduler)
        try:
            there = self._client.nthreads()
        except Exception:
            return []  # it does not say; the next look will tell
        left = [host for host in self._at_work if self._hosts[host] not in there]
        return self._given_up(left, "its worker has left")

    def _given_up(self, hosts: list[str], why: str) -> list[Answer]:
        for host in hosts:
            del self._at_work[host]
        return [Answer(host, lost=why) for host in hosts]

    @property
    def _no_scheduler(self) -> str:
        return f"the scheduler at {self._address} is gone"

    def _expect_settings(self) -> None:
        """HostError for a scheduler that would have something measured twice."""
        for name in _MUST:
            found = self._client.run_on_scheduler(dask.config.get, name)
            if found != SETTINGS[name]:
                raise HostError(
                    f"this scheduler has {name} = {found}: it could have a trial measured twice",
                    where=self._address,
                    remedy="start it by `virtoll scheduler`",
                )

    def _found(self) -> dict[str, str]:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        found = {str(each["name"]): where for where, each in workers.items() if MARK in each["resources"]}
        if not found:
            raise HostError(
                "no host waits at this scheduler",
                where=self._address,
                remedy=f"on each: virtoll worker {self._address}",
            )
        return found


def _is_at_work(dask_scheduler: Any) -> bool:
    """In the scheduler, which Dask hands over by this name."""
    return bool(dask_scheduler.status == distributed.Status.running)


def _lost(future: Any) -> str:
    """Why a task failed that never fails by itself: an answer that is an error is no failure."""
    error = future.exception(timeout=_HANDOVER_S)
    if isinstance(error, distributed.KilledWorker):
        return "its worker was lost"
    return f"its worker failed: {type(error).__name__}: {error}"
