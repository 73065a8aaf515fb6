"""A service's trial: in which order it is deployed, driven and watched, what it proves; what becomes of a victim."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from virtoll.agent import ClockOffset, StreamError
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Wanted
from virtoll.lab.base import Site
from virtoll.lab.client import LOAD, SAID, Client
from virtoll.lab.others import Look
from virtoll.lab.shaping import LinkShape
from virtoll.lab.slices import Slices
from virtoll.loads.base import Bulk, Load, Measurement, Session
from virtoll.monitor import Tries, Watched
from virtoll.monitor.meters import Row
from virtoll.offers import Content, Http, HttpObject, Offer, Port
from virtoll.record.model import GENERATOR_HEADROOM, Arm, Events, NeighbourRecord, Outcome, PlannedTrial, Window
from virtoll.services.base import Service
from virtoll.study.limits import Limits
from virtoll.study.model import Background, Monitoring, Neighbour, Rotation
from virtoll.trial import audit, disturbance, experiment, limits, proofs, subjects
from virtoll.trial.company import Companion, Company
from virtoll.trial.experiment import Known, LabExperiment
from virtoll.trial.notes import Course, Notes
from virtoll.trial.treatment import Driven, Treatment

WELL = {"instance": 0.5, "generator": 0.2, "origin": 0.2}
PROVED = {
    "answered correctly before",
    "offered load met intended",
    "the generator had headroom",
    "the generator kept its schedule",
    "the origin had headroom",
    "no sample was dropped",
    "the clock held",
    "the CPU limit held",
}
SECOND_NS = 10**9


def used(cpus: dict[str, float]) -> list[Row]:
    """One second in which each source used so many CPUs."""
    return [(t, name, "cpu.usage_ns", round(t * share)) for name, share in cpus.items() for t in (0, SECOND_NS)]


def watched(cpus: dict[str, float], *, drift_ns: int = 0, silent: bool = False) -> Watched:
    inside: list[Row] | None = None if silent else [(0, "inside", "cpu.usage_ns", 1)]
    after = None if silent else ClockOffset(drift_ns, 0)
    return Watched(used(cpus), inside, ClockOffset(0, 0), after, SECOND_NS, 0, 0, {})


EVENTS = Events(intended=100, offered=100, completed=0, failures={"timeout": 100}, censored=100, late=0)
ANSWERED = Events(intended=100, offered=100, completed=100, failures={}, censored=0, late=0)


def measurement(events: Events) -> Measurement:
    """A second of an open loop, of which the generator kept its schedule."""
    window = Window(
        start_ns=0, duration_ns=SECOND_NS, work=events.completed, events={"request": events}, cpu_ns=2 * 10**7
    )
    return Measurement("double 1", window, Bulk(histogram=[(5, 6, 1)], lateness=[(0, 1000, 100)]))


@dataclass
class Stage:
    """All who take part in trials of a service, and what they are asked, in its order.

    ``wrong``: what a client finds once the load is over (None: it can never ask); ``lives``: whether the instance does;
    ``process``: how the service's ended, where it is known (None: it runs); ``began``: whether the neighbour, where
    there is one, was at work.
    """

    seen: Watched | Exception
    aggressor: str = "cpu"
    began: bool = True
    outcome: Outcome | None = None  # as the watchdog has it
    wrong: Exception | str | None = ""
    lives: Callable[[], bool] = lambda: True
    process: Callable[[int], int | None] | None = None
    has_origin: bool = True
    events: Events = EVENTS
    announced: bool = True  # the experiment was told of its trials beforehand
    deployment: str = ""  # that its trials share
    only_at: int = 0  # the trial in which what is wrong (``fails``, ``wrong``, ``outcome``) is so; 0: in each
    at: int = 0  # the trial that is under way
    users: list[int] = field(default_factory=lambda: [1500] * 9)  # whom the service runs as, trial by trial
    conditions: dict[int, dict[str, Any]] = field(default_factory=dict)  # of the trials that have one, by position
    look: Callable[[], Look] = lambda: Look(0, None, 1)  # what others have had of its CPUs, each time
    rounds: int = 0  # in which it takes turns with others; 0: it is measured by itself
    leaves: int = 0  # see `go_through`
    fails: str = ""  # what fails: "start", "warm-up", "load"
    counts: bool = False  # the platform's own kernel
    log: list[str] = field(default_factory=list)
    sut: frozenset[int] = frozenset({0})
    generator: frozenset[int] = frozenset({1})
    behind: frozenset[int] = frozenset({2})
    notes: list[Notes] = field(default_factory=list)  # of the trials performed
    audited: list[str] = field(default_factory=list)  # what was done last before each audit
    has_programs: bool = False  # the load, of its own
    tries: Tries | None = None  # what the yardstick of the CPUs says of itself
    has_yardstick: bool = False
    clients: list[Client] = field(default_factory=list)  # where each session's load stood

    def said(self, what: str) -> None:
        """``what`` is done, or fails."""
        self.log.append(what)
        if what == self.fails and self.is_now:
            raise TrialError(f"no {what}")

    @property
    def is_now(self) -> bool:
        """Whether this is the trial in which something is wrong."""
        return self.only_at in (0, self.at)

    @contextmanager
    def while_(self, what: str) -> Iterator[None]:
        """Something that lasts."""
        self.log.append(what)
        try:
            yield
        finally:
            self.log.append(f"{what} ended")

    @contextmanager
    def beside(self, *told: Any) -> Iterator[Callable[..., None]]:
        """In the place of `neighbourhood.beside`."""

        def begin(*, wait: bool) -> None:
            self.log.append("begun and awaited" if wait else "begun")

        with self.while_("neighbour") if self.aggressor else ExitStack():
            yield begin
        if self.aggressor:
            notes: Notes = told[4]
            notes.outcome = self.outcome if self.is_now else None
            start_ns, ended = (1, "time") if self.began else (None, "refused")
            notes.neighbour = NeighbourRecord.model_validate(
                {"aggressor": "cpu", "settings": {}, "ended": ended, "start_ns": start_ns, "end_ns": 2}
            )

    # -- a deployer's

    @property
    def lab(self) -> Any:
        """Of which only the CPUs are looked at."""
        here = LocalHost()
        sut, generator, origin = (Site(here, "n", "", cpus) for cpus in (self.sut, self.generator, self.behind))
        return SimpleNamespace(sut=sut, generator=generator, origin=origin)

    def first(self, stack: ExitStack, trial: PlannedTrial, limits: Limits, ports: Any, notes: Notes) -> Any:
        """An instance."""
        assert ports == (Port(80),)
        notes.facts["instance"] = trial.id
        stack.enter_context(self.while_(f"instance {trial.id}"))
        agent = SimpleNamespace(tail=self._tail, returncode=self.process, sync=lambda path: self.said(f"sync {path}"))
        services = {"double": 7} if self.process else {}
        return SimpleNamespace(
            limits=limits,
            image=SimpleNamespace(digest=""),
            is_running=self.lives,
            platform="double",
            agent=agent,
            services=services,
            stopped=lambda: self.while_("stopped"),
            accounting=SimpleNamespace(cgroup="double"),
            facts={},
            kernel_counts=self._counts,
        )

    def _counts(self) -> dict[str, Any]:
        return {"failcnt": self.at, "proved": "limits" in self.log} if self.counts else {}

    def _tail(self, path: str, _most_bytes: int) -> bytes:
        assert path.endswith("double.log")
        self.log.append("log kept")
        return b"what it said"

    @contextmanager
    def deployed(self, name: str, *_: Any, **__: Any) -> Iterator[Any]:
        """Another instance."""
        with self.while_(f"another {name}"):
            yield SimpleNamespace(limits=Limits(vcpus=1), image=SimpleNamespace(digest=""))

    def client(self, *_names: str, of: Any) -> Client:
        """Where a load runs."""
        return Client(cast(Any, None), cast(Any, None), Path("/nonexistent"), cpus=1)

    @contextmanager
    def programs(self) -> Iterator[Any]:
        """A load's own."""
        with self.while_("programs"):
            yield "the programs"

    # -- a monitor's

    def read_clock(self, _instance: Any) -> str:
        """Nobody asks for anything then."""
        self.log.append("clock read")
        return "its clock"

    def start(
        self,
        _instance: Any,
        clock: str,
        rate_hz: float,
        *,
        inside: bool,
        inside_hz: float,
        beside: Any,
        lasts_s: float,
        for_sure: bool,
    ) -> None:
        """From now on it is watched."""
        assert clock == "its clock"
        assert (rate_hz, inside_hz, dict(beside), lasts_s) == (20, 1 if self.rounds else 20, {}, 1234.0)
        assert not (for_sure and self.rounds)
        self.log.append("watched inside too" if inside else "watched from outside")

    def mark(self) -> None:
        """Looked at once more: where a window begins and ends."""

    def collect(self, *, may_be_silent: bool = False) -> Watched:
        """What was seen, or an error."""
        self.log.append("collected")
        if isinstance(self.seen, Exception):
            raise self.seen
        if self.seen.offset_after is None and not may_be_silent:
            raise StreamError("the stream has ended", where="the instance")
        return self.seen

    # -- and the experiment itself

    def of_limits(self, notes: Notes, _instance: Any, _known: Any) -> frozenset[str]:
        """In the place of `limits.of_limits`."""
        self.log.append("limits")
        notes.check("the limits", True, "")
        return limits.ALL

    def audit(self, *_: Any) -> None:
        """In the place of `audit.first`."""
        self.audited.append(self.log[-1])

    def treatment(self, *_: Any) -> Treatment:
        """In the place of `treatment_of`."""
        work = Driven(ServiceDouble(self), None, LoadDouble(self))
        limits, neighbour = Limits(vcpus=1), Neighbour(self.aggressor)
        rotation = Rotation(self.rounds) if self.rounds else None
        link, slices = LinkShape(), Slices()
        return Treatment(
            limits, link, slices, neighbour, Background(2), Monitoring(20), work, rotation, watched_s=1234.0
        )

    def perform(self, monkeypatch: pytest.MonkeyPatch, directory: Path, trials: int = 1) -> list[Notes]:
        """The trials' notes; the first error of theirs is raised, and `notes` holds what was noted until then."""
        monkeypatch.setattr(experiment, "beside", self.beside)
        monkeypatch.setattr(experiment, "shaped", lambda *_: self.while_("shaped"))
        monkeypatch.setattr(experiment, "hogs", lambda _lab, count, *_where: self.while_(f"{count} hogs"))
        monkeypatch.setattr(experiment, "losses", lambda _lab: {})
        monkeypatch.setattr(disturbance, "_look", lambda *_: self.look())
        monkeypatch.setattr(experiment, "instance_cpus", lambda *_: frozenset({0}))
        monkeypatch.setattr(subjects, "instance_cpus", lambda *_: frozenset({0}))
        monkeypatch.setattr(experiment, "treatment_of", self.treatment)
        monkeypatch.setattr(limits, "of_limits", self.of_limits)
        monkeypatch.setattr(audit, "first", self.audit)
        arm = Arm(label="a", platform="double", network="host")
        planned = [
            PlannedTrial(
                id=f"b01-t000{n}",
                block=1,
                position=n,
                arm=arm,
                condition=self.conditions.get(n, {}),
                deployment=self.deployment,
            )
            for n in range(1, trials + 1)
        ]
        origin = Http("198.18.2.2", 8080) if self.has_origin else None
        me = cast(Any, self)
        known = Known(yardstick=cast(Any, YardstickDouble(self)) if self.has_yardstick else None)
        lab = LabExperiment(cast(Any, None), me, me, planned if self.announced else (), origin, known)
        self.notes = [Notes(directory, lambda _name: None) for _ in planned]
        errors: list[Exception] = []
        for trial, notes in zip(planned, self.notes, strict=True):
            self.at = trial.position
            try:
                self.go_through(lab.perform(trial, notes))
            except (TrialError, AgentError) as error:
                errors.append(error)
        for first in errors:
            raise first
        return self.notes

    def go_through(self, course: Course) -> None:
        """Until it stands still for the ``leaves``-th time; there whoever performs it leaves it (0: at its end)."""
        for number, _ in enumerate(course, 1):
            if self.rounds:
                self.log.append("others")
            if number == self.leaves:
                course.close()


