"""The other servers beside the one that a trial measures: when they are there and are loaded, and what is proved."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.agent import ClockOffset
from virtoll.errors import Problem, TrialError
from virtoll.lab.base import SLOTS
from virtoll.lab.shaping import LinkShape
from virtoll.lab.slices import Slices
from virtoll.loads.base import Measurement, Session
from virtoll.monitor import Watched
from virtoll.offers import Http, HttpObject, Port
from virtoll.record.model import HEADROOM_FOR_ALL, Arm, Events, Measured, PlannedTrial, Window
from virtoll.study.limits import Limits
from virtoll.study.model import Background, Monitoring, Neighbour
from virtoll.trial import company as companies
from virtoll.trial.company import ROOM, Companion, Company, company
from virtoll.trial.notes import Notes
from virtoll.trial.subjects import DrivenService
from virtoll.trial.treatment import Driven, Treatment
from virtoll.trial.watchdog import Watch

SECOND_NS = 10**9
ARM = Arm(label="a", platform="double", network="routed")
TRIAL = PlannedTrial(id="b01-t0001", block=1, position=1, arm=ARM, condition={})
LAB = cast(
    Any,
    SimpleNamespace(
        generator=SimpleNamespace(cpus=frozenset({1})),
        sut=SimpleNamespace(cpus=frozenset({0})),
        directory=Path("/nonexistent"),
        cgroup="virtoll-double",
    ),
)


def window(start_ns: int = 0, *, duration_ns: int = SECOND_NS, work: float = 100, offered: int = 100) -> Window:
    lost = 100 - int(work)
    events = Events(
        intended=100, offered=offered, completed=int(work), failures={"timeout": lost}, censored=lost, late=0
    )
    return Window(start_ns=start_ns, duration_ns=duration_ns, work=work, events={"request": events}, cpu_ns=10**8)


def measured_of(each: Window, loop: str = "open") -> Measured:
    return Measured.model_validate(
        {"name": "double", "instrument": "double 1", "unit": "request", "loop": loop, "windows": [each]}
    )


@dataclass
class SessionDouble(Session):
    """Notes what it is asked."""

    told: Window = field(default_factory=window)
    lead: int = 0
    fails: str = ""
    asked: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def lead_ns(self) -> int:
        return self.lead

    def warm_up(self, duration_ns: int | None = None) -> None:
        self.asked.append(("warm-up", duration_ns))

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        self.asked.append(("measure", (intensity, duration_ns, start_ns)))
        if self.fails:
            raise TrialError(self.fails)
        return Measurement("double 1", self.told)


def work_of(
    name: str,
    session: Session,
    log: list[str],
    loop: str = "open",
    wrong: str | TrialError = "",
    *,
    content: HttpObject | None = None,
) -> Driven:
    """A service and its load that note what is done with them."""

    def verify(*_: Any) -> list[Problem]:
        if isinstance(wrong, TrialError):
            raise wrong
        return [Problem(wrong)] if wrong else []

    service = SimpleNamespace(
        name=name,
        ports=(Port(80),),
        hold=lambda _instance, contents: log.append(f"{name} holds {contents}"),
        start=lambda _instance, _origin: Http("198.18.3.9", 80),
        await_ready=lambda *_: log.append(f"{name} ready"),
        verify=verify,
        counted=lambda *_: {},
        digests={},
    )

    @contextmanager
    def opened(*_: Any) -> Iterator[Session]:
        log.append(f"{name} load opened")
        yield session
        log.append(f"{name} load closed")

    load = SimpleNamespace(
        content=content,
        loop=loop,
        session=opened,
        settings=SimpleNamespace(time_limit_ns=SECOND_NS),
        measured=lambda measurements: measured_of(measurements[0].window, loop),
        usable_cpus=lambda cpus: cpus,
    )
    return Driven(cast(Any, service), None, cast(Any, load))


ONE_CPU = Limits(vcpus=1)


def instance_of(name: str, *, lives: bool = True, limits: Limits = ONE_CPU) -> Any:
    return SimpleNamespace(
        accounting=SimpleNamespace(cgroup=f"virtoll/{name}"),
        facts={},
        limits=limits,
        platform="double",
        services={},
        agent=SimpleNamespace(tail=lambda path, _most: f"said in {path}".encode()),
        is_running=lambda: lives,
    )


OFFER = Http("198.18.3.9", 80)


def companion(
    session: SessionDouble,
    name: str = "vlc",
    *,
    lives: bool = True,
    loop: str = "open",
    wrong: str | TrialError = "",
    limits: Limits = ONE_CPU,
) -> Companion:
    work = work_of(name, session, [], loop, wrong)
    return Companion(name, work, instance_of(name, lives=lives, limits=limits), session, OFFER, cast(Any, None))


def seen(**cpus: float) -> Watched:
    """One second in which each source used so many CPUs."""
    used = {name.replace("_", "-"): share for name, share in cpus.items()}
    rows = [(t, name, "cpu.usage_ns", round(t * share)) for name, share in used.items() for t in (0, SECOND_NS)]
    return Watched(rows, None, ClockOffset(0, 0), ClockOffset(0, 0), SECOND_NS, 0, 0, {})


WELL = seen(instance=0.3, beside_vlc=0.3, generator=0.4)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _phase: None)


def broken(notes: Notes) -> list[str]:
    return [check.name for check in notes.checks if check.passed is False]


# -- when their loads begin --------------------------------------------------------------------------------


def test_all_windows_begin_at_one_time_that_leaves_the_longest_lead() -> None:
    measured, viewers, quick = SessionDouble(), SessionDouble(lead=7 * SECOND_NS), SessionDouble()
    others = Company([companion(viewers), companion(quick, "nginx")])
    before_ns = time.monotonic_ns()
    with others.at_work(measured) as start_ns:
        assert start_ns is not None
    assert start_ns - before_ns > 7 * SECOND_NS
    assert viewers.asked == quick.asked == [("measure", (None, SECOND_NS, start_ns))]


def test_the_measured_servers_own_lead_counts_as_well() -> None:
    measured = SessionDouble(lead=9 * SECOND_NS)
    before_ns = time.monotonic_ns()
    with Company([companion(SessionDouble())]).at_work(measured) as start_ns:
        assert start_ns is not None
        assert start_ns - before_ns > 9 * SECOND_NS


def test_alone_it_begins_at_once() -> None:
    with Company().at_work(SessionDouble(lead=9 * SECOND_NS)) as start_ns:
        assert start_ns is None


def test_all_are_warmed_up_while_the_measured_one_is() -> None:
    sessions = [SessionDouble(), SessionDouble()]
    with Company([companion(each) for each in sessions]).warming_up():
        pass
    assert [each.asked for each in sessions] == [[("warm-up", None)]] * 2


def test_a_generator_that_fails_beside_it_is_the_trials_failure() -> None:
    others = Company([companion(SessionDouble(fails="it gave up"))])
    with pytest.raises(TrialError, match="it gave up"), others.at_work(SessionDouble()):
        pass


def test_what_fails_in_the_measured_load_goes_first() -> None:
    others = Company([companion(SessionDouble(fails="theirs"))])
    with pytest.raises(TrialError, match="ours"), others.at_work(SessionDouble()):
        raise TrialError("ours")


@pytest.mark.parametrize("what", ["at_work", "warming_up"])
def test_where_the_trial_is_given_up_the_others_loads_are_ended_and_not_awaited(what: str) -> None:
    """An interrupt while it measures: the others' windows may last for minutes still."""
    ended = threading.Event()

    class Long(SessionDouble):
        def warm_up(self, duration_ns: int | None = None) -> None:
            assert ended.wait(600), "its window was awaited"

        def measure(
            self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
        ) -> Measurement:
            self.warm_up()
            raise TrialError("ended by signal 9")

    others = Company([companion(Long())], end_loads=ended.set)
    with (
        pytest.raises(KeyboardInterrupt),
        others.at_work(SessionDouble()) if what == "at_work" else others.warming_up(),
    ):
        raise KeyboardInterrupt
    assert ended.is_set()


