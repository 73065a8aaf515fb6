"""ab, wrk and siege: command lines, and parsers against what the tools really printed (tests/fixtures/loads)."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from loads_server import MisbehavingServer
from virtoll.analysis.measuring import _leave_out_where_untold, _quantities
from virtoll.analysis.metrics import TrialMetrics
from virtoll.catalogue import catalogue
from virtoll.errors import TrialError
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads import ab, outside, siege, wrk
from virtoll.loads.base import Load, Measurement, Session
from virtoll.loads.outside import HttpTool, ToolSettings
from virtoll.offers import Http
from virtoll.record.model import GENERATOR_HEADROOM, Arm, Events, PlannedTrial, TrialRecord
from virtoll.record.model import MAY_BE_MEASURED as MAY_BE
from virtoll.run.progress import _headline
from virtoll.study.file import read_study
from virtoll.trial import proofs
from virtoll.trial.notes import Notes
from virtoll.trial.treatment import Driven, treatments

FIXTURES = Path(__file__).parent / "fixtures" / "loads"
DIRECT = Http("198.18.3.10", 8080)
PROXY = Http("198.18.3.10", 3128, proxy=True, upstream="198.18.2.2:8080")
END_NS = 10**12
SECOND = 10**9


def printed(name: str) -> outside.Output:
    return outside.Output((FIXTURES / f"{name}.txt").read_text(), "", END_NS)


def ab_measurement(name: str, object_bytes: int = 1000) -> Measurement:
    csv = (FIXTURES / f"ab_{name}.csv").read_text()
    return ab.parse(printed(f"ab_{name}"), csv, ab.AbSettings(requests=2000), object_bytes)


def asked(measurement: Measurement) -> Events:
    return measurement.window.events["request"]


def test_ab_reports_counts_time_and_percentiles() -> None:
    measurement = ab_measurement("ok")
    window, events = measurement.window, asked(measurement)
    assert (events.intended, events.offered, events.completed, events.failures) == (2000, 2000, 2000, {})
    assert (window.work, window.counts) == (2000, {"completed": 2000, "body_bytes": 2_000_000})
    assert (window.duration_ns, window.end_ns) == (218_000_000, END_NS)
    assert (events.percentiles_ns["p1"], events.percentiles_ns["p20"]) == (452_000, 504_000)
    assert set(events.percentiles_ns) == {f"p{percent}" for percent in range(1, 101)}
    assert measurement.instrument == "ab 2.3"
    assert (window.cpu_ns, events.drain, measurement.bulk.histogram) == (None, None, None)


def test_ab_failures_are_counted_once() -> None:
    not_found = asked(ab_measurement("not_found"))
    assert (not_found.failures, not_found.censored) == ({"status": 2000}, 2000)
    refused = asked(ab_measurement("refused"))  # 2000 requests, of which ab counts 3000 as failed
    assert (refused.completed, refused.failures, refused.censored) == (0, {"reset": 2000}, 2000)


def test_ab_counts_an_error_of_another_length_once() -> None:
    """It counts it as Non-2xx and as too short, or too long."""
    said = printed("ab_ok")
    failed = "Failed requests:        40\n   (Connect: 0, Receive: 0, Length: 40, Exceptions: 0)\n"
    failed += "Non-2xx responses:      40\n"
    text = re.sub(r"Failed requests:\s+0\n", failed, said.stdout)
    assert text != said.stdout
    events = asked(ab.parse(replace(said, stdout=text), "", ab.AbSettings(requests=2000), 1000))
    assert (events.completed, events.failures) == (1960, {"status": 40})


def test_ab_is_not_believed_when_all_answers_have_the_same_wrong_length() -> None:
    events = asked(ab_measurement("ok", object_bytes=999))
    assert (events.completed, events.failures) == (0, {"length": 2000})


@pytest.mark.parametrize(
    ("first_bytes", "others", "errors", "body_bytes", "failures"),
    [
        (100, 1999, 1, 1999 * 1000 + 100, {"status": 1}),
        (100, 1999, 1, 1999 * 999 + 100, {"status": 1, "length": 1999}),
        (999, 20, 20, 1980 * 999 + 20 * 100, {"status": 20, "length": 1980}),
        (0, 0, 0, 0, {"length": 2000}),
    ],
    ids=["the first was an error", "and the others are wrong", "some were errors, the others wrong", "empty"],
)
def test_ab_s_idea_of_the_right_length_may_be_an_error_s(
    first_bytes: int, others: int, errors: int, body_bytes: int, failures: dict[str, int]
) -> None:
    """Where the first answer alone was an error all others were told to fail; and where 20 were errors, 1980 of a wrong
    length were told as right.
    """
    said = printed("ab_ok")
    failed = f"Failed requests:        {others}\n   (Connect: 0, Receive: 0, Length: {others}, Exceptions: 0)\n"
    failed += f"Non-2xx responses:      {errors}\n"
    text = re.sub(r"Failed requests:\s+0\n", failed, said.stdout)
    text = re.sub(r"Document Length:\s+\d+", f"Document Length: {first_bytes}", text)
    text = re.sub(r"HTML transferred:\s+\d+", f"HTML transferred: {body_bytes}", text)
    events = asked(ab.parse(replace(said, stdout=text), "", ab.AbSettings(requests=2000), 1000))
    assert (events.completed, events.failures) == (2000 - sum(failures.values()), failures)


def test_wrk_reports_exact_numbers() -> None:
    measurement = wrk.parse(printed("wrk_ok"))
    events = asked(measurement)
    assert events.completed == events.offered == measurement.window.work == 85271
    assert measurement.window.duration_ns == 1_099_814_000
    assert events.percentiles_ns == {}, "it has added to what its requests took"
    assert measurement.window.values == {"corrected_p50_ms": 0.121, "corrected_p90_ms": 0.14, "corrected_p99_ms": 0.785}
    assert wrk.WrkLoad(ToolSettings()).quantities.keys() == measurement.window.values.keys()
    assert "body_bytes" not in measurement.window.counts
    not_found = wrk.parse(printed("wrk_not_found"))
    assert (asked(not_found).failures, not_found.window.values) == ({"status": 89651}, {})


def test_errors_that_wrk_counts_as_late_besides_are_no_more_than_were_asked() -> None:
    """A service of which nothing came but late errors: its report was told not to be one that could be read."""
    said = "virtoll: duration_us=1000000 requests=10 connect=0 read=0 write=0 status={} timeout={}\n"

    def told(status: int, timeout: int) -> Events:
        return asked(wrk.parse(outside.Output(said.format(status, timeout), "", END_NS)))

    assert (told(10, 10).completed, told(10, 10).failures) == (0, {"status": 10})
    assert (told(8, 9).completed, told(8, 9).failures) == (0, {"status": 8, "timeout": 2})
    assert (told(2, 3).completed, told(2, 3).failures) == (5, {"status": 2, "timeout": 3})
    with pytest.raises(TrialError, match="could not be read"):
        told(2, 11)


def test_siege_reports_counts_and_what_it_says_of_itself() -> None:
    measurement = siege.parse(printed("siege_ok"))
    events = asked(measurement)
    assert (events.completed, events.offered, events.failures) == (16877, 16877, {})
    assert measurement.window.duration_ns == 770_000_000
    assert events.percentiles_ns == {}
    assert measurement.window.values == {
        "availability": 100.0,
        "data_transferred": 16.1,
        "response_time": 0.0,
        "throughput": 20.9,
        "concurrency": 9.65,
        "longest_transaction": 0.01,
        "shortest_transaction": 0.0,
    }
    assert measurement.window.values["data_transferred"] == round(16877 * 1000 / 2**20, 2), "bytes of the object each"
    quantities = siege.SiegeLoad(ToolSettings()).quantities
    assert {quantities[key].unit for key in ("data_transferred", "throughput")} == {"MiB", "MiB/s"}


@pytest.mark.parametrize(("name", "failures"), [("not_found", {"status": 18516}), ("refused", {"unspecified": 1000})])
def test_where_something_failed_siege_tells_no_times(name: str, failures: dict[str, int]) -> None:
    """It counts none of what got no answer, and those of errors: who lost its slowest was told as the faster."""
    measurement = siege.parse(printed(f"siege_{name}"))
    assert asked(measurement).failures == failures
    assert set(measurement.window.values) == {"availability", "data_transferred", "throughput"}


def test_an_unreadable_report_is_an_error_that_shows_it() -> None:
    garbage = outside.Output("Segmentation fault", "", END_NS)
    with pytest.raises(TrialError, match="Segmentation fault"):
        ab.parse(garbage, "", ab.AbSettings(requests=1), None)
    with pytest.raises(TrialError, match="Segmentation fault"):
        wrk.parse(garbage)
    with pytest.raises(TrialError, match="Segmentation fault"):
        siege.parse(garbage)


def test_a_latency_below_zero_is_no_latency() -> None:
    csv = (FIXTURES / "ab_ok.csv").read_text().replace("\n50,", "\n50,-")
    with pytest.raises(TrialError, match="could not be read"):
        ab.parse(printed("ab_ok"), csv, ab.AbSettings(), None)


def test_ab_command() -> None:
    argv = ab.command(ab.AbSettings(connections=100, keep_alive=True, time_limit_ns=1), PROXY, Path("/d/ab.csv"))
    assert " ".join(argv) == (
        "ab -q -r -t 1 -n 10000 -c 100 -s 30 -e /d/ab.csv -k -X 198.18.3.10:3128 http://198.18.2.2:8080/o/1000"
    )


def test_wrk_command_and_script() -> None:
    settings = ToolSettings(connections=100, keep_alive=False)
    assert " ".join(wrk.command(settings, 2, PROXY, "/d/s.lua")) == (
        "wrk -t 2 -c 100 -d 10s --timeout 30s -s /d/s.lua -H Connection: close http://198.18.3.10:3128/"
    )
    for connections, cpus, threads in ((20, 3, 2), (10, 4, 2), (7, 4, 1), (1, 8, 1), (12, 4, 4), (5, 0, 1)):
        argv = wrk.command(ToolSettings(connections=connections), cpus, PROXY, "/d/s.lua")
        assert (argv[2], argv[4]) == (str(threads), str(connections)), "each thread has as many"
    assert 'wrk.path = "http://198.18.2.2:8080/o/1000"' in wrk.script(settings, PROXY)
    assert 'wrk.path = "/o/1000"' in wrk.script(settings, DIRECT)
    with pytest.raises(TrialError, match="Lua"):
        wrk.script(settings, replace(PROXY, upstream='"'))


def test_siege_command_and_configuration() -> None:
    settings = ToolSettings(connections=300)
    assert siege.command(settings, PROXY, "/d/rc")[-1] == "http://198.18.2.2:8080/o/1000"
    assert "--no-follow" in siege.command(settings, PROXY, "/d/rc"), "each hop was a transaction"
    lines = siege.configuration(settings, PROXY).splitlines()
    assert {"proxy-host = 198.18.3.10", "proxy-port = 3128", "limit = 300", "connection = keep-alive"} <= set(lines)
    assert "proxy-host" not in siege.configuration(settings, DIRECT)


def test_the_siege_study_asks_for_what_the_paper_must_have_asked_for() -> None:
    """29 transactions a second were 0.19 of what Siege calls MB/s (a mebibyte) in its Figures 7 and 8."""
    study = read_study((files("virtoll.studies") / "siege.toml").read_text("utf-8"), "siege.toml", catalogue())
    loads: list[Any] = [treatment.work.load for treatment in treatments(study) if isinstance(treatment.work, Driven)]
    lengths_bytes = {load.settings.content.length_bytes for load in loads}
    assert {round(29 * each / 2**20, 2) for each in lengths_bytes} == {0.19}


@pytest.mark.parametrize("load", [ab.AbLoad(), wrk.WrkLoad(), siege.SiegeLoad()], ids=["ab", "wrk", "siege"])
def test_a_missing_tool_is_a_problem_with_a_remedy(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost()
    monkeypatch.setattr(host, "run", lambda argv, **_: Completed(tuple(argv), 127, b"", b""))
    (problem,) = load.check(host)
    assert load.name in problem.what
    assert "apt-get install" in problem.remedy


class Told(HttpTool):
    """A tool that only keeps what it was told, and says that it answered one request after the other."""

    name = ""

    def __init__(self, settings: ToolSettings) -> None:
        super().__init__(settings)
        self.told: list[ToolSettings] = []

    def drive(self, settings: ToolSettings, client: Client, offer: Http) -> Measurement:
        self.told.append(settings)
        number = len(self.told)
        output = outside.Output("", "", END_NS + number)
        return outside.measurement("told", output, SECOND, outside.events(number, number, number, {}))


def opened(load: Load, directory: Path) -> AbstractContextManager[Session]:
    return load.session(Client(LocalHost(), Confinement(), directory, cpus=1), DIRECT)


def test_a_session_is_measured_as_often_as_asked_each_time_as_asked(tmp_path: Path) -> None:
    settings = ToolSettings(connections=3, warm_up_ns=2 * SECOND)
    load = Told(settings)
    with opened(load, tmp_path) as session:
        session.warm_up()
        windows = [session.measure().window, session.measure(intensity=20, duration_ns=5 * SECOND).window]
        windows.append(session.measure().window)
    assert load.told == [
        replace(settings, time_limit_ns=2 * SECOND),
        settings,
        replace(settings, connections=20, time_limit_ns=5 * SECOND),
        settings,
    ]
    assert [window.at for window in windows] == [None, 20, None]
    assert [window.work for window in windows] == [2, 3, 4]


def test_without_a_warm_up_nothing_is_run(tmp_path: Path) -> None:
    load = Told(ToolSettings(warm_up_ns=0))
    with opened(load, tmp_path) as session:
        session.warm_up()
    assert load.told == []


def test_a_tool_cannot_be_told_when_to_begin(tmp_path: Path) -> None:
    load = Told(ToolSettings())
    with opened(load, tmp_path) as session, pytest.raises(TrialError, match="not at a time"):
        session.measure(start_ns=END_NS)
    assert load.told == []


def test_a_duration_is_not_cut_short_by_a_number_of_requests() -> None:
    settings = ab.AbLoad(ab.AbSettings(requests=20, connections=2)).lasting(3 * SECOND)
    assert (settings.connections, settings.time_limit_ns) == (2, 3 * SECOND)
    assert settings.requests >= 3 * 100_000  # some times what its one thread can do


REAL: dict[str, Load] = {
    "ab": ab.AbLoad(ab.AbSettings(requests=20, connections=2, time_limit_ns=10**9)),
    "wrk": wrk.WrkLoad(ToolSettings(connections=2, time_limit_ns=10**9, keep_alive=False)),
    "siege": siege.SiegeLoad(ToolSettings(connections=2, time_limit_ns=10**9, timeout_ns=10**9, keep_alive=False)),
}


def siege_by_count(monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    """Have siege end by itself after ``each`` requests of each user.

    At the end of its time siege cancels its users wherever they are; one that holds a lock just then (of malloc, of
    the resolver) leaves it held, and siege hangs for ever. Users who are done are not cancelled.
    """
    real = siege.command

    def counted(*arguments: Any) -> list[str]:
        argv = real(*arguments)
        at = argv.index("-t")
        return [*argv[:at], "-r", str(each), *argv[at + 2 :]]

    monkeypatch.setattr(siege, "command", counted)


@pytest.mark.parametrize(
    ("booked_cpus", "busy", "passed", "detail"),
    [
        (0.5, 0.4, True, "used 50% of 1 CPU, as the host books it"),
        (0.99, 0.4, None, f"used 99% of 1 CPU, as the host books it, and the instance 40% of its own: ab 2.3 {MAY_BE}"),
        (0.85, 0.99, True, "used 85% of 1 CPU, as the host books it, and the instance 99% of its own"),
        (0.99, "it is not known", None, f"used 99% of 1 CPU, as the host books it: ab 2.3 {MAY_BE}"),
        ("nobody looked", 0.4, None, "ab 2.3 does not report its CPU time"),
    ],
)
def test_a_tool_that_may_be_what_was_measured_is_told_as_the_host_books_it(
    booked_cpus: float | str, busy: float | str, passed: bool | None, detail: str
) -> None:
    """Its trial is valid all the same: what it says of two platforms is what was asked."""
    notes = Notes(Path("/nonexistent"), lambda _phase: None)
    measured = ab.AbLoad().measured([ab_measurement("ok")])
    proofs.of_generator(notes, measured, 1, busy, booked_cpus)
    (check,) = (check for check in notes.checks if check.name == GENERATOR_HEADROOM)
    assert (check.passed, check.detail) == (passed, detail)


@pytest.mark.parametrize(
    ("name", "path", "told", "asked"),
    [
        ("wrk", "/moved", "/moved is answered with status 302, which leads elsewhere", 1),
        ("siege", "/moved", "/moved is answered with status 302, which leads elsewhere", 1),
        ("siege", "/private", "/private is answered with status 401, which asks who one is", 1),
        ("ab", "/varying", "/varying is 1 bytes long, and then 2: what differs is a failure to ab", 2),
    ],
)
def test_what_a_tool_would_take_for_something_else_is_refused(
    name: str, path: str, told: str, asked: int, tmp_path: Path
) -> None:
    client, real = Client(LocalHost(), Confinement(), tmp_path, cpus=1), REAL[name]
    load = type(real)(replace(real.settings, path=path))
    with MisbehavingServer() as server, load.session(client, server.offer) as session:
        with pytest.raises(TrialError, match=told):
            session.measure()
        assert len(server.lines) == asked, "the tool was not run"


def test_ab_s_idea_of_the_right_length_of_a_path_may_be_an_error_s_too(tmp_path: Path) -> None:
    client = Client(LocalHost(), Confinement(), tmp_path, cpus=1)
    settings = ab.AbSettings(path="/ok")
    with MisbehavingServer() as server:
        assert outside.length_of(client, server.offer, settings) == 1000
        assert outside.length_of(client, server.offer, replace(settings, path="/unavailable")) is None
        assert outside.length_of(client, server.offer, replace(settings, path="/hang-up")) is None
    assert outside.length_of(client, server.offer, ab.AbSettings(object_bytes=10)) == 10, "nobody is asked"


@pytest.mark.parametrize(
    ("load", "cpus", "intensity", "usable"),
    [
        (ab.AbLoad(ab.AbSettings(connections=100)), 4, None, 1),
        (wrk.WrkLoad(ToolSettings(connections=20)), 4, None, 4),
        (wrk.WrkLoad(ToolSettings(connections=20)), 4, 23, 1),
        (siege.SiegeLoad(ToolSettings(connections=10)), 2, None, 2),
        (siege.SiegeLoad(ToolSettings(connections=1)), 2, None, 1),
    ],
)
def test_how_many_cpus_a_tool_can_use(load: Load, cpus: int, intensity: float | None, usable: float) -> None:
    assert load.usable_cpus(cpus, intensity) == usable


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("through_proxy", [False, True])
def test_the_real_tool(name: str, through_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    load, client = REAL[name], Client(LocalHost(), Confinement(), tmp_path, cpus=1)
    if name == "siege":
        siege_by_count(monkeypatch, each=50)
    with MisbehavingServer() as server:
        offer = replace(server.offer, proxy=True, upstream="h.test:80") if through_proxy else server.offer
        assert load.check(client.host) == []
        with load.session(client, offer) as session:
            measurement = session.measure()
        line = "GET http://h.test" if through_proxy else "GET /o/1000"
        assert all(asked_for.startswith(line) for asked_for in server.lines), server.lines[0]
    events = asked(measurement)
    if name == "siege":
        assert events.completed == len(server.lines) == 2 * 50
    assert events.completed > 0
    assert not events.failures
    assert measurement.window.start_ns < measurement.window.end_ns


@pytest.mark.skipif(shutil.which("siege") is None, reason="siege is not installed")
def test_siege_by_its_time_reports_or_is_told_to_have_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `siege_by_count` tells of may happen here: then that is what the trial says, and nothing is made up."""
    monkeypatch.setattr(outside, "_GRACE_S", 10)
    client = Client(LocalHost(), Confinement(), tmp_path, cpus=1)
    with MisbehavingServer() as server:
        told: Events | str
        try:
            with REAL["siege"].session(client, server.offer) as session:
                told = asked(session.measure())
        except TrialError as error:
            told = error.problem.what
    if isinstance(told, str):
        # Or it gave up with a report of nothing, as it did once beside other work (its own words follow).
        nothing = re.match(r'the report of siege could not be read:.*"transactions":\s+0,', told, re.DOTALL)
        assert told == "siege did not end within 12 s and was killed" or nothing
    else:
        assert 0 < told.completed <= len(server.lines)
        assert not told.failures
    assert len(server.lines) > 2  # in either case it asked, and went on asking