@dataclass
class YardstickDouble:
    """Says what its stage says of a trial, and of each window that it took 3 us."""

    stage: Stage

    def tried(self, cpus: frozenset[int]) -> Tries | None:
        """As it was told."""
        assert cpus == {0}
        self.stage.log.append("yardstick tried")
        return self.stage.tries

    def begin(self, cpus: frozenset[int]) -> None:
        """From now on."""
        assert cpus == {0}
        self.stage.log.append("yardstick begun")

    def end(self, from_ns: int, to_ns: int) -> float:
        """Of a window."""
        self.stage.log.append("yardstick read" if (from_ns, to_ns) == (0, SECOND_NS) else "yardstick ended")
        return 3000.0


@dataclass
class ServiceDouble(Service):
    """Answers well before the load, and afterwards as it is told."""

    stage: Stage
    name = "double"
    offered = (Http,)

    @property
    def ports(self) -> tuple[Port, ...]:
        """One."""
        return (Port(80),)

    def hold(self, _instance: Any, contents: Iterable[Content]) -> None:
        """What the load asks for."""
        assert list(contents) == [HttpObject(7)]
        self.stage.said("hold")

    def start(self, _instance: Any, behind: Offer | None) -> Offer:
        """With what the origin offers."""
        assert (behind is not None) == self.stage.has_origin
        self.stage.said("start")
        return Http("198.18.1.2", 80)

    def runs(self, _instance: Any) -> dict[str, Any]:
        """As the user whose turn it is."""
        return {"uid": self.stage.users.pop(0)}

    def verify(self, offer: Offer, _visitor: Any, content: Content | None) -> list[Problem] | None:
        """See `Stage`."""
        assert (offer, content) == (Http("198.18.1.2", 80), HttpObject(7))
        begun = len(self.stage.log) - self.stage.log[::-1].index("session")
        is_first = "verify" not in self.stage.log[begun:]
        self.stage.said("verify")
        if self.stage.wrong is None:
            return None
        wrong = self.stage.wrong if self.stage.is_now and not is_first else ""
        if isinstance(wrong, Exception):
            raise wrong
        return [Problem(wrong)] if wrong else []


