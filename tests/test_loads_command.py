"""A load of one's own: what is wrong with it beforehand, how it is run, and what is made of its words; on fakes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from virtoll.agent import ExecResult
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Host
from virtoll.images.base import Image, Wanted
from virtoll.lab.client import SAID, Client, Programs
from virtoll.loads import program
from virtoll.loads.base import Intensity, Measurement
from virtoll.loads.command import CommandLoad, CommandSettings
from virtoll.loads.dnsperf import Dnsperf, DnsperfSettings
from virtoll.loads.pgbench import Pgbench, PgbenchSettings
from virtoll.loads.program import ProgramLoad
from virtoll.loads.reading import Reading
from virtoll.offers import Dns, Offer, Postgres, Tcp
from virtoll.record.model import Quantity
from virtoll.study.values import BesideAfterKind
from virtoll.trial import proofs
from virtoll.trial.notes import Notes

FIXTURES = Path(__file__).parent / "fixtures" / "loads"
OFFER = Tcp("198.18.1.2", 8080)
SECOND_NS = 10**9
NOBODY = "65534:65534"


def settings(**told: Any) -> CommandSettings:
    """Of a program that says how much it did, where nothing else is told."""
    return CommandSettings(
        **{"run": ("bench", "{address}"), "work": Reading(read=r"did (\d+)"), "warm_up_ns": 0, **told}
    )


# -- beforehand -------------------------------------------------------------------------------------------


def problems(**told: Any) -> list[Problem]:
    return CommandLoad(settings(**told)).check(cast(Host, None))


@pytest.mark.parametrize(
    ("told", "what", "where", "remedy"),
    [
        ({"run": ()}, "is empty", "[load] run", 'run = ["program", "{address}"]'),
        (
            {"run": ("bench", "{host}:{port}")},
            "nothing is known of {host}",
            "[load] run",
            "there are {address}, {port}, {users}, {rate}, {seconds}",
        ),
        ({"seed": ("init", "{scale}")}, "nothing is known of {scale}", "[load] seed", "{address}"),
        ({"work": Reading()}, "give one of read", "[load] work", "see `virtoll help own`"),
        ({"failed": Reading(read="x")}, "has 0 groups", "[load] failed", "see `virtoll help own`"),
        ({"seeded": Reading(read="(")}, "is no regular expression", "[load] seeded", "see `virtoll help own`"),
        ({"elapsed": Reading(json="[")}, "is no path", "[load] elapsed", "see `virtoll help own`"),
        ({"quantities": {"p99_ms": Reading()}}, "give one of read", "[load] quantities.p99_ms", "virtoll help own"),
        (
            {"image": BesideAfterKind("dir:/a"), "packages": ("wrk",)},
            "an image and packages",
            "[load]",
            "give one of the two",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_a_sentence_with_its_place_and_remedy(
    told: dict[str, Any], what: str, where: str, remedy: str
) -> None:
    (problem,) = problems(**told)
    assert what in problem.what
    assert problem.where == where
    assert remedy in problem.remedy


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert problems() == []
    found = problems(run=("{a}", "{b}"), work=Reading(), quantities={"x": Reading(read="(")})
    assert [problem.where for problem in found] == ["[load] work", "[load] quantities.x", "[load] run", "[load] run"]


def test_programs_come_from_an_image_or_from_packages() -> None:
    assert CommandLoad(settings(image=BesideAfterKind("dir:/a"))).programs == Wanted("dir:/a")
    assert CommandLoad(settings(packages=("wrk", "curl"))).programs == Wanted("", ("curl", "wrk"))
    assert CommandLoad(settings()).programs == Wanted("", ("debianutils",))


@pytest.mark.parametrize(
    ("told", "what", "where"),
    [
        ({}, [], []),
        ({"run": ("/opt/own",)}, [], []),
        ({"run": ("own",), "env": {"PATH": "/opt"}}, [], []),
        ({"run": ("own",)}, ["there is no program own in PATH /usr/local/sbin:"], ["[load] run"]),
        (
            {"run": ("/opt/none",), "seed": ("/opt/plain",)},
            ["there is no program /opt/none", "there is no program /opt/plain"],
            ["[load] run", "[load] seed"],
        ),
    ],
)
def test_a_program_that_its_image_does_not_have_is_told_before_anything_is_deployed(
    tmp_path: Path, told: dict[str, Any], what: list[str], where: list[str]
) -> None:
    for name, mode in (("usr/bin/bench", 0o755), ("opt/own", 0o755), ("opt/plain", 0o644)):
        path = tmp_path / "rootfs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(mode)
    found = CommandLoad(settings(**told)).problems_with(Image("load", "0" * 64, tmp_path))
    assert [problem.where for problem in found] == where
    assert all(problem.what.startswith(words) for problem, words in zip(found, what, strict=True))
    assert all("packages = [...]" in problem.remedy for problem in found)


def test_what_it_measures_is_named_by_the_study_or_by_its_key() -> None:
    assert CommandLoad(settings()).unit == "unit"
    load = CommandLoad(
        settings(
            work=Reading(read="(1)", unit="order"),
            quantities={
                "latency_p99_ms": Reading(read="(1)", better="less"),
                "cache": Reading(read="(1)", unit="hits", title="Found in the cache", better="more"),
                "depth": Reading(read="(1)"),
            },
        )
    )
    assert load.unit == "order"
    assert load.quantities == {
        "latency_p99_ms": Quantity("Latency p99", "ms", "less"),
        "cache": Quantity("Found in the cache", "hits", "more"),
        "depth": Quantity("Depth", "", None),
    }


# -- run --------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """A client's host, its programs' agent and the time, in one: programs say what they are told to, and take time."""

    directory: Path
    says: list[str | AgentError | ExecResult] = field(default_factory=list)  # one after the other
    takes_s: float = 2.5
    answered_bytes: int = 1000  # over the link, by each program
    ran: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    now_ns: int = 10**12
    cpu_ns: int | None = 0
    received: int = 0

    def run(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str], user: str) -> ExecResult:
        self.ran.append({"argv": list(argv), "timeout_s": timeout_s, "env": dict(env), "user": user})
        self.now_ns += round(self.takes_s * SECOND_NS)
        self.cpu_ns = None if self.cpu_ns is None else self.cpu_ns + SECOND_NS // 4
        self.received += self.answered_bytes
        said = self.says.pop(0)
        if isinstance(said, AgentError):
            raise said
        return said if isinstance(said, ExecResult) else ExecResult(0, said.encode(), b"")

    def put(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def received_bytes(self) -> int:
        return self.received

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)

    def client(self) -> Client:
        programs = cast(Programs, _Programs(self))
        return cast(Client, _Client(self.directory, programs, self))


@dataclass
class _Programs:
    machine: Machine

    @property
    def agent(self) -> Machine:
        return self.machine

    def cpu_ns(self) -> int | None:
        return self.machine.cpu_ns


@dataclass
class _Client:
    directory: Path
    programs: Programs
    machine: Machine
    is_seeded: bool = False

    def received_bytes(self) -> int:
        return self.machine.received_bytes()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setattr(program, "time", machine)
    return machine


def measured(
    machine: Machine, load: ProgramLoad, *said: str | AgentError | ExecResult, offer: Offer = OFFER, **told: Any
) -> Measurement:
    """One window, by a program that says this."""
    machine.says = list(said)
    with load.session(machine.client(), offer) as session:
        session.warm_up()
        return session.measure(**told)


def words(machine: Machine) -> list[list[str]]:
    return [ran["argv"] for ran in machine.ran]


def test_placeholders_are_filled_in_for_the_seed_the_warm_up_and_the_window(machine: Machine) -> None:
    load = CommandLoad(
        settings(
            run=("bench", "tcp://{address}:{port}", "-c{users}", "-r", "{rate}", "-t", "{seconds}"),
            seed=("init", "{address}", "{users}", "{seconds}"),
            users=7,
            rate_per_s=2.5,
            time_limit_ns=3 * SECOND_NS,
            warm_up_ns=SECOND_NS,
            env={"MORE": "1", "HOME": "/srv"},
        )
    )
    measured(machine, load, "", "did 1", "did 2")
    there = "tcp://198.18.1.2:8080"
    assert words(machine) == [
        ["init", "198.18.1.2", "7", "3"],
        ["bench", there, "-c7", "-r", "2.5", "-t", "1"],
        ["bench", there, "-c7", "-r", "2.5", "-t", "3"],
    ]
    limits_s = [program._SEED_S, 1 + program._GRACE_S, 3 + program._GRACE_S]
    assert [(ran["timeout_s"], ran["user"]) for ran in machine.ran] == [(limit_s, NOBODY) for limit_s in limits_s]
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert machine.ran[0]["env"] == {"PATH": path, "HOME": "/srv", "LC_ALL": "C", "MORE": "1"}


@pytest.mark.parametrize(("loop", "users", "rate"), [("closed", "30", "100"), ("open", "1", "30")])
def test_the_loop_says_what_the_intensity_is(machine: Machine, loop: str, users: str, rate: str) -> None:
    load = CommandLoad(settings(run=("bench", "{users}", "{rate}", "{seconds}"), loop=loop))
    assert load.loop == loop
    window = measured(machine, load, "did 5", intensity=30, duration_ns=2 * SECOND_NS).window
    assert words(machine) == [["bench", users, rate, "2"]]
    assert window.at == 30


def test_the_window_is_from_the_programs_start_to_its_end(machine: Machine) -> None:
    found = measured(machine, CommandLoad(settings()), "did 5", start_ns=machine.now_ns + SECOND_NS)
    assert found.instrument == "bench"
    assert (found.window.start_ns, found.window.duration_ns) == (10**12 + SECOND_NS, round(2.5 * SECOND_NS))
    assert (found.window.work, found.window.events, found.window.values) == (5, {}, {})
    assert found.window.cpu_ns == SECOND_NS // 4


def test_or_as_long_as_it_says_from_its_start_on(machine: Machine) -> None:
    load = CommandLoad(settings(elapsed=Reading(read=r"in (\d+) ms", times=0.001)))
    window = measured(machine, load, "did 5 in 2000 ms").window
    assert (window.start_ns, window.duration_ns) == (10**12, 2 * SECOND_NS)
    assert window.until_ns == 10**12 + round(2.5 * SECOND_NS), "in rotation nobody else has a turn before"
    assert (window.cpu_span_ns, window.cpus, window.cpus_at_most) == (round(2.5 * SECOND_NS), 0.1, 0.125)
    with pytest.raises(TrialError, match=r"it says that 2000 s elapsed, and it ran for 2.5 s(?s:.*)times = 0.001"):
        measured(machine, CommandLoad(settings(elapsed=Reading(read=r"in (\d+)"))), "did 5 in 2000 ms")
    with pytest.raises(TrialError, match="a window of 0 s is none"):
        measured(machine, CommandLoad(settings(elapsed=Reading(read=r"in (\d+)"))), "did 5 in 0 ms")


def test_work_failures_and_quantities_are_read_in_all_that_it_printed(machine: Machine) -> None:
    load = CommandLoad(
        settings(
            work=Reading(read=r"did (\d+)", unit="order"),
            failed=Reading(read=r"failed (\d+)"),
            quantities={"p99_ms": Reading(read=r"p99 ([\d.]+)")},
        )
    )
    window = measured(machine, load, ExecResult(0, b"did 90\np99 1.5\n", b"failed 10\n")).window
    assert (window.work, window.values) == (90, {"p99_ms": 1.5})
    events = window.events["order"]
    assert (events.offered, events.completed, events.failures, events.censored) == (100, 90, {"unspecified": 10}, 10)


@pytest.mark.parametrize(
    ("done", "offered"),
    [(219, True), (218, False)],  # 270 due on average, less three standard deviations: 220, of which 99.5 % suffice
)
def test_an_open_loop_that_tells_no_failures_has_no_events_and_still_its_schedule(
    machine: Machine, done: int, offered: bool
) -> None:
    """Nobody knows what failed; 'none failed' would be a guess. What was due is proved as strictly as ever."""
    load = CommandLoad(settings(loop="open", rate_per_s=108.0))
    found = measured(machine, load, f"did {done}")
    assert (found.window.events, found.window.counts) == ({}, {"intended": 220})
    notes = Notes(machine.directory, lambda _phase: None)
    told = load.measured([found])
    proofs.of_generator(notes, told, 1)
    proofs.of_requests(notes, told)
    checks = {check.name: (check.passed, check.detail) for check in notes.checks}
    unknown = "the load does not tell how many failed"
    assert checks["offered load met intended"] == (offered, f"{done} of 220 units done; {unknown}")
    assert checks["the generator kept its schedule"][0] is None
    assert checks["units were answered"] == (None, f"{done} done; {unknown}")


def test_one_that_tells_its_failures_has_them_in_its_events(machine: Machine) -> None:
    load = CommandLoad(settings(loop="open", rate_per_s=108.0, failed=Reading(read=r"failed (\d+)")))
    window = measured(machine, load, "did 219 failed 0").window
    events = window.events["unit"]
    assert (events.intended, events.offered, events.failures, window.counts) == (220, 219, {}, {})


def test_where_the_kernel_does_not_tell_its_cpu_time_is_missing(machine: Machine) -> None:
    machine.cpu_ns = None
    assert measured(machine, CommandLoad(settings()), "did 5").window.cpu_ns is None


def test_all_that_its_programs_printed_is_kept(machine: Machine) -> None:
    load = CommandLoad(settings(seed=("init",), run=("bench", "a b"), warm_up_ns=SECOND_NS))
    measured(machine, load, "made", "did 1", ExecResult(0, b"did 2", b", a warning"))
    kept = (machine.directory / SAID).read_text()
    assert kept == "$ init\nmade\n$ bench 'a b'\ndid 1\n$ bench 'a b'\ndid 2, a warning\n"


# -- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "said", "what", "where"),
    [
        ({}, "", "work: nothing matches read = 'did (\\\\d+)'; it ended with:\n(nothing)", "what `run` printed"),
        ({}, "hello", "it ended with:\nhello", "what `run` printed"),
        (
            {"failed": Reading(read=r"failed (\S+)")},
            "did 1 failed all",
            "failed: what read = 'failed (\\\\S+)' matches is 'all', which is no number",
            "what `run` printed",
        ),
        (
            {"quantities": {"p99_ms": Reading(json="a.b")}},
            "did 1",
            "quantities.p99_ms: there is no JSON in what it printed",
            "what `run` printed",
        ),
        ({"work": Reading(read=r"did (\S+)")}, "did -1", "-1 were done and 0 failed, which cannot be", "`run`"),
    ],
)
def test_a_number_that_cannot_be_read_fails_the_trial_with_the_end_of_what_it_said(
    machine: Machine, told: dict[str, Any], said: str, what: str, where: str
) -> None:
    with pytest.raises(TrialError) as caught:
        measured(machine, CommandLoad(settings(**told)), said)
    problem = caught.value.problem
    assert what in problem.what
    assert where in problem.where
    assert problem.remedy == "all that it printed is in the trial's load.txt"
    assert said in (machine.directory / SAID).read_text()


def test_only_the_end_of_much_is_told(machine: Machine) -> None:
    with pytest.raises(TrialError) as caught:
        measured(machine, CommandLoad(settings()), f"begin{'x' * 10_000}end")
    assert caught.value.problem.what.endswith("xend")
    assert len(caught.value.problem.what) < 2000


@pytest.mark.parametrize(
    ("ended", "what"),
    [
        (ExecResult(3, b"some figures", b"cannot connect\n"), "bench gave up with exit 3:\ncannot connect"),
        (ExecResult(1, b"usage: bench\n", b""), "bench gave up with exit 1:\nusage: bench"),
        (ExecResult(-11, b"", b""), "bench was ended by signal 11:\n(it said nothing)"),
        (AgentError("cannot start: no program bench"), "bench: cannot start: no program bench"),
        (AgentError("more than 1048576 bytes of output; killed"), "bench: more than 1048576 bytes of output; killed"),
        (AgentError("no end within 40000 ms; killed"), "bench: no end within 40000 ms; killed"),
    ],
)
def test_a_program_that_fails_fails_the_trial_with_its_words(
    machine: Machine, ended: ExecResult | AgentError, what: str
) -> None:
    for load, place in ((settings(), "[load] run"), (settings(seed=("bench",)), "[load] seed")):
        with pytest.raises(TrialError) as caught:
            measured(machine, CommandLoad(load), ended)
        assert caught.value.problem.what == what
        assert caught.value.problem.where == place


def test_a_service_that_an_earlier_trial_of_its_deployment_seeded_is_not_seeded_again(machine: Machine) -> None:
    load, client = CommandLoad(settings(seed=("createdb", "shop"))), machine.client()
    machine.says = ["", ExecResult(1, b"", b"database shop exists")]
    for is_seeded in (False, True):
        cast(Any, client).is_seeded = is_seeded
        with load.session(client, OFFER):
            pass
    assert words(machine) == [["createdb", "shop"]]


def test_a_seed_is_seen_by_the_bytes_that_came(machine: Machine) -> None:
    load = CommandLoad(settings(seed=("init",)))
    assert measured(machine, load, "", "did 1").window.work == 1
    machine.answered_bytes = 0
    with pytest.raises(TrialError) as caught:
        measured(machine, load, "all is well", "did 1")
    assert caught.value.problem.what == "the seed seeded nothing: nothing was exchanged with the service"
    assert caught.value.problem.where == "[load] seed"
    assert "{address}" in caught.value.problem.remedy


def test_or_by_a_number_above_0(machine: Machine) -> None:
    machine.answered_bytes = 0
    load = CommandLoad(settings(seed=("init",), seeded=Reading(read=r"rows: (\d+)")))
    assert measured(machine, load, "rows: 7", "did 1").window.work == 1
    with pytest.raises(TrialError, match="the seed seeded nothing: what `seeded` reads is 0"):
        measured(machine, load, "rows: 0", "did 1")
    with pytest.raises(TrialError, match="nothing matches") as caught:
        measured(machine, load, "no rows", "did 1")
    assert "what `seed` printed" in caught.value.problem.where


def test_a_common_start_that_has_passed_is_told(machine: Machine) -> None:
    with pytest.raises(TrialError, match="the common start has passed"):
        measured(machine, CommandLoad(settings()), "did 1", start_ns=machine.now_ns - 1)


# -- Debian's own -----------------------------------------------------------------------------------------

PGBENCH = "/usr/lib/postgresql/15/bin/pgbench"


def test_pgbench_is_seeded_once_and_asked_for_what_its_parser_reads(machine: Machine) -> None:
    ok = (FIXTURES / "pgbench_ok.txt").read_text()
    machine.takes_s = 2
    load = Pgbench(PgbenchSettings(script="select-only", scale=3, users=2, warm_up_ns=0, time_limit_ns=2 * SECOND_NS))
    offer = Postgres("198.18.1.2", 5432)
    window = measured(machine, load, (FIXTURES / "pgbench_seed.txt").read_text(), ok, offer=offer).window
    there = ["--host", "198.18.1.2", "--port", "5432", "--username", "postgres", "postgres"]
    run = [PGBENCH, "--builtin", "select-only", "--client", "2", "--time", "2", "--jobs", "1", "--no-vacuum"]
    assert words(machine) == [
        [PGBENCH, "--initialize", "--quiet", "--scale", "3", *there],
        [*run, "--progress", "3600", *there],
    ]
    assert window.events["transaction"].completed == window.work == 161
    assert window.duration_ns == round(161 / 81.740494 * 1e9)
    opened = replace(load.settings, loop="open", rate_per_s=50.5)
    assert load.command(opened, offer, 1)[-9:] == ["--rate", "50.5", *there]


def test_a_pgbench_whose_server_died_fails_its_trial(machine: Machine) -> None:
    """Its report is incomplete, whatever figures it gives."""
    died = ExecResult(2, (FIXTURES / "pgbench_died.txt").read_bytes(), b"")
    with pytest.raises(TrialError, match=r"(?s)gave up with exit 2:.*the above results are incomplete"):
        measured(machine, Pgbench(PgbenchSettings(warm_up_ns=0)), "", died, offer=Postgres("198.18.1.2", 5432))


def test_dnsperf_asks_for_names_of_the_zone(machine: Machine) -> None:
    machine.takes_s = 2.1
    load = Dnsperf(DnsperfSettings(names=3, users=200, warm_up_ns=0, time_limit_ns=2 * SECOND_NS))
    offer = Dns("198.18.1.2", 53, "virtoll.test")
    window = measured(machine, load, (FIXTURES / "dnsperf_ok.txt").read_text(), offer=offer).window
    assert machine.files == {"/run/virtoll/queries": b"".join(b"host%d.virtoll.test A\n" % n for n in range(3))}
    ends = ["-l", "2", "-m", "udp", "-c", "100", "-q", "200", "-T", "1", "-t", "5"]
    assert words(machine) == [["dnsperf", "-s", "198.18.1.2", "-p", "53", "-d", "/run/virtoll/queries", *ends]]
    assert (window.work, window.duration_ns) == (32925, 2_000_797_000)
    opened = replace(load.settings, loop="open", rate_per_s=500, protocol="tcp")
    assert load.command(opened, offer, 1)[-2:] == ["-Q", "500"]
    for rate_per_s, outstanding in ((500.0, "2501"), (20_000.0, "10000")):  # what is due waits for nothing that is lost
        assert f"-q {outstanding} " in " ".join(load.command(replace(opened, rate_per_s=rate_per_s), offer, 1))
    assert load.command(replace(opened, rate_per_s=2_345_678.0), offer, 1)[-1] == "2345678", "no exponent, no rounding"
    assert Dnsperf(opened).intensity == Intensity("queries/s", whole=True), "it takes no other"


@pytest.mark.parametrize(("loop", "rate_per_s", "remedy"), [("open", 0.5, "1"), ("open", 9, ""), ("closed", 0.5, "")])
def test_a_rate_that_dnsperf_does_not_take_is_told_before_anything_is_deployed(
    loop: Any, rate_per_s: float, remedy: str
) -> None:
    """It gave up at the first warm-up of each trial."""
    found = Dnsperf(DnsperfSettings(loop=loop, rate_per_s=float(rate_per_s))).check(cast(Host, None))
    assert [each.remedy for each in found] == ([f"write rate = {remedy}"] if remedy else [])


@pytest.mark.parametrize(("run_s", "max_s", "took_s"), [("2.001193", "0.054708", 2.001193), ("5.2", "3.0", 5.0)])
def test_what_a_slow_server_answers_to_dnsperf_long_after_is_no_rate_of_the_window(
    machine: Machine, run_s: str, max_s: str, took_s: float
) -> None:
    """It was all counted to the two seconds in which it was asked; a generator that sent all was not late for that."""
    machine.takes_s = 5.3
    said = (FIXTURES / "dnsperf_ok.txt").read_text().replace("2.001193", run_s).replace("0.054708", max_s)
    load = Dnsperf(DnsperfSettings(loop="open", rate_per_s=16_000.0, warm_up_ns=0, time_limit_ns=2 * SECOND_NS))
    window = measured(machine, load, said, offer=Dns("198.18.1.2", 53, "virtoll.test")).window
    assert window.duration_ns == pytest.approx(took_s * 1e9)
    assert window.work == 32925
    assert window.events["query"].intended == 32_000 - math.ceil(3 * math.sqrt(32_000))


@pytest.mark.parametrize(("load", "offer"), [(Pgbench(), Postgres("a", 1)), (Dnsperf(), Dns("a", 1, "z"))])
def test_debians_programs_come_in_an_image_of_their_own(load: ProgramLoad, offer: Offer) -> None:
    assert load.programs == Wanted("", load.packages)
    assert load.check(cast(Host, None)) == []
    assert load.problems_with(FAKE_IMAGE) == []
    assert isinstance(offer, load.takes)
    assert set(load.quantities) == {"latency_mean_ms", "latency_stddev_ms"}
