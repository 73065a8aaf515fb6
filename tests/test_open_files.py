"""More viewers than files may be open are refused before anything is made."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.hosts import open_files
from virtoll.hosts.local import LocalHost
from virtoll.loads.rtsp_viewers import RtspViewersLoad, RtspViewersSettings
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.services.apache import Apache
from virtoll.services.nginx import Nginx
from virtoll.services.nginx_ll_hls import NginxLlHls
from virtoll.services.nginx_rtmp import NginxRtmp
from virtoll.services.redis import RedisServer
from virtoll.services.squid import Squid
from virtoll.services.unbound import Unbound, UnboundSettings
from virtoll.study.file import read_study

STUDY = """\
name = "crowd"
question = "How many?"
blocks = 2
[service]
name = "nginx"
[load]
name = "viewers"
MORE
[[arms]]
platform = "native"
"""
KNEE = '[knee]\nobjective = ["stalled < 1 %"]\nleast = 10\nmost = MOST\n'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of five CPUs whose kernel lets a program have 1,000 open files, and whose hard limit is 500; who asks is
    root.
    """
    (tmp_path / "nr_open").write_text("1000\n")
    monkeypatch.setattr(open_files, "_NR_OPEN", tmp_path / "nr_open")
    monkeypatch.setattr(open_files, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(open_files, "_USERS", tmp_path / "uid_map")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (100, 500))
    monkeypatch.setattr("virtoll.binaries.binary", Path)
    (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
    may_raise(tmp_path)
    return tmp_path


def may_raise(machine: Path, *, is_allowed: bool = True) -> None:
    bits = (1 << 24) if is_allowed else (1 << 24) - 1
    (machine / "status").write_text(f"Name:\tvirtoll\nCapPrm:\tffffffffff\nCapEff:\t{bits:016x}\n")


def test_who_may_raise_its_limit_has_what_the_kernel_allows_and_who_may_not_its_hard_limit(machine: Path) -> None:
    assert open_files.most_open_files() == (1000, True)
    may_raise(machine, is_allowed=False)
    assert open_files.most_open_files() == (500, False)


def test_root_of_some_users_alone_may_not_raise_it_whatever_the_kernel_calls_him(machine: Path) -> None:
    """As in a container with a user namespace of its own."""
    (machine / "uid_map").write_text("         0     100000      65536\n")
    assert open_files.most_open_files() == (500, False)


@pytest.mark.usefixtures("machine")
def test_who_measures_nothing_is_not_refused_for_his_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert ViewersLoad(ViewersSettings(viewers=10_000)).check(LocalHost()) == []


@pytest.mark.usefixtures("machine")
def test_the_generators_own_files_are_as_many_as_it_counts_itself() -> None:
    """Else what was not refused would end in the first trial."""
    source = (Path(__file__).parents[1] / "rust/load/src/view/mod.rs").read_text()
    assert "order.viewers as u64 * each + 4 * spec.threads as u64 + 64;" in source
    assert [open_files.most_of(1, threads) for threads in (1, 5)] == [932, 916]
    assert open_files.most_of(3, 5) == 305


def test_the_refusal_names_the_limit_and_the_remedy(machine: Path) -> None:
    assert ViewersLoad(ViewersSettings(viewers=916)).check(LocalHost()) == []
    (problem,) = ViewersLoad(ViewersSettings(viewers=917)).check(LocalHost())
    assert problem == Problem(
        "917 viewers take 1,001 open files, and the generator may have 1,000 (fs.nr_open)",
        "[load] viewers",
        "`sysctl fs.nr_open=1001`, or let there be 916 viewers at the most",
    )
    may_raise(machine, is_allowed=False)
    (problem,) = ViewersLoad(ViewersSettings(viewers=600)).check(LocalHost())
    assert "may have 500 (the hard limit of open files, which must not be raised here)" in problem.what
    assert problem.remedy == "let virtoll begin with `ulimit -Hn 684`, or let there be 416 viewers at the most"


@pytest.mark.usefixtures("machine")
def test_a_viewer_over_udp_has_sockets_for_media_and_reports_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.films.problems", lambda _film: [])
    over_tcp, over_udp = (RtspViewersSettings(viewers=400, transport="tcp"), RtspViewersSettings(viewers=400))
    assert RtspViewersLoad(over_tcp).check(LocalHost()) == []
    for settings, count in ((over_udp, "2,084"), (replace(over_udp, path="/own"), "1,284")):
        (problem,) = RtspViewersLoad(settings).check(LocalHost())
        assert problem.what.startswith(f"400 viewers take {count} open files")


def refused_of(text: str) -> list[Problem]:
    try:
        Stage(read_study(text, "crowd.toml", catalogue()), LocalHost()).offered("crowd.toml", tries=False)
    except StudyError as error:
        return list(error.problems)
    return []


@pytest.mark.usefixtures("machine")
def test_a_search_up_to_more_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    monkeypatch.setattr(Nginx, "open_files", 0)

    def refused(knee: str) -> list[str]:
        return [f"{problem.where}: {problem.what}" for problem in refused_of(STUDY.replace("MORE", knee))]

    assert refused(KNEE.replace("MOST", "916")) == []
    (told,) = refused(KNEE.replace("MOST", "2000"))
    assert told.startswith("crowd.toml: [knee] most: 2,000 viewers take 2,084 open files")
    unsaid = KNEE.replace("most = MOST\n", "")
    assert refused(unsaid) == [], "it ends at what there may be"
    (told,) = refused(unsaid.replace("least = 10", "least = 2000"))
    assert told.startswith("crowd.toml: [knee] least: 2,000 viewers take 2,084 open files")


def test_a_service_that_gives_itself_more_than_the_hard_limit_is_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On native Linux and in guests nginx has them, in containers the soft limit, and that was told as their knee."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    study = STUDY.replace("MORE", "viewers = 10")

    def refused(connections: int) -> list[Problem]:
        return refused_of(study.replace('"nginx"', f'"nginx"\nconnections = {connections}'))

    assert refused(250) == []
    assert refused(251) == [
        Problem(
            "nginx gives itself 502 open files, and the hard limit is 500: in containers it has fewer",
            "crowd.toml: [service] connections",
            "let virtoll begin there with `ulimit -Hn 502` (over ssh: in /etc/security/limits.conf), or write a "
            "smaller connections",
        )
    ]
    (problem,) = refused(501)
    assert "with `sysctl fs.nr_open=1002` and `ulimit -Hn 1002`" in problem.remedy
    may_raise(machine, is_allowed=False)
    assert len(refused(251)) == 1, "whoever may not raise it has no more on native Linux, and the soft limit at that"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refused(501) == [], "who measures nothing is not refused for his own limit"


@pytest.mark.usefixtures("machine")
def test_all_that_raise_their_own_limit_say_to_how_many() -> None:
    """What they write in their configuration, or what their authors do."""
    of_nginx = (Nginx(), NginxRtmp(), NginxLlHls())
    assert all(f"worker_rlimit_nofile {each.open_files};" in each.configuration() for each in of_nginx)
    assert [each.open_files for each in (*of_nginx, Squid(), RedisServer())] == [8192, 8192, 8192, 4096, 10_032]
    assert Unbound(UnboundSettings(tcp_users=2000, threads=4)).open_files == 4 * 2032 + 16
    assert Apache().open_files == 0