@dataclass(frozen=True)
class Rate:
    """The double's settings."""

    rate_per_s: int


@dataclass
class LoadDouble(Load, Session):
    """An open loop that ends as it is told."""

    stage: Stage
    name = "double"
    unit = "request"
    loop = "open"
    content = HttpObject(7)
    settings: Any = field(default_factory=lambda: Rate(100))

    def check(self, _host: Any) -> list[Problem]:
        """Nothing is missing."""
        return []

    @contextmanager
    def _open(self) -> Iterator[Session]:
        with self.stage.while_("session"):
            yield self

    @property
    def programs(self) -> Wanted:
        """Where they come from."""
        return Wanted(packages=("bench",)) if self.stage.has_programs else Wanted()

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """Itself."""
        assert offer == Http("198.18.1.2", 80)
        self.stage.clients.append(client)
        return self._open()

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Noted."""
        self.stage.said("warm-up")

    def measure(self, **_: Any) -> Measurement:
        """As it is told."""
        self.stage.said("load")
        return measurement(self.stage.events)


def test_who_waits_while_others_are_measured_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lived(**told: Any) -> list[str]:
        stage = Stage(watched(WELL), aggressor="", **told)
        stage.perform(monkeypatch, tmp_path)
        words = ("stopped", "stopped ended", "others", "load", "collected", "log kept")
        return [what for what in stage.log if what in words]

    wait = ["stopped", "others", "stopped ended"]
    assert lived(rounds=2) == [*wait, "load", *wait, "load", "collected", *wait, "log kept"]
    assert lived(rounds=2, leaves=2) == [*wait, "load", *wait, "log kept"], "nobody is asked for a log while stopped"
    assert lived() == ["load", "collected", "log kept"], "by itself it has the machine"


def test_who_waits_for_its_next_trial_is_stopped_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A turn may come in which it has no part: an outside instrument is tried on native alone."""
    words = {"instance b01-t0001": "made", "stopped": "(", "stopped ended": ")", "load": "load", "log kept": "gone"}

    def lived(**told: Any) -> str:
        stage = Stage(watched(WELL), aggressor="", deployment="b01-d0001", events=ANSWERED, **told)
        stage.perform(monkeypatch, tmp_path, trials=2)
        return " ".join(words[what] for what in stage.log if what in words)

    trial = "( ) load ( ) load ( )"
    assert lived(rounds=2) == f"made {trial} ( ) {trial} gone"
    assert lived() == "made load load gone", "nobody else has a turn"


