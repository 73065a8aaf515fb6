"""Two generators for real: their links, the one that dies, and a run in which they load one proxy together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import contract
import leaks
import standin
import undrawn
from virtoll.errors import TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, Lab
from virtoll.lab.client import Client
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.losses import losses
from virtoll.lab.shaping import LinkShape, check, shaped
from virtoll.lab.wiring import confinements_of_several, free_tag, wired
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.loads.native import NativeSession
from virtoll.loads.several import SeveralSessions, several
from virtoll.networks.routed import RoutedNetwork
from virtoll.offers import Http, Port
from virtoll.platforms.native import Native
from virtoll.record.model import GENERATOR_HEADROOM, Measured, TrialRecord
from virtoll.record.store import RunDirectory

pytestmark = pytest.mark.machine

STUDY = """\
name = "many"
blocks = 2
noise_floor = false
[service]
name = "squid"
[origin]
name = "nginx"
[load]
name = "http"
loop = "open"
rate = "101 /s"
connections = 7
time_limit = "1 s"
warm_up = "0 s"
[limits]
memory = "256 MiB"
[generators]
count = 2
[[arms]]
platform = "native"
"""
# As a slow server's: each request is answered a moment later than anybody waits for here.
_SILENT = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
kept = []
while True:
    kept.append(server.accept())
    print("asked", flush=True)
"""


@pytest.fixture(scope="module")
def many(host: LocalHost, ledger: Ledger) -> Iterator[Lab]:
    """A lab with two generators."""
    with wired(host, ledger, free_tag(), cpu_plan(host, 1), 2) as lab:
        yield lab


def test_each_generator_has_a_link_of_its_own_to_the_one_server(many: Lab) -> None:
    first, second = many.generators
    with standin.serving(many, many.sut.netns, SUT_GENERATOR_SIDE_ADDRESS, 80):
        seen = [standin.ask(many, site.netns, SUT_GENERATOR_SIDE_ADDRESS, 80)[0] for site in (first, second)]
    assert seen == [first.address, second.address] == ["198.18.1.2", "198.18.18.2"]
    told = losses(many)
    assert {"generator 2 eth0 rx_dropped", "sut gen2 rx_dropped", "sut gen0 rx_dropped"} <= told.keys()
    assert second.netns not in many.host.run(["ip", "-brief", "link"]).text


def test_each_generator_reaches_an_instance_with_an_address_of_its_own(many: Lab) -> None:
    with (
        RoutedNetwork().attach(many, "veth", (Port(80),)) as attachment,
        standin.instance(many, attachment) as netns,
        standin.serving(many, netns, attachment.address, 80),
    ):
        seen = [standin.ask(many, site.netns, attachment.address, 80)[0] for site in many.generators]
    assert seen == [site.address for site in many.generators]


def test_a_shape_is_on_each_of_their_links(many: Lab) -> None:
    ends = [(site.netns, "eth0") for site in many.generators] + [(many.sut.netns, name) for name in ("gen0", "gen2")]

    def narrowed() -> list[bool]:
        shown = (many.host.run(["tc", "-n", netns, "qdisc", "show", "dev", device]).text for netns, device in ends)
        return ["tbf" in text for text in shown]

    shape = LinkShape(rate_bit_per_s=36 * 10**6)
    if problems := check(many.host, shape):
        pytest.skip(str(problems[0]))
    with shaped(many, shape):
        assert narrowed() == [True] * 4
    assert narrowed() == [False] * 4


@contextmanager
def silent(lab: Lab, asked: threading.Semaphore) -> Iterator[None]:
    """A server that never answers, and tells of each connection."""
    argv = [sys.executable, "-c", _SILENT, SUT_GENERATOR_SIDE_ADDRESS, "81"]
    process = lab.host.spawn(argv, stdout=subprocess.PIPE, confinement=Confinement(netns=lab.sut.netns))
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    lines = process.stdout

    def tell() -> None:
        for _ in lines:
            asked.release()

    reader = threading.Thread(target=tell)
    reader.start()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        reader.join()
        lines.close()


