"""ab, wrk and siege: command lines, and parsers against what the tools really printed (tests/fixtures/loads)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from loads_server import BODY, misbehaving_server
from virtoll.errors import TrialError
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads import ab, outside, siege, wrk
from virtoll.loads.base import HttpObject, Load, LoadResult
from virtoll.services.base import Endpoint

FIXTURES = Path(__file__).parent / "fixtures" / "loads"
OBJECT = HttpObject("/1k", 1000)
DIRECT = Endpoint("198.18.3.10", 8080)
PROXY = Endpoint("198.18.3.10", 3128, proxy=True, upstream="198.18.2.2:8080")
END_NS = 10**12


def printed(name: str) -> outside.Output:
    return outside.Output((FIXTURES / f"{name}.txt").read_text(), "", END_NS)


def ab_result(name: str, target: HttpObject = OBJECT) -> LoadResult:
    return ab.parse(printed(f"ab_{name}"), (FIXTURES / f"ab_{name}.csv").read_text(), 2000, target)


def test_ab_reports_counts_time_and_percentiles() -> None:
    result = ab_result("ok")
    assert (result.intended, result.offered, result.completed, result.failures) == (2000, 2000, 2000, {})
    assert result.window.body_bytes == 2_000_000
    assert result.window.duration_ns == 218_000_000
    assert (result.percentiles_ns["p1"], result.percentiles_ns["p20"]) == (452_000, 504_000)
    assert set(result.percentiles_ns) == {f"p{percent}" for percent in range(1, 101)}
    assert result.instrument == "ab 2.3"
    assert (result.window.cpu_user_ns, result.drain, result.histogram) == (None, None, None)


def test_ab_failures_are_counted_once() -> None:
    assert ab_result("not_found").failures == {"status": 2000}
    refused = ab_result("refused")  # 2000 requests, of which ab counts 3000 as failed
    assert (refused.completed, refused.failures) == (0, {"reset": 2000})


def test_ab_is_not_believed_when_all_answers_have_the_same_wrong_length() -> None:
    result = ab_result("ok", HttpObject("/1k", 999))
    assert (result.completed, result.failures) == (0, {"length": 2000})


def test_wrk_reports_exact_numbers() -> None:
    result = wrk.parse(printed("wrk_ok"))
    assert result.completed == result.offered == 85271
    assert result.window.duration_ns == 1_099_814_000
    assert (result.percentiles_ns["p50"], result.percentiles_ns["p999"]) == (121_000, 3_278_000)
    assert result.window.body_bytes is None
    assert wrk.parse(printed("wrk_not_found")).failures == {"status": 89651}


def test_siege_reports_counts_only() -> None:
    result = siege.parse(printed("siege_ok"))
    assert (result.completed, result.offered, result.failures) == (16877, 16877, {})
    assert result.window.duration_ns == 770_000_000
    assert result.percentiles_ns == {}
    assert siege.parse(printed("siege_not_found")).failures == {"status": 18516}
    assert siege.parse(printed("siege_refused")).failures == {"unspecified": 1000}


def test_an_unreadable_report_is_an_error_that_shows_it() -> None:
    garbage = outside.Output("Segmentation fault", "", END_NS)
    with pytest.raises(TrialError, match="Segmentation fault"):
        ab.parse(garbage, "", 1, OBJECT)
    with pytest.raises(TrialError, match="Segmentation fault"):
        wrk.parse(garbage)
    with pytest.raises(TrialError, match="Segmentation fault"):
        siege.parse(garbage)


def test_ab_command() -> None:
    argv = ab.command(
        ab.AbSettings(connections=100, keep_alive=True, time_limit_ns=1), PROXY, OBJECT, Path("/d/ab.csv")
    )
    assert " ".join(argv) == (
        "ab -q -r -t 1 -n 10000 -c 100 -s 30 -e /d/ab.csv -k -X 198.18.3.10:3128 http://198.18.2.2:8080/1k"
    )


def test_wrk_command_and_script() -> None:
    settings = wrk.WrkSettings(connections=100, keep_alive=False)
    assert " ".join(wrk.command(settings, 2, PROXY, "/d/s.lua")) == (
        "wrk -t 2 -c 100 -d 10s --timeout 30s -s /d/s.lua -H Connection: close http://198.18.3.10:3128/"
    )
    assert 'wrk.path = "http://198.18.2.2:8080/1k"' in wrk.script(PROXY, OBJECT)
    assert 'wrk.path = "/1k"' in wrk.script(DIRECT, OBJECT)
    with pytest.raises(TrialError, match="Lua"):
        wrk.script(DIRECT, HttpObject('/"', 1))


def test_siege_command_and_configuration() -> None:
    settings = siege.SiegeSettings(connections=300)
    assert siege.command(settings, PROXY, OBJECT, "/d/rc")[-1] == "http://198.18.2.2:8080/1k"
    lines = siege.configuration(settings, PROXY).splitlines()
    assert {"proxy-host = 198.18.3.10", "proxy-port = 3128", "limit = 300", "connection = keep-alive"} <= set(lines)
    assert "proxy-host" not in siege.configuration(settings, DIRECT)


@pytest.mark.parametrize("load", [ab.AbLoad(), wrk.WrkLoad(), siege.SiegeLoad()], ids=["ab", "wrk", "siege"])
def test_a_missing_tool_is_a_problem_with_a_remedy(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost()
    monkeypatch.setattr(host, "run", lambda argv, **_: Completed(tuple(argv), 127, b"", b""))
    (problem,) = load.check(host)
    assert load.name in problem.what
    assert "apt-get install" in problem.remedy


REAL: dict[str, Load] = {
    "ab": ab.AbLoad(ab.AbSettings(requests=20, connections=2, time_limit_ns=10**9)),
    "wrk": wrk.WrkLoad(wrk.WrkSettings(connections=2, time_limit_ns=10**9, keep_alive=False)),
    "siege": siege.SiegeLoad(
        siege.SiegeSettings(connections=2, time_limit_ns=10**9, timeout_ns=10**9, keep_alive=False)
    ),
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


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("through_proxy", [False, True])
def test_the_real_tool(name: str, through_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    load, client = REAL[name], Client(LocalHost(), Confinement(), tmp_path, cpus=1)
    if name == "siege":
        siege_by_count(monkeypatch, each=50)
    with misbehaving_server() as server:
        place = server.endpoint
        endpoint = Endpoint(place.address, place.port, proxy=True, upstream="h.test:80") if through_proxy else place
        assert load.check(client.host) == []
        result = load.drive(client, endpoint, HttpObject("/ok", len(BODY)))
        asked = "GET http://h.test" if through_proxy else "GET /ok"
        assert all(line.startswith(asked) for line in server.lines), server.lines[0]
    if name == "siege":
        assert result.completed == len(server.lines) == 2 * 50
    assert result.completed > 0
    assert not result.failures
    assert result.window.start_ns < result.window.end_ns


@pytest.mark.skipif(shutil.which("siege") is None, reason="siege is not installed")
def test_siege_by_its_time_reports_or_is_told_to_have_hung(tmp_path: Path) -> None:
    """What `siege_by_count` tells of may happen here: then that is what the trial says, and nothing is made up."""
    client = Client(LocalHost(), Confinement(), tmp_path, cpus=1)
    with misbehaving_server() as server:
        told: LoadResult | str
        try:
            told = REAL["siege"].drive(client, server.endpoint, HttpObject("/ok", len(BODY)))
        except TrialError as error:
            told = error.problem.what
    if isinstance(told, str):
        assert told == "siege did not end within 12 s and was killed"
    else:
        assert 0 < told.completed <= len(server.lines)
        assert not told.failures
    assert len(server.lines) > 2  # in either case it asked, and went on asking