def test_after_each_window_the_load_leaves_the_service_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for rounds in (0, 2):
        stage = Stage(watched(WELL), aggressor="", rounds=rounds)
        monkeypatch.setattr(LoadDouble, "rest", lambda double: double.stage.said("rest"))
        stage.perform(monkeypatch, tmp_path)
        assert [what for what in stage.log if what in ("load", "rest")] == ["load", "rest"] * max(1, rounds)


def test_it_is_looked_at_where_something_begins_or_ends_and_never_twice_in_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def looked(**told: Any) -> list[str]:
        stage = Stage(watched(WELL), events=ANSWERED, **told)
        monkeypatch.setattr(Stage, "mark", lambda stage: stage.log.append("look"))
        monkeypatch.setattr(LoadDouble, "lead_in", lambda double, _length_ns: double.stage.said("lead-in"))
        stage.perform(monkeypatch, tmp_path)
        words = ("look", "lead-in", "begun", "load", "others")
        return [what for what in stage.log if what in words and (what != "begun" or stage.aggressor)]

    turn = ["others", "look", "lead-in", "look", "load", "look"]
    assert looked(aggressor="", rounds=2) == [*turn, *turn, "others"]
    assert looked(aggressor="") == ["look", "load", "look"]
    assert looked(aggressor="cpu") == ["look", "begun", "look", "load", "look"]


def test_the_cpus_are_read_from_before_a_windows_lead_in_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(watched(WELL), aggressor="", rounds=2, tries=[(0.001, 0.02), (0.003, 0.0)], has_yardstick=True)
    monkeypatch.setattr(LoadDouble, "lead_in", lambda double, _length_ns: double.stage.said("lead-in"))
    monkeypatch.setattr(LoadDouble, "rest", lambda double: double.stage.said("rest"))
    first, second = stage.perform(monkeypatch, tmp_path, 2)
    turn = ["yardstick begun", "lead-in", "load", "rest", "yardstick read"]
    told = [what for what in stage.log if what in turn or what == "yardstick tried"]
    assert told == ["yardstick tried", *turn * 4], "it is tried once, before there is an instance"
    assert stage.log.index("yardstick tried") < stage.log.index("instance b01-t0001")
    for notes in (first, second):
        assert notes.measured is not None
        assert [window.yardstick_ns for window in notes.measured.windows] == [3000.0, 3000.0]
        assert notes.facts["yardstick"] == {"own_idle": [0.001, 0.003], "others_idle": [0.02, 0.0]}


def test_one_that_says_nothing_of_itself_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (notes,) = Stage(watched(WELL), aggressor="", rounds=2, has_yardstick=True).perform(monkeypatch, tmp_path)
    assert notes.measured is not None
    assert [window.yardstick_ns for window in notes.measured.windows] == [3000.0, 3000.0]
    assert "yardstick" not in notes.facts


@pytest.mark.parametrize("fails", ["lead-in", "load", "rest", "look"])
def test_after_a_window_that_fails_nothing_is_read_any_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    """Wherever in its turn."""
    stage = Stage(watched(WELL), aggressor="", rounds=2, has_yardstick=True, fails=fails)
    monkeypatch.setattr(LoadDouble, "lead_in", lambda double, _length_ns: double.stage.said("lead-in"))
    monkeypatch.setattr(LoadDouble, "rest", lambda double: double.stage.said("rest"))
    marked: list[None] = []

    def mark(_stage: Stage) -> None:
        marked.append(None)
        if len(marked) == 2:  # between lead-in and window
            stage.said("look")

    monkeypatch.setattr(Stage, "mark", mark)
    with pytest.raises(TrialError):
        stage.perform(monkeypatch, tmp_path)
    told = [what for what in stage.log if what.startswith("yardstick")]
    assert told == ["yardstick tried", "yardstick begun", "yardstick ended"]


@pytest.mark.parametrize("how", ["elsewhere", "with a neighbour"])
def test_where_it_tells_nothing_it_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    stage = Stage(watched(WELL), aggressor="cpu" * (how != "elsewhere"), rounds=2, has_yardstick=True, tries=[(0, 0)])
    monkeypatch.setattr(experiment, "is_elsewhere", lambda _instance: how == "elsewhere")
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert "yardstick begun" not in stage.log
    assert "yardstick" not in notes.facts


def test_by_itself_nothing_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = Stage(watched(WELL), aggressor="", has_yardstick=True)
    stage.perform(monkeypatch, tmp_path)
    assert not [what for what in stage.log if what.startswith("yardstick")]


