"""What all tests share: a state directory of their own, the lab, and the proof that nothing is left behind."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import secrets
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import leaks
from long import is_long
from patience import wait_for_boots, wait_for_loads
from shares import ByPlatform, rank
from stops import Stops
from turns import take_turns
from virtoll.binaries import binary
from virtoll.errors import HostError
from virtoll.helpers import helpers
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import locks
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import free_tag, wired
from virtoll.report.begin import HELPERS

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # the name of one of several that share the tests; else empty
# Each worker's children bear a mark of their own, which begins with the session's: leaks.py tells theirs apart.
os.environ[leaks.MARK] = f"{os.environ[leaks.MARK]}{_WORKER}." if _WORKER else f"{secrets.token_hex(8)}."

# A shell that starts the tests in the background leaves them deaf to Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nobody cuts the power of a test. Those of durability look at the calls; fault runs are processes of their own.
vars(os)["fsync"] = lambda _descriptor: None

# Where all else is alike, a runtime that raises the limit of open files as far as it may is seen to do so.
_SOFT, _HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
if _SOFT == _HARD:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_HARD - 1, _HARD))

take_turns()
wait_for_boots()
wait_for_loads()

# No clock decides a test, least of all how long one example took.
settings.register_profile("virtoll", deadline=None)
settings.load_profile("virtoll")


gc.disable()  # until all is collected: thousands of tests, of which none goes; then they are looked at no more


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("machine"):
                item.add_marker(pytest.mark.skip(reason="needs root: namespaces and cgroups are the machine's own"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPlatform:
    """How `make test` shares the tests between its workers."""
    return ByPlatform(config, log)


@pytest.fixture
def numbered_high() -> Iterator[Callable[[int], int]]:
    """Copies of descriptors, with numbers that select(2) does not know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as undo:
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

        def copied(descriptor: int) -> int:
            copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 1024)
            undo.callback(os.close, copy)
            return copy

        yield copied


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance decides no test: a study that names no seed gets the test's own, the same each time."""
    monkeypatch.setattr("virtoll.study.plan.a_seed", lambda: zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["VIRTOLL_STATE"] = str(tmp_path_factory.mktemp("state"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """See what the machine looks like before all tests of all workers."""
    if not _WORKER and not session.config.option.collectonly:
        session.config.stash[_BEFORE] = _Before()
        session.config.stash[_STOPS] = stops = Stops()
        session.config.add_cleanup(stops.watch())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell of the time in which nothing could begin."""
    if found := config.stash.get(_STOPS, Stops()).found:
        terminalreporter.section("nothing could begin on this machine (tests/stops.py)")
        terminalreporter.write_line("\n".join(found))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """When all workers have ended, tell what was left behind as one more error."""
    yield
    before = session.config.stash.get(_BEFORE, None)
    left = before.left() if before is not None else ""
    if left:
        name = "nothing is left behind"
        told = pytest.TestReport(name, ("tests/conftest.py", None, name), {}, "failed", left, "teardown")
        session.config.hook.pytest_runtest_logreport(report=told)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class _Before:
    """The machine before all tests."""

    def __init__(self) -> None:
        self._tests = Path("/tmp/virtoll-tests.lock").open("a")  # noqa: SIM115 (held until the end)
        fcntl.flock(self._tests, fcntl.LOCK_SH)
        self._run = _last_run()
        self._machine = leaks.snapshot()

    def left(self) -> str:
        """What is there now that was not; nothing is said when other tests or a virtoll were at work meanwhile."""
        if not locks(self._tests.fileno()) or self._run is None or self._run != _last_run():
            return ""
        try:
            leaks.assert_nothing_left(self._machine)
        except AssertionError as error:
            return str(error)
        return ""


_BEFORE = pytest.StashKey[_Before]()
_STOPS = pytest.StashKey[Stops]()


def _last_run() -> int | None:
    """When a virtoll last began to measure here (0: never), or None while it does: its lock tells."""
    path = Path("/var/lib/virtoll/lock")
    if not path.exists():
        return 0
    with path.open() as lock:
        return path.stat().st_mtime_ns if locks(lock.fileno()) else None


@pytest.fixture(name="undrawn")
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without their figures, which take longest in them; of a test marked ``drawn`` with them."""
    if request.node.get_closest_marker("drawn"):
        return
    import undrawn  # charts are slow to import, and most tests draw none
    from virtoll.report import begin, build

    monkeypatch.setattr(begin, "_load", undrawn.nothing)
    for name, instead in undrawn.UNDRAWN.items():
        monkeypatch.setattr(build, name, instead)


@pytest.fixture(scope="module")
def helped() -> Iterator[None]:
    """The processes that help with reports, begun once for all tests of a module: that they begin and end with each
    report is told by `test_helpers`.
    """
    with helpers(HELPERS):
        yield


@pytest.fixture(scope="session")
def host() -> LocalHost:
    """This machine."""
    return LocalHost()


@pytest.fixture
def client(host: LocalHost, tmp_path: Path) -> Client:
    """Where a load stands: on this machine, in no lab. Skipped where the native generator is not built."""
    try:
        binary("virtoll-load")
    except HostError as error:
        pytest.skip(str(error))
    return Client(host, Confinement(), tmp_path, cpus=1)


@pytest.fixture(scope="module")
def ledger(host: LocalHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger for what a module's tests make."""
    with ledgers.opened(host, tmp_path_factory.mktemp("ledger"), "test") as ledger:
        yield ledger


@pytest.fixture(scope="module")
def lab(host: LocalHost, ledger: Ledger) -> Iterator[Lab]:
    """A wired lab for a module's tests."""
    with wired(host, ledger, free_tag(), cpu_plan(host, 1)) as lab:
        yield lab