def test_a_generator_that_dies_is_named_and_takes_the_others_with_it(
    many: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lead_s in (2, 16, 128):  # one that stands still may be late for the common start, and die of that
        monkeypatch.setattr("virtoll.loads.several._FIRST_NS", lead_s * 10**9)
        (place := tmp_path / str(lead_s)).mkdir()
        said = what_kills_two(many, place)
        if "had passed by" not in said:
            break
    assert re.match(r"the load generator on .*: generator 2 of 2: .* signal 9", said)


def what_kills_two(many: Lab, tmp_path: Path) -> str:
    """Both have asked what is never answered; then the second is killed, and what is said of that is told."""
    asked = threading.Semaphore(0)
    settings = HttpSettings(connections=2, time_limit_ns=300 * 10**9, timeout_ns=1000 * 10**9, path="/")
    load, clients, is_over = HttpLoad(settings), [], threading.Event()
    for number, place in enumerate(confinements_of_several(many, 2), 1):
        (tmp_path / str(number)).mkdir()
        clients.append(Client(many.host, place, tmp_path / str(number), 1))
    end_all = Cgroup(f"{many.cgroup}/generator", hierarchies()).kill
    with silent(many, asked), several(load, clients, Http(SUT_GENERATOR_SIDE_ADDRESS, 81), end_all) as session:
        assert isinstance(session, SeveralSessions)
        second = session.sessions[1]
        assert isinstance(second, NativeSession)

        def kill() -> None:
            for _ in clients:
                while not asked.acquire(timeout=0.1):
                    if is_over.is_set():
                        return
            os.kill(second._there[0]._process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with pytest.raises(TrialError) as caught:
                session.measure()
        finally:  # else it would look on, and the process could not end
            is_over.set()
            killer.join()
    return str(caught.value)


def run(place: Path) -> tuple[list[TrialRecord], str]:
    """What is recorded of a run in a directory of its own, and what the command says."""
    (place / "many.toml").write_text(STUDY)
    before = leaks.snapshot()
    argv = [*undrawn.ARGV, "run", str(place / "many.toml"), "--out", str(place / "out")]
    environment = {**os.environ, "VIRTOLL_STATE": str(place / "state")}
    done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, check=False)
    for path in (place / "state" / "ledger").glob("*.jsonl"):
        leaks.assert_nothing_left(before, path.stem.rpartition("-")[2])
    return RunDirectory(place / "out").records(), done.stdout + done.stderr


def served_both(measured: Measured) -> bool:
    """Whether each generator was answered within its window."""
    return all(part.window.work > 0 for window in measured.windows for part in window.parts)


def test_two_generators_load_one_proxy_together(tmp_path: Path) -> None:
    contract.skip_unless_ready(Native())
    contract.image()
    for number in range(4):  # one that stands still may be late for the common start, or a second long serve nobody
        (place := tmp_path / str(number)).mkdir()
        records, said = run(place)
        assert len(records) == 2, said
        assert all(record.measured is not None or "had passed by" in record.reason for record in records), said
        if all(record.measured is not None and served_both(record.measured) for record in records):
            break
    for record in records:
        assert record.measured is not None, record.reason
        (window,) = record.measured.windows
        first, second = (part.window for part in window.parts)
        assert [part.generator for part in window.parts] == [1, 2]
        assert first.events["request"].intended != second.events["request"].intended, "schedules of their own"
        assert window.work == first.work + second.work
        assert min(first.work, second.work) > 0
        events, parts = window.events["request"], (first.events["request"], second.events["request"])
        for name in ("intended", "offered", "completed", "censored"):
            assert getattr(events, name) == sum(getattr(part, name) for part in parts)
        assert first.start_ns == second.start_ns == window.start_ns
        assert first.duration_ns == second.duration_ns == window.duration_ns == 10**9
        assert min(first.begun_ns or 0, second.begun_ns or 0) >= window.start_ns
        checks = {check.name: check for check in record.checks}
        assert "after the agreed time" in checks["the generators began together"].detail
        assert "generator 2" in checks[GENERATOR_HEADROOM].detail
        assert [each["connections"] for each in record.facts["generators"]] == [4, 3]
        assert checks["answered correctly after"].passed is True