def test_how_long_a_trials_turns_are_is_in_its_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the pace that its warm-up tells."""
    monkeypatch.setattr(LoadDouble, "under_way", 20)
    monkeypatch.setattr(LoadDouble, "warm_up", lambda *_: 150.0)
    (notes,) = Stage(watched(WELL), aggressor="", rounds=2).perform(monkeypatch, tmp_path)
    assert (notes.facts["rotation"]["window_ns"], notes.facts["rotation"]["pace_per_s"]) == (4 * 10**8, 150.0)


def test_a_slow_arm_has_its_windows_in_some_of_the_rounds_and_waits_through_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(LoadDouble, "under_way", 20)
    monkeypatch.setattr(LoadDouble, "warm_up", lambda *_: 20.0)
    stage = Stage(watched(WELL), aggressor="", rounds=9)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert notes.facts["rotation"]["every_rounds"] == 2
    told = "".join({"load": "W", "others": "."}.get(what, "") for what in stage.log)
    assert told == "..W..W..W..W.", "in rounds 2, 4, 6 and 8; the others' last windows are waited for"


def concluded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: Watched | Exception, **told: Any) -> Notes:
    """What is noted of a trial beside a neighbour that was at work."""
    (notes,) = Stage(seen, **told).perform(monkeypatch, tmp_path)
    return notes


def fail(error: Exception) -> NoReturn:
    raise error


def broken(notes: Notes) -> set[str]:
    return {check.name for check in notes.checks if check.passed is False}


def proved(notes: Notes) -> set[str]:
    return {check.name for check in notes.checks} - {"the limits"}


# -- beside a neighbour -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (watched(WELL), set()),
        (watched(WELL | {"instance": 1.2}), {"the CPU limit held"}),
        (watched(WELL | {"origin": 0.9}), {"the origin had headroom"}),
        (watched(WELL, drift_ns=SECOND_NS // 100), {"the clock held"}),
        (watched({}), {"no sample was dropped"}),
    ],
)
def test_our_side_and_the_limits_are_proved_beside_a_neighbour_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: Watched, told: set[str]
) -> None:
    notes = concluded(monkeypatch, tmp_path, seen)
    assert broken(notes) == told
    assert notes.outcome == "answered"
    assert proved(notes) == PROVED
    assert "inside" in notes.tables


def test_of_a_tool_that_tells_no_cpu_time_what_the_host_books_is_proved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = measurement(ANSWERED)
    silent = replace(told, window=told.window.model_copy(update={"cpu_ns": None}))
    monkeypatch.setattr(LoadDouble, "measure", lambda _double, **_: silent)
    for parts, share, passed in (
        ({"generator": 0.2}, 0.2, True),
        ({"generator": 0.95}, 0.95, None),
        ({"generator": 0.02, LOAD: 0.93}, 0.95, None),  # a program of the load's own, in a group of its own
    ):
        stage = Stage(watched(WELL | {"origin": 0.01} | parts), aggressor="", events=ANSWERED)
        (notes,) = stage.perform(monkeypatch, tmp_path)
        (check,) = (check for check in notes.checks if check.name == GENERATOR_HEADROOM)
        assert check.passed is passed
        assert check.detail.startswith(f"used {share:.0%} of 1 CPU, as the host books it")
        assert "the generator had headroom" not in broken(notes)


def test_an_origin_that_could_not_be_read_is_no_proof_and_none_needs_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unread = watched({name: share for name, share in WELL.items() if name != "origin"})
    notes = concluded(monkeypatch, tmp_path, unread)
    (check,) = (check for check in notes.checks if check.name == "the origin had headroom")
    assert (check.passed, check.detail) == (None, "origin: the host's accounting could not be read")
    without = concluded(monkeypatch, tmp_path, unread, has_origin=False)
    assert proved(without) == PROVED - {"the origin had headroom"}


@pytest.mark.parametrize("wrong", ["another digest", TrialError("no answer")])
def test_a_victim_that_hangs_to_the_end_makes_no_trial_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Exception | str
) -> None:
    """All connections wait for it, and what is due meanwhile is never sent."""
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    hangs = EVENTS.model_copy(update={"offered": 50, "queued": 50, "failures": {"timeout": 50}, "censored": 50})
    (notes,) = Stage(watched(WELL), wrong=wrong, events=hangs).perform(monkeypatch, tmp_path)
    assert (notes.outcome, broken(notes)) == ("did not answer", set())
    (check,) = (check for check in notes.checks if check.name == proofs.OFFERED)
    assert check.passed is None
    assert check.detail.startswith("50 of 100 requests sent; 50 had to wait for a free connection; connections w")
    (alone,) = Stage(watched(WELL), aggressor="", wrong=wrong, events=hangs).perform(monkeypatch, tmp_path)
    assert proofs.OFFERED in broken(alone), "nobody harmed it"
    (harmed,) = Stage(watched(WELL), wrong=wrong, events=hangs, outcome="host harmed").perform(monkeypatch, tmp_path)
    assert (harmed.outcome, broken(harmed)) == ("host harmed", set())
    ours = ANSWERED.model_copy(update={"offered": 50, "completed": 50})
    (harmed,) = Stage(watched(WELL), events=ours, outcome="host harmed").perform(monkeypatch, tmp_path)
    assert proofs.OFFERED in broken(harmed), "it answered all that it was sent"


@pytest.mark.parametrize("wrong", ["another digest", TrialError("no answer")])
def test_a_victim_that_does_not_answer_is_a_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Exception | str
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    stage = Stage(watched(WELL), wrong=wrong)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert (notes.outcome, broken(notes)) == ("did not answer", set())
    assert notes.measured is not None
    assert "limits" not in stage.log, "of one that answers no more nothing can be proved"


@pytest.mark.parametrize(
    ("process", "lives", "outcome"),
    [
        ({7: None}.__getitem__, True, "answered"),
        ({7: -9}.__getitem__, True, "did not answer"),
        (lambda _pid: fail(StreamError("the stream has ended", where="agent")), True, "did not answer"),
        ({7: None}.__getitem__, False, "victim died"),
        (None, True, "answered"),  # what is known of it is that its instance lives
    ],
)
def test_a_victim_that_cannot_be_asked_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    process: Callable[[int], int | None] | None,
    lives: bool,
    outcome: Outcome,
) -> None:
    """And that it answers correctly is not said."""
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    notes = concluded(monkeypatch, tmp_path, watched(WELL), wrong=None, process=process, lives=lambda: lives)
    assert (notes.outcome, broken(notes)) == (outcome, set())
    (before,) = (check for check in notes.checks if check.name == "answered correctly before")
    assert before.passed is None


@pytest.mark.parametrize(("code", "told"), [(None, set()), (1, {"double lived to the end"})])
def test_a_service_that_cannot_be_asked_is_proved_by_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int | None, told: set[str]
) -> None:
    stage = Stage(watched(WELL), aggressor="", events=ANSWERED, wrong=None, process={7: code}.__getitem__)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert broken(notes) == told
    unasked = [check.name for check in notes.checks if check.passed is None]
    assert unasked == ["answered correctly before", "answered correctly after"]


@pytest.mark.parametrize("fails", ["", "load"])
def test_what_the_platforms_kernel_counts_is_noted_before_a_proof_adds_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    """Of a trial that fails as well: a limit that was hit may be why."""
    stage = Stage(watched(WELL), aggressor="", events=ANSWERED, fails=fails, counts=True)
    with suppress(TrialError):
        stage.perform(monkeypatch, tmp_path)
    (notes,) = stage.notes
    assert notes.facts["kernel_counts"] == {"failcnt": 1, "proved": False}
    assert ("limits" in stage.log) == (not fails)


def test_a_victim_that_died_is_a_result_and_what_was_seen_from_outside_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    died: dict[str, Any] = {"lives": lambda: False}
    stage = Stage(watched(WELL, silent=True), **died)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert (notes.outcome, broken(notes)) == ("victim died", set())
    assert {check.name for check in notes.checks if check.passed is None} == {"the clock held"}
    assert "outside" in notes.tables
    assert "inside" not in notes.tables
    assert "limits" not in stage.log
    harmed = concluded(monkeypatch, tmp_path, watched(WELL, silent=True), **died, outcome="host harmed")
    assert harmed.outcome == "host harmed"


@pytest.mark.parametrize("lives", [True, False])
def test_what_a_loads_programs_said_is_kept_of_a_victim_that_died_or_fell_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, lives: bool
) -> None:
    """It lies in the deployment's directory, which goes with it."""
    there = tmp_path / "there"

    class Saying(Stage):
        def first(self, stack: ExitStack, *told: Any) -> Any:
            there.mkdir()
            stack.callback(shutil.rmtree, there)
            return super().first(stack, *told)

        def client(self, *_names: str, of: Any) -> Client:
            return Client(cast(Any, None), cast(Any, None), there, cpus=1)

        def said(self, what: str) -> None:
            super().said(what)
            if what == "load":
                (there / SAID).write_text("connection reset")

    monkeypatch.setattr(proofs, "_END_S", 0.0)
    (tmp_path / "trial").mkdir()
    stage = Saying(watched(WELL, silent=True), lives=lambda: lives, wrong="" if lives else TrialError("none"))
    (notes,) = stage.perform(monkeypatch, tmp_path / "trial")
    assert notes.outcome == ("answered" if lives else "victim died")
    assert (tmp_path / "trial" / SAID).read_text() == "connection reset"