# -- what is proved ----------------------------------------------------------------------------------------


def proved(notes: Notes, theirs: Window, watched: Watched = WELL, loop: str = "open", *, lives: bool = True) -> None:
    session = SessionDouble(theirs)
    others = Company([companion(session, lives=lives, loop=loop)])
    with others.at_work(SessionDouble()):
        pass
    others.prove(notes, measured_of(window(), loop), watched, LAB)


def test_of_each_it_is_proved_that_it_was_loaded_within_its_limits_and_lived(notes: Notes) -> None:
    proved(notes, window())
    assert {check.name for check in notes.checks} == {
        "vlc beside it: it was under its load",
        "vlc beside it: offered load met intended",
        "vlc beside it: the generator kept its schedule",
        "vlc beside it: the generator had headroom",
        "vlc beside it: the CPU limit held",
        "vlc beside it: the instance lived to the end",
        "vlc beside it: answered correctly after",
        HEADROOM_FOR_ALL,
    }
    assert all(check.passed for check in notes.checks)
    (beside,) = notes.beside
    assert (beside.server, beside.measured.window.work) == ("vlc", 100)


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (window(SECOND_NS // 10), "it was under its load"),  # it began late
        (window(duration_ns=SECOND_NS * 9 // 10), "it was under its load"),  # it ended early
        (window(5 * SECOND_NS), "it was under its load"),  # at another time
        (window(work=0), "it was under its load"),  # it served nothing
        (window(offered=90), "offered load met intended"),
    ],
)
def test_one_that_was_not_under_its_load_makes_the_trial_invalid(notes: Notes, theirs: Window, told: str) -> None:
    proved(notes, theirs)
    assert broken(notes) == [f"vlc beside it: {told}"]


def test_a_little_of_the_window_may_be_missing(notes: Notes) -> None:
    proved(notes, window(SECOND_NS // 100))
    assert broken(notes) == []


def test_one_beyond_its_limit_or_that_ended_makes_the_trial_invalid(notes: Notes) -> None:
    proved(notes, window(), seen(instance=0.1, beside_vlc=1.2, generator=0.1), lives=False)
    assert broken(notes) == ["vlc beside it: the CPU limit held", "vlc beside it: the instance lived to the end"]


@pytest.mark.parametrize(
    ("loop", "used", "held"),
    [
        ("open", {"generator": 0.79, "instance": 0.5, "beside_vlc": 0.5}, True),
        ("open", {"generator": 0.81, "instance": 0.5, "beside_vlc": 0.5}, False),
        ("closed", {"generator": 0.9, "instance": 0.5, "beside_vlc": 0.5}, True),  # they used all they had
        ("closed", {"generator": 0.9, "instance": 0.4, "beside_vlc": 0.4}, False),
        ("closed", {"generator": 0.96, "instance": 0.5, "beside_vlc": 0.5}, False),
        ("open", {"instance": 0.5, "beside_vlc": 0.5}, None),
    ],
)
def test_the_generator_needs_headroom_for_all_loads_together(
    notes: Notes, loop: str, used: dict[str, float], held: bool | None
) -> None:
    proved(notes, window(), seen(**used), loop)
    (check,) = (check for check in notes.checks if check.name == HEADROOM_FOR_ALL)
    assert check.passed is held, check.detail


@pytest.mark.parametrize(
    ("limits", "used", "held"),
    [
        (Limits(vcpus=1), {"instance": 0.5, "beside_vlc": 0.5}, True),
        (Limits(vcpus=2), {"instance": 0.5, "beside_vlc": 0.5}, False),
        (Limits(vcpus=2), {"instance": 1, "beside_vlc": 1}, True),
        (Limits(vcpus=2, budget="vcpus"), {"instance": 1, "beside_vlc": 1}, False),
    ],
)
def test_the_instances_set_the_pace_where_they_used_all_the_cpus_that_they_may(
    notes: Notes, limits: Limits, used: dict[str, float], held: bool
) -> None:
    """The lab's CPUs for instances are as many as the condition with most asks for: where `limits.vcpus` is a factor,
    those under the others never used "all of theirs", and were invalid. With budget "vcpus" helpers compute on others:
    what all used told nothing of the pace, and was taken for it.
    """
    lab = SimpleNamespace(**{**vars(LAB), "sut": SimpleNamespace(cpus=frozenset({0, 2}))})
    others = Company([companion(SessionDouble(), loop="closed", limits=limits)])
    with others.at_work(SessionDouble()):
        pass
    others.prove(notes, measured_of(window(), "closed"), seen(generator=0.9, **used), cast(Any, lab))
    (check,) = (check for check in notes.checks if check.name == HEADROOM_FOR_ALL)
    assert check.passed is held, check.detail


@pytest.mark.parametrize("wrong", ["it says nothing", TrialError("no answer within 10 s")])
def test_one_that_hung_under_its_load_makes_the_trial_invalid(notes: Notes, wrong: str | TrialError) -> None:
    """In closed loop one answer is some work, all that was offered is intended, and its process lives."""
    session = SessionDouble(window(work=1, offered=1))
    others = Company([companion(session, loop="closed", wrong=wrong)])
    with others.at_work(SessionDouble()):
        pass
    others.prove(notes, measured_of(window(), "closed"), WELL, LAB)
    assert broken(notes) == ["vlc beside it: answered correctly after"]


def test_alone_nothing_is_proved_of_others(notes: Notes) -> None:
    Company().prove(notes, measured_of(window()), WELL, LAB)
    assert (notes.checks, notes.beside) == ([], [])


def test_what_it_could_not_serve_beside_the_others_is_a_result_and_alone_is_none(notes: Notes) -> None:
    def served(others: Company, asked: Notes) -> None:
        session = SessionDouble(window(work=10))
        work = work_of("nginx", session, [])
        client = SimpleNamespace(cpus=1)
        there = (work.service, work.load, session, Http("a", 80), client, LAB, False, instance_of("nginx"))
        subject = cast(Any, DrivenService)(*there, company=others)
        with others.at_work(session):
            pass
        subject.prove(asked, measured_of(window(work=10)), WELL)

    alone = Notes(notes.directory, lambda _phase: None)
    served(Company(), alone)
    assert (broken(alone), alone.outcome) == (["requests were answered"], None)
    served(Company([companion(SessionDouble())]), notes)
    assert (broken(notes), notes.outcome) == (["requests were answered"], "did not answer")


# -- when they are there -------------------------------------------------------------------------------------


@dataclass
class DeployerDouble:
    """Deploys doubles; notes all of them."""

    log: list[str] = field(default_factory=list)
    lab: Any = field(default_factory=lambda: LAB)

    @contextmanager
    def deployed(
        self, name: str, trial: PlannedTrial, limits: Limits, ports: tuple[Port, ...], *, slot: int
    ) -> Iterator[Any]:
        assert (trial.arm, limits, ports) == (ARM, Limits(vcpus=1), (Port(80),))
        self.log.append(f"{name} in slot {slot}")
        instance = instance_of(name)
        instance.agent.sync = lambda path: self.log.append(f"{name} synced {path}")
        yield instance
        self.log.append(f"{name} ended")

    def client(self, name: str) -> Any:
        return SimpleNamespace(directory=name)


def treatment(works: dict[str, Driven]) -> Treatment:
    quiet = (LinkShape(), Slices(), Neighbour(servers="others"), Background(), Monitoring())
    return Treatment(Limits(vcpus=1), *quiet, None, beside=works)


def test_each_is_deployed_like_the_measured_one_and_ends_with_the_trial(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def watched(_directory: Path, _save: Any) -> Iterator[Watch]:
        yield Watch()

    monkeypatch.setattr(companies, "watching", watched)
    deployer = DeployerDouble()
    works = {
        "one": work_of("nginx", SessionDouble(), deployer.log),
        "two": work_of("vlc", SessionDouble(), deployer.log, wrong="it says nothing", content=HttpObject(7)),
    }
    with company(cast(Any, deployer), TRIAL, treatment(works), notes) as others:
        deployer.log.append("measured")
    assert [each.name for each in others.companions] == ["one", "two"]
    groups = {name: each.cgroup for name, each in others.accountings.items()}
    assert groups == {"beside-one": "virtoll/b01-t0001-beside1", "beside-two": "virtoll/b01-t0001-beside2"}
    assert deployer.log == [
        f"b01-t0001-beside1 in slot {SLOTS - 1}",
        "nginx holds []",
        "nginx ready",
        "nginx load opened",
        f"b01-t0001-beside2 in slot {SLOTS - 2}",
        f"vlc holds {[HttpObject(7)]}",
        "b01-t0001-beside2 synced /",
        "vlc ready",
        "vlc load opened",
        "measured",
        "vlc load closed",
        "b01-t0001-beside2 ended",
        "nginx load closed",
        "b01-t0001-beside1 ended",
    ]
    assert [(check.name, check.passed) for check in notes.checks] == [
        ("one beside it: answered correctly before", True),
        ("two beside it: answered correctly before", False),
    ]
    assert [phase.name for phase in notes.phases] == ["neighbours"]
    assert (notes.directory / "beside-two.txt").read_text().endswith("vlc.log")


def test_nobody_is_deployed_beside_one_that_is_alone(notes: Notes) -> None:
    deployer = DeployerDouble()
    with company(cast(Any, deployer), TRIAL, treatment({}), notes) as others:
        assert others.accountings == {}
    assert deployer.log == []


@pytest.mark.parametrize("fails", [False, True])
def test_on_danger_the_watchdog_ends_them_all_and_the_trial_is_invalid(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    ended: list[str] = []

    @contextmanager
    def watched(_directory: Path, save: Any) -> Iterator[Watch]:
        watch = Watch()
        save()
        watch.reason = "the host has only 1 MB of memory left"
        yield watch

    monkeypatch.setattr(companies, "watching", watched)
    monkeypatch.setattr(companies, "end_instance", lambda instance: ended.append(instance.accounting.cgroup))
    deployer = DeployerDouble()
    works = {name: work_of(name, SessionDouble(), []) for name in ("one", "two")}
    told: AbstractContextManager[object] = pytest.raises(TrialError) if fails else nullcontext()
    with told, company(cast(Any, deployer), TRIAL, treatment(works), notes):
        if fails:
            raise TrialError("their generators gave up")
    assert ended == ["virtoll/b01-t0001-beside1", "virtoll/b01-t0001-beside2"]
    assert broken(notes) == [ROOM]
