"""Loads that are programs of somebody else's: started for each window in a root filesystem of their own, where the
generator stands, and read by what they print.
"""

from __future__ import annotations

import math
import shlex
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from virtoll.agent import ExecResult
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.images.base import Wanted
from virtoll.images.config import DEFAULT_PATH
from virtoll.lab.client import SAID, Client, Programs
from virtoll.loads.base import Load, Measurement, Session, at_intensity
from virtoll.offers import Offer
from virtoll.record.model import INTENDED, Events, Window
from virtoll.units import within

_GRACE_S = 30.0  # beyond the time that a program was told to take
_SEED_S = 600.0
_LEAST_SEED_BYTES = 256  # that come back meanwhile: a connection that is refused brings a hundred
_SAID_BYTES = 1500  # of its output, in an error
ENVIRONMENT = {"PATH": DEFAULT_PATH, "HOME": "/tmp", "LC_ALL": "C"}


@dataclass(frozen=True)
class ProgramSettings:
    """Settings of any program. Closed loop: ``users`` ask again when answered; open: ``rate`` sets the schedule."""

    loop: Literal["closed", "open"] = "closed"
    users: int = within(1, least=1, most=100_000)
    rate_per_s: float = within(100.0, least=1e-3)
    time_limit_ns: int = within(10 * 10**9, least=10**9)
    warm_up_ns: int = 10**9  # the same program for so long (whole seconds) beforehand; 0: none


@dataclass(frozen=True)
class Figures:
    """What a program's output says of its window. Missing is None, never 0."""

    work: float
    failed: int | None = None  # None: it does not tell, so nothing is known of single events
    elapsed_s: float | None = None  # how long its window was, from its start on; None: to its end
    asks_s: float | None = None  # in open loop, for how long it asked; None: as long as that
    lead_s: float = 0.0  # what it did before its window began, where that is not at its start
    values: Mapping[str, float] = field(default_factory=dict)  # by the quantities' keys
    percentiles_ns: Mapping[str, int] = field(default_factory=dict)  # kept where ``failed`` is told

    def __post_init__(self) -> None:
        if self.work < 0 or (self.failed or 0) < 0:
            raise ValueError(f"{self.work:g} were done and {self.failed or 0:g} failed, which cannot be")
        if self.elapsed_s is not None and self.elapsed_s <= 0:
            raise ValueError(f"a window of {self.elapsed_s:g} s is none")


class ProgramLoad(Load):
    """A program of somebody else's. Derive from it: what is run, and how its output is read."""

    settings: Any

    @property
    def loop(self) -> Literal["closed", "open"]:
        """As it is set."""
        loop: Literal["closed", "open"] = self.settings.loop
        return loop

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:  # noqa: ARG002
        """What a program makes of its threads is its own affair."""
        return 1 if cpus <= 1 else None

    @property
    def programs(self) -> Wanted:
        """Its Debian packages."""
        return Wanted(packages=tuple(sorted(self.packages)))

    # Whom it runs as, in its own root filesystem: nobody and nogroup, by number, whatever its image calls so.
    user: ClassVar[str] = "65534:65534"

    @property
    def environment(self) -> Mapping[str, str]:
        """Beside PATH, HOME and LC_ALL."""
        return {}

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002 - its programs come with its own image
        """Nothing of the machine's is needed."""
        return []

    @abstractmethod
    def command(self, settings: Any, offer: Offer, seconds: int) -> Sequence[str]:
        """What is run for a window of so many seconds."""

    @abstractmethod
    def figures(self, said: str) -> Figures:
        """Read what it printed. ValueError says what was looked for and not found."""

    def files(self, settings: Any, offer: Offer) -> Mapping[str, bytes]:  # noqa: ARG002
        """What its program reads: absolute paths in its root filesystem, and what lies there."""
        return {}

    def seed(self, settings: Any, offer: Offer) -> Sequence[str]:  # noqa: ARG002
        """What is run once on each deployment before all else; empty for nothing."""
        return ()

    def seeded(self, said: str) -> float | None:  # noqa: ARG002
        """A number of the seed's output that must be above 0; None: seen by the bytes that it exchanged."""
        return None

    @contextmanager
    def session(self, client: Client, offer: Offer) -> Iterator[Session]:
        """Run the seed, if there is one and it has not run yet. TrialError where it fails, or changes nothing."""
        assert client.programs is not None
        session = ProgramSession(self, client, client.programs, offer)
        for path, data in self.files(self.settings, offer).items():
            client.programs.agent.put(path, data)
        if not client.is_seeded:
            session.seed()
        yield session