def test_a_victim_that_answers_though_its_agent_is_silent_has_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    stage = Stage(watched(WELL, silent=True))
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert (notes.outcome, broken(notes)) == ("answered", set())
    assert "limits" not in stage.log, "its agent is of no more use"


def test_a_victim_may_end_a_moment_after_its_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proofs, "_END_S", 60.0)
    looks = iter([True, True])
    told: dict[str, Any] = {"wrong": TrialError("none"), "lives": lambda: next(looks, False)}
    assert concluded(monkeypatch, tmp_path, watched(WELL, silent=True), **told).outcome == "victim died"


def test_a_monitor_that_broke_is_a_failure_and_no_silence_of_the_victims(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(StreamError("the stream has ended", where="the monitor's agent on the host"))
    with pytest.raises(StreamError):
        stage.perform(monkeypatch, tmp_path)
    assert stage.notes[0].outcome is None


# -- a trial from its begin to its end --------------------------------------------------------------------


BEFORE = ["shaped", "instance b01-t0001", "hold", "sync /", "start", "session", "verify"]
AFTER = ["log kept", "instance b01-t0001 ended", "shaped ended"]
# What its agent is asked before and after, it answers while no hogs compete with it for its CPUs.
WINDOW = ["clock read", "2 hogs", "warm-up", "watched inside too", "begun", "load", "2 hogs ended", "collected"]


@pytest.mark.parametrize("began", [True, False])
def test_watching_ends_with_the_window_and_not_with_the_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, began: bool
) -> None:
    """And the service is warmed up beside all that is there in the window."""
    stage = Stage(watched(WELL), began=began)
    stage.perform(monkeypatch, tmp_path)
    beside = ["neighbour", *WINDOW, "neighbour ended"]
    assert stage.log == [*BEFORE, *beside, "verify", "session ended", "limits", *AFTER]