_KILLED = """
import sys
from pathlib import Path
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.outside import run

run(Client(LocalHost(), Confinement(), Path("/"), 1), ["sh", "-c", 'echo $$ >&3; exec sleep 1000 3>&-'], 1000)
"""


def test_no_tool_goes_on_when_virtoll_is_killed() -> None:
    """Where it stands in no group of the ledger's (`virtoll run --target`), nobody else would end it."""
    told, telling = os.pipe()
    script = _KILLED.replace(">&3", f">/proc/{os.getpid()}/fd/{telling}").replace(" 3>&-", "")
    virtoll = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        begun, _, _ = select.select([told], [], [], 600)
        assert begun, "it did not begin"
        tool = os.pidfd_open(int(os.read(told, 100)))
    finally:
        virtoll.kill()
        virtoll.wait()
        os.close(telling)
        os.close(told)
    try:
        ended, _, _ = select.select([tool], [], [], 600)
        assert ended, "it was left to itself"
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(tool, signal.SIGKILL)
        os.close(tool)


def test_percentiles_of_a_program_that_tells_them_of_what_went_well_alone_are_missing_of_all_or_of_none() -> None:
    """The deployments without an error were compared, and met objectives."""
    name, ok = "wrk.corrected_p99_ms", (FIXTURES / "wrk_ok.txt").read_text()
    arm = Arm(label="docker+routed", platform="docker", network="routed")

    def trial(block: int, text: str) -> TrialMetrics:
        measured = wrk.WrkLoad(ToolSettings()).measured([wrk.parse(outside.Output(text, "", END_NS))])
        planned = PlannedTrial(id=f"b{block:02}-t0001", block=block, position=1, arm=arm, condition={})
        record = TrialRecord(trial=planned, status="valid", started_at="2026-11-27T08:00:00Z", measured=measured)
        made = TrialMetrics(record)
        _quantities(made, measured)
        return made

    whole = [trial(block, ok) for block in range(4)]
    _leave_out_where_untold(whole)
    assert all(name in each.values for each in whole)
    some = [*whole, trial(4, re.sub(r"timeout=\d+", "timeout=3", ok))]
    _leave_out_where_untold(some)
    assert [name in each.values for each in some] == [False] * 5
    assert {each.missing[name] for each in some} == {
        "in 1 of 5 trials it is not known: the others may be the better ones"
    }


def test_a_quantity_that_was_not_told_is_missing_and_the_rest_is_not() -> None:
    """A hung service, of which nothing came: its trial is in the report, and so are all others."""
    line = (FIXTURES / "wrk_ok.txt").read_text().replace("requests=85271", "requests=0")
    measurement = wrk.parse(outside.Output(line, "", END_NS))
    assert measurement.window.values == {}
    measured = wrk.WrkLoad(ToolSettings()).measured([measurement])
    assert measured.values("corrected_p99_ms") == []
    arm = Arm(label="lxc+routed", platform="lxc", network="routed")
    planned = PlannedTrial(id="b01-t0001", block=1, position=1, arm=arm, condition={})
    record = TrialRecord(trial=planned, status="valid", started_at="2026-11-27T08:00:00Z", measured=measured)
    trial = TrialMetrics(record)
    _quantities(trial, measured)
    assert trial.missing["wrk.corrected_p99_ms"] == "wrk did not tell it in every window"
    assert _headline(measured.model_copy(update={"headline": "corrected_p99_ms"})) == "valid"