@dataclass(frozen=True)
class ProgramSession(Session):
    """A program at one offer, started anew for each window."""

    load: ProgramLoad
    client: Client
    programs: Programs
    offer: Offer

    def seed(self) -> None:
        """Run the seed, and see that it did something."""
        words = self.load.seed(self.load.settings, self.offer)
        if not words:
            return
        before = self.client.received_bytes()
        said = self._run(words, _SEED_S, "seed")
        number = _read(self.load.seeded, said, "seed")
        if number is not None and number <= 0:
            raise TrialError("the seed seeded nothing: what `seeded` reads is 0", where="[load] seed")
        if number is None and self.client.received_bytes() - before < _LEAST_SEED_BYTES:
            raise TrialError(
                "the seed seeded nothing: nothing was exchanged with the service",
                where="[load] seed",
                remedy="let it reach {address}, or say in `seeded` how its effect is read",
            )

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Run it for ``duration_ns`` or its settings' ``warm_up_ns`` (whole seconds); only its words are kept."""
        settings = self.load.settings
        if (length_ns := settings.warm_up_ns if duration_ns is None else duration_ns) > 0:
            seconds = _seconds(length_ns)
            self._run(self.load.command(settings, self.offer, seconds), seconds + _GRACE_S, "run")

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`; TrialError also where a number cannot be read in what it printed."""
        settings = at_intensity(self.load.settings, self.load.loop, intensity, users="users")
        seconds = _seconds(duration_ns or settings.time_limit_ns)
        words = self.load.command(settings, self.offer, seconds)
        _sleep_until(start_ns)
        begun_ns, cpu_before_ns = time.monotonic_ns(), self.programs.cpu_ns()
        said = self._run(words, seconds + _GRACE_S, "run")
        ended_ns, cpu_after_ns = time.monotonic_ns(), self.programs.cpu_ns()
        figures = _read(self.load.figures, said, "run")
        start_ns, took_ns = begun_ns + round(figures.lead_s * 1e9), ended_ns - begun_ns
        length_ns = ended_ns - start_ns
        if figures.elapsed_s is not None:
            length_ns = min(took_ns, _told_length_ns(figures.elapsed_s, took_ns))
            start_ns = min(start_ns, ended_ns - length_ns)
        asks_s = length_ns / 1e9 if figures.asks_s is None else figures.asks_s
        due = _due(settings.rate_per_s * asks_s) if settings.loop == "open" else None
        window = Window(
            start_ns=start_ns,
            duration_ns=length_ns,
            work=figures.work,
            until_ns=ended_ns,  # what it asks for behind its window is its turn still
            values=dict(figures.values),
            counts={INTENDED: due} if figures.failed is None and due is not None else {},
            events={} if figures.failed is None else {self.load.request: _events(figures, figures.failed, due)},
            cpu_ns=None if cpu_before_ns is None or cpu_after_ns is None else cpu_after_ns - cpu_before_ns,
            cpu_span_ns=took_ns,  # nobody tells how much of it lay within the window
            at=intensity,
        )
        return Measurement(words[0], window)

    def _run(self, words: Sequence[str], limit_s: float, what: str) -> str:
        """What it printed, whole; TrialError where it failed."""
        env = {**ENVIRONMENT, **self.load.environment}
        try:
            done = self.programs.agent.run(words, timeout_s=limit_s, env=env, user=self.load.user)
        except AgentError as error:
            problem = error.problem
            raise TrialError(f"{words[0]}: {problem.what}", where=f"[load] {what}", remedy=problem.remedy) from error
        with (self.client.directory / SAID).open("ab") as file:
            file.write(b"".join([b"$ ", shlex.join(words).encode(), b"\n", done.stdout, done.stderr, b"\n"]))
        if done.returncode != 0:
            raise _gave_up(what, words, done)
        return (done.stdout + b"\n" + done.stderr).decode(errors="replace")


def _events(figures: Figures, failed: int, due: int | None) -> Events:
    """What became of what was asked. ``due``: how many were, in open loop."""
    completed = round(figures.work)
    return Events(
        intended=completed + failed if due is None else due,
        offered=completed + failed,
        completed=completed,
        failures={"unspecified": failed} if failed else {},
        censored=failed,
        percentiles_ns=dict(figures.percentiles_ns),
    )


def _due(mean: float) -> int:
    """How many are due at the least where ``mean`` are on average: arrivals may be random (Poisson), and three standard
    deviations fewer come once in a thousand windows."""
    return max(0, math.floor(mean - 3 * math.sqrt(mean)))


def _told_length_ns(elapsed_s: float, took_ns: int) -> int:
    """What a program says of its window's length. TrialError where that is more than the time it ran for."""
    if elapsed_s * 1e9 > took_ns * 1.01:
        raise TrialError(
            f"it says that {elapsed_s:g} s elapsed, and it ran for {took_ns / 1e9:.3g} s",
            where="[load] elapsed",
            remedy="where it tells milliseconds, write times = 0.001",
        )
    return round(elapsed_s * 1e9)


def _seconds(duration_ns: int) -> int:
    """What a program that counts in seconds is told."""
    return max(1, round(duration_ns / 1e9))


def _sleep_until(start_ns: int | None) -> None:
    if start_ns is not None:
        left_ns = start_ns - time.monotonic_ns()
        if left_ns < 0:
            raise TrialError("the common start has passed", where="load", remedy="give all more time to begin")
        time.sleep(left_ns / 1e9)


def _read(read: Any, said: str, what: str) -> Any:
    try:
        return read(said)
    except ValueError as error:
        raise TrialError(
            f"{error}; it ended with:\n{said.strip()[-_SAID_BYTES:] or '(nothing)'}",
            where=f"[load], in what `{what}` printed",
            remedy=f"all that it printed is in the trial's {SAID}",
        ) from None


def _gave_up(what: str, words: Sequence[str], done: ExecResult) -> TrialError:
    said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    ended = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"gave up with exit {done.returncode}"
    return TrialError(f"{words[0]} {ended}:\n{said[-_SAID_BYTES:] or '(it said nothing)'}", where=f"[load] {what}")