def test_a_service_has_a_deployment_of_its_own_and_proves_the_limits_on_the_first_of_an_arm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(watched(WELL), aggressor="", events=ANSWERED)
    first, second = stage.perform(monkeypatch, tmp_path, trials=2)
    whole = [*BEFORE, *WINDOW, "verify", "session ended"]
    again = [line.replace("t0001", "t0002") for line in [*whole, *AFTER]]
    assert stage.log == [*whole, "limits", *AFTER, *again]
    assert stage.audited == ["start", "start"], "the service runs, and nobody has asked it for anything"
    assert [check.name for check in first.checks] == [
        "answered correctly before",
        "the wiring lost nothing",
        "answered correctly after",
        "offered load met intended",
        "the generator kept its schedule",
        "the generator had headroom",
        "the origin had headroom",
        "requests were answered",
        "no sample was dropped",
        "the clock held",
        "the CPU limit held",
        "the instance lived to the end",
        "it runs as on a",
        "the limits",
    ]
    phases = ["start", "verify", "warm-up", "window", "verify", "prove", "teardown"]
    for notes, trial in ((first, "b01-t0001"), (second, "b01-t0002")):
        assert [phase.name for phase in notes.phases] == phases
        facts = {"instance": trial, "process": {"uid": 1500}}
        assert (notes.facts, notes.outcome, notes.said) == (facts, None, b"what it said")
        assert notes.tables.keys() == {"outside", "inside", "latency", "lateness"}
        assert notes.measured is not None
        assert notes.measured.settings == {"rate_per_s": 100}
        assert notes.measured.events == ANSWERED
        assert not broken(notes)


def test_a_service_that_runs_otherwise_than_elsewhere_makes_the_trial_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(watched(WELL), aggressor="", events=ANSWERED, users=[1500, 0, 1500])
    trials = stage.perform(monkeypatch, tmp_path, trials=3)
    assert [broken(notes) for notes in trials] == [set(), {"it runs as on a"}, set()]


def test_what_runs_is_compared_under_the_same_limits_and_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An entrypoint may read how much memory it has and start otherwise: that is no arm's doing."""
    small, large = {"limits.memory_bytes": 2**29}, {"limits.memory_bytes": 2**31, "load.connections": 1}
    conditions = {1: small, 2: large, 3: {**large, "load.connections": 10}, 4: small}
    stage = Stage(watched(WELL), aggressor="", events=ANSWERED, users=[1, 2, 3, 1], conditions=conditions)
    trials = stage.perform(monkeypatch, tmp_path, trials=4)
    assert [broken(notes) for notes in trials] == [set(), set(), {"it runs as on a"}, set()]


def test_a_service_never_shares_a_deployment_whatever_was_announced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(watched(WELL), aggressor="", events=ANSWERED, announced=False)
    stage.perform(monkeypatch, tmp_path, trials=2)
    at_work = [line for line in stage.log if line.startswith("instance")]
    assert at_work == [f"instance b01-t000{n}{what}" for n in (1, 2) for what in ("", " ended")]


def instances(stage: Stage) -> list[str]:
    """Which trials had an instance made for them, in their order."""
    return [line.split()[1] for line in stage.log if line.startswith("instance") and not line.endswith("ended")]


SHARED: dict[str, Any] = {"deployment": "b01-d0001", "events": ANSWERED}


def test_a_victim_serves_its_neighbours_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = Stage(watched(WELL), **SHARED)
    trials = stage.perform(monkeypatch, tmp_path, trials=3)
    another = "another b01-t0001-1"  # of which nothing is left when the arm is measured
    proof = [another, "limits", f"{another} ended"]
    each = ["session", "verify", "neighbour", *WINDOW, "neighbour ended", "verify", "session ended"]
    assert stage.log == [*BEFORE[:5], *proof, *each, *each, *each, *AFTER]
    assert stage.audited == ["start"]
    assert [notes.outcome for notes in trials] == ["answered"] * 3
    assert not any(broken(notes) for notes in trials)
    assert ["start" in {phase.name for phase in notes.phases} for notes in trials] == [True, False, False]
    assert [notes.facts["instance"] for notes in trials] == ["b01-t0001"] * 3
    assert [notes.said for notes in trials] == [b"", b"", b"what it said"], "the log of all of them is with the last"
    assert [check.name for check in trials[0].checks].count("the limits") == 1
    assert "the limits" not in {check.name for notes in trials[1:] for check in notes.checks}


