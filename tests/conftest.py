"""What all tests share: a state directory of their own, the lab, and the proof that nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import leaks
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired

os.environ[leaks.MARK] = secrets.token_hex(8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("machine"):
                item.add_marker(pytest.mark.skip(reason="needs root: namespaces and cgroups are the machine's own"))


@pytest.fixture(scope="session", autouse=True)
def _nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compare the machine before and after all tests, unless other tests or a virtoll were at work meanwhile."""
    os.environ["VIRTOLL_STATE"] = str(tmp_path_factory.mktemp("state"))
    with Path("/tmp/virtoll-tests.lock").open("a") as tests:
        fcntl.flock(tests, fcntl.LOCK_SH)
        run = _last_run()
        before = leaks.snapshot()
        yield
        if _is_free(tests.fileno()) and run is not None and run == _last_run():
            leaks.assert_nothing_left(before)


def _is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _last_run() -> int | None:
    """When a virtoll last began to measure here (0: never), or None while it does: its lock tells."""
    path = Path("/var/lib/virtoll/lock")
    if not path.exists():
        return 0
    with path.open() as lock:
        return path.stat().st_mtime_ns if _is_free(lock.fileno()) else None


@pytest.fixture(scope="session")
def host() -> LocalHost:
    """This machine."""
    return LocalHost()


@pytest.fixture(scope="module")
def ledger(host: LocalHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger for what a module's tests make."""
    with ledgers.opened(host, tmp_path_factory.mktemp("ledger"), "test") as ledger:
        yield ledger


@pytest.fixture(scope="module")
def lab(host: LocalHost, ledger: Ledger) -> Iterator[Lab]:
    """A wired lab for a module's tests."""
    with wired(host, ledger, secrets.token_hex(2), cpu_plan(host, 1)) as lab:
        yield lab