@pytest.mark.parametrize(
    "wrong",
    [
        {"wrong": "another digest", "outcome": None},
        {"outcome": "host harmed"},
        {"began": False, "wrong": "another digest"},  # no neighbour can have done it: the trial is invalid
        {"began": False, "users": [0, 1500, 1500]},
    ],
)
def test_a_victim_that_is_not_well_is_not_left_to_the_next_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    at = 2 if "users" in wrong else 1  # it is another than the first trial's
    stage = Stage(watched(WELL), only_at=at, **SHARED, **wrong)
    trials = stage.perform(monkeypatch, tmp_path, trials=3)
    assert instances(stage) == ["b01-t0001", f"b01-t000{at + 1}"]
    assert trials[at - 1].said == trials[-1].said == b"what it said"
    assert [notes.facts["instance"] for notes in trials][at:] == [f"b01-t000{at + 1}"] * (3 - at)


def test_a_victim_is_seeded_once_and_its_loads_programs_are_there_for_all_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A seed that cannot be run twice (`createdb`) would fail every second trial."""
    stage = Stage(watched(WELL), has_programs=True, only_at=2, outcome="host harmed", **SHARED)
    stage.perform(monkeypatch, tmp_path, trials=4)
    assert instances(stage) == ["b01-t0001", "b01-t0003"]
    assert [client.is_seeded for client in stage.clients] == [False, True, False, True], "anew with each instance"
    assert {str(client.programs) for client in stage.clients} == {"the programs"}
    told = [line for line in stage.log if line.startswith(("programs", "instance"))]
    once = ["programs", "programs ended"]
    assert told == [
        line for trial in ("b01-t0001", "b01-t0003") for line in (f"instance {trial}", *once, f"instance {trial} ended")
    ]


@pytest.mark.parametrize("fails", ["warm-up", "load"])
def test_a_trial_that_fails_leaves_no_instance_to_the_next_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    stage = Stage(watched(WELL), only_at=2, fails=fails, **SHARED)
    with pytest.raises(TrialError, match=f"no {fails}"):
        stage.perform(monkeypatch, tmp_path, trials=3)
    assert instances(stage) == ["b01-t0001", "b01-t0003"]


def test_a_victim_whose_agent_is_silent_is_not_left_to_the_next_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    stage = Stage(watched(WELL, silent=True), **SHARED)
    trials = stage.perform(monkeypatch, tmp_path, trials=2)
    assert [notes.outcome for notes in trials] == ["answered"] * 2
    assert instances(stage) == ["b01-t0001", "b01-t0002"]


def test_while_a_limit_does_not_bite_each_neighbours_trial_is_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Unlimited(Stage):
        def of_limits(self, notes: Notes, _instance: Any, _known: Any) -> frozenset[str]:
            notes.check("the limits", False, "")
            return frozenset()

    trials = Unlimited(watched(WELL), **SHARED).perform(monkeypatch, tmp_path, trials=3)
    assert [broken(notes) for notes in trials] == [{"the limits"}] * 3


def test_requests_that_failed_without_a_neighbour_make_the_trial_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (notes,) = Stage(watched(WELL), aggressor="", wrong="another digest").perform(monkeypatch, tmp_path)
    assert broken(notes) == {"requests were answered", "answered correctly after"}
    assert notes.outcome is None


@pytest.mark.parametrize("fails", ["start", "warm-up", "load"])
@pytest.mark.parametrize("aggressor", ["", "cpu"])
def test_a_trial_that_fails_is_undone_as_any_other_and_what_the_service_said_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str, aggressor: str
) -> None:
    stage = Stage(watched(WELL), aggressor=aggressor, fails=fails)
    with pytest.raises(TrialError, match=f"no {fails}"):
        stage.perform(monkeypatch, tmp_path)
    assert stage.log[-len(AFTER) :] == AFTER
    (notes,) = stage.notes
    assert notes.said == b"what it said"
    assert [phase.name for phase in notes.phases][-1] == "teardown"
    assert notes.outcome is None


def test_a_server_that_falls_silent_beside_the_others_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its trial fails, and what it could not serve is a result as well: the ratios of the other blocks are the better
    ones.
    """

    class Crowded(Stage):
        def start(self, _instance: Any, clock: str, rate_hz: float, **told: Any) -> None:
            assert dict(told["beside"]) == {"beside-other": SimpleNamespace(cgroup="virtoll/other")}

    class AtOnce(Session):
        def warm_up(self, duration_ns: int | None = None) -> None:
            """At once."""

        def measure(self, **_: Any) -> Measurement:
            return measurement(ANSWERED)

    instance = SimpleNamespace(accounting=SimpleNamespace(cgroup="virtoll/other"))
    work = SimpleNamespace(load=SimpleNamespace(settings=SimpleNamespace(time_limit_ns=SECOND_NS)))
    other = Companion("other", cast(Any, work), cast(Any, instance), AtOnce(), *cast(Any, (None, None)))
    monkeypatch.setattr(experiment, "company", lambda *_: nullcontext(Company([other])))
    stage = Crowded(watched(WELL, silent=True), aggressor="", events=ANSWERED)
    with pytest.raises(AgentError, match="answered no more after the window, beside the study's other servers"):
        stage.perform(monkeypatch, tmp_path)
    assert [notes.outcome for notes in stage.notes] == ["did not answer"]


def test_an_instance_that_falls_silent_beside_no_neighbour_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    with pytest.raises(AgentError, match="no neighbour was at work"):
        concluded(monkeypatch, tmp_path, watched(WELL, silent=True), began=False)
    with pytest.raises(StreamError):
        concluded(monkeypatch, tmp_path, watched(WELL, silent=True), aggressor="")
    concluded(monkeypatch, tmp_path, watched(WELL, silent=True))
