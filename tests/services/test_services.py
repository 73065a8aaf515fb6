"""Services against a scripted agent: what they write, start, wait for, and what they say when it goes wrong."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from virtoll.agent import Agent
from virtoll.errors import AgentError, TrialError
from virtoll.fakes import FAKE_IMAGE
from virtoll.images.base import Images
from virtoll.lab.base import Lab
from virtoll.lab.client import Answer
from virtoll.networks.base import Attachment
from virtoll.offers import Dns, Http, HttpObject, Offer, Port
from virtoll.platforms.base import Accounting, Instance
from virtoll.services import objects, unbound
from virtoll.services.apache import Apache
from virtoll.services.base import Service, Visitor, hold_on_disk, services
from virtoll.services.nginx import Nginx, NginxSettings
from virtoll.services.nginx_ll_hls import NginxLlHls, NginxLlHlsSettings
from virtoll.services.nginx_rtmp import NginxRtmp, NginxRtmpSettings
from virtoll.services.origin import CACHE_CONTROL, WebServerSettings
from virtoll.services.squid import Squid, SquidSettings
from virtoll.services.unbound import ZONE, Unbound, UnboundSettings
from virtoll.study.limits import Limits
from virtoll.trial import deployer
from virtoll.trial.deployer import Deployer

GOLDEN = Path(__file__).parent / "golden"
ORIGIN = Http("198.18.2.2", 8080)
HEADER = "  sl  local_address rem_address   st\n"


@dataclass
class ScriptedAgent:
    """Lets a spawned program listen at once, unless told that it dies."""

    dies: int | None = None  # how a spawned program ends at once
    log: bytes = b""
    room_bytes: int = 10**9
    filled: dict[str, int] = field(default_factory=dict)
    synced: list[tuple[str, int]] = field(default_factory=list)  # paths, and how many files were filled by then
    files: dict[str, bytes] = field(default_factory=dict)
    spawned: list[list[str]] = field(default_factory=list)
    listens: set[int] = field(default_factory=set)

    def listening(self, port: int, protocol: str = "tcp") -> bool:
        return protocol == "tcp" and port in self.listens

    def tail(self, path: str, most_bytes: int) -> bytes:
        return self.log

    def fill(self, path: str, length_bytes: int, begin_bytes: int = 0) -> None:
        if length_bytes > self.room_bytes:
            raise AgentError("fill: cannot write: No space left on device", where=path)
        self.filled[path] = length_bytes

    def sync(self, path: str) -> None:
        self.synced.append((path, len(self.filled)))

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.files[path] = data

    def spawn(self, argv: Sequence[str], *, log: str = "", **_: object) -> int:
        self.spawned.append(list(argv))
        if self.dies is None:
            text = b"".join(self.files.values()).decode()
            port = re.search(r"(?:http_port|listen|Listen) 0\.0\.0\.0:(\d+)", text)
            assert port is not None
            self.listens.add(int(port[1]))
        return 7

    def returncode(self, pid: int) -> int | None:
        return self.dies


def instance(agent: ScriptedAgent) -> Instance:
    attachment = Attachment("routed", "veth", "sut", "198.18.3.10", (Port(3128),))
    return Instance(
        "fake",
        cast(Agent, agent),
        attachment,
        Accounting("virtoll/t/i", Path("/nowhere")),
        Limits(),
        {},
        lambda: True,
        FAKE_IMAGE,
    )


@pytest.mark.parametrize(
    ("service", "golden"),
    [
        (Squid(SquidSettings(cache="off")), "squid-off.conf"),
        (Squid(SquidSettings(cache="on", cache_memory_bytes=64 * 1024**2)), "squid-on.conf"),
        (Nginx(NginxSettings(workers=2)), "nginx.conf"),
        (Apache(WebServerSettings(workers=2)), "apache.conf"),
        (NginxRtmp(NginxRtmpSettings(workers=2)), "nginx-rtmp.conf"),
        (NginxRtmp(NginxRtmpSettings(live=True)), "nginx-rtmp-live.conf"),
        (NginxLlHls(NginxLlHlsSettings(workers=2)), "nginx-ll-hls.conf"),
    ],
)
def test_configuration_is_as_agreed(service: Service, golden: str) -> None:
    agent = ScriptedAgent()
    service.start(instance(agent), ORIGIN)
    assert agent.files[f"/run/virtoll/{service.name}.conf"].decode() == (GOLDEN / golden).read_text()
    assert f"/run/virtoll/{service.name}.conf" in agent.spawned[0]


def test_offers_are_where_the_attachment_says() -> None:
    assert Nginx().start(instance(ScriptedAgent()), None) == Http("198.18.3.10", 8080)
    proxy = Squid().start(instance(ScriptedAgent()), ORIGIN)
    assert proxy == Http("198.18.3.10", 3128, proxy=True, upstream="198.18.2.2:8080")
    assert proxy.url("/o/1000") == "http://198.18.2.2:8080/o/1000"


def test_all_services_are_registered() -> None:
    assert {"apache", "nginx", "squid"} <= services().keys()


@pytest.mark.parametrize(
    ("code", "told"),
    [(1, "with code 1"), (0, "with code 0"), (-9, r"by signal 9 \(Killed\)"), (-(2**63), "by signal 9223")],
)
def test_a_service_that_ends_is_reported_with_its_log(code: int, told: str) -> None:
    with pytest.raises(TrialError, match=rf"(?s)squid ended at once {told}.*FATAL: Bungled squid\.conf"):
        Squid().start(instance(ScriptedAgent(dies=code, log=b"FATAL: Bungled squid.conf line 3\n")), ORIGIN)


def test_a_taken_port_is_reported_before_anything_starts() -> None:
    agent = ScriptedAgent(listens={3128})
    with pytest.raises(TrialError, match="port 3128 is taken"):
        Squid().start(instance(agent), ORIGIN)
    assert not agent.spawned


def test_a_proxy_needs_an_origin() -> None:
    with pytest.raises(TrialError, match="needs an origin"):
        Squid().start(instance(ScriptedAgent()), None)


def test_a_full_disk_is_reported_where_it_is() -> None:
    with pytest.raises(TrialError, match=r"(?s)/srv/virtoll.*No space left on device|No space left.*"):
        Nginx().hold(instance(ScriptedAgent(room_bytes=999)), [HttpObject(1000)])


def test_objects_lie_where_urls_say() -> None:
    agent = ScriptedAgent()
    Nginx().hold(instance(agent), [HttpObject(1000), HttpObject(10), HttpObject(1000)])
    assert agent.filled == {"/srv/virtoll/o/1000": 1000, "/srv/virtoll/o/10": 10}


def test_what_is_held_is_on_the_disk_before_anybody_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The origin's, too: its files are written back by a disk that all share."""
    agent = ScriptedAgent()
    hold_on_disk(Nginx(), instance(agent), iter([HttpObject(10)]))
    assert agent.synced == [("/", 1)]
    hold_on_disk(Nginx(), instance(agent), [])
    assert agent.synced == [("/", 1)], "nothing was written, and another's disk may be busy"
    monkeypatch.setattr(deployer, "_deployed", lambda *_, **__: nullcontext(instance(agent)))
    lab = SimpleNamespace(origin=None, at=lambda _site: SimpleNamespace(sut=SimpleNamespace(cpus={0})))
    here = Deployer(cast(Lab, lab), cast(Images, SimpleNamespace(origin=FAKE_IMAGE)), ExitStack())
    with here.origin(Nginx(), [HttpObject(10), HttpObject(20)]):
        assert agent.synced == [("/", 1), ("/", 2)]


LENGTH = 1000
PROXY = Http("198.18.3.10", 3128, proxy=True, upstream="198.18.2.2:8080")


@dataclass
class Answers:
    """A visitor who gets answers one after the other, each with these headers and otherwise a good one."""

    headers: list[dict[str, str]]
    length_bytes: int = LENGTH
    status: int = 200

    def get(self, offer: Http, path: str) -> Answer:
        assert path == HttpObject(self.length_bytes).path
        return Answer(self.status, self.length_bytes, objects.sha256(self.length_bytes), self.headers.pop(0))

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        raise AssertionError("nothing that speaks HTTP is asked otherwise")


def cached(verdict: str) -> dict[str, str]:
    return {"X-Cache": f"{verdict} from virtoll"} if verdict else {}


@pytest.mark.parametrize(
    ("cache", "verdicts", "length_bytes", "words"),
    [
        ("off", ("MISS", "MISS"), LENGTH, None),
        ("off", ("MISS", "HIT"), LENGTH, "MISS then HIT"),
        ("off", ("", ""), LENGTH, "nothing then nothing"),
        ("on", ("MISS", "HIT"), LENGTH, None),
        ("on", ("HIT", "HIT"), LENGTH, None),
        ("on", ("MISS", "MISS"), LENGTH, "expected HIT"),
        ("on", ("MISS", "MISS"), 20_000, None),  # larger than what may be kept
        ("on", ("MISS", "HIT"), 20_000, "expected MISS"),
        ("on", ("MISS", "MISS"), 9_500, None),  # with its header it may fit or not
        ("on", ("MISS", "HIT"), 9_500, None),
    ],
)
def test_squid_is_verified_by_where_the_answer_came_from(
    cache: str, verdicts: tuple[str, str], length_bytes: int, words: str | None
) -> None:
    squid = Squid(SquidSettings(cache="on" if cache == "on" else "off", maximum_object_bytes=10_000))
    visitor = Answers([cached(verdict) for verdict in verdicts], length_bytes)
    problems = squid.verify(PROXY, visitor, HttpObject(length_bytes))
    assert not visitor.headers, "both answers were looked at"
    assert [words in problem.what for problem in problems if words] == ([True] if words else [])
    assert bool(problems) == (words is not None)


def test_a_wrong_answer_is_one_problem_not_two() -> None:
    problems = Squid().verify(PROXY, Answers([{}, {}], status=503), HttpObject(LENGTH))
    assert [problem.what for problem in problems] == ["status 503; expected 200"]


def test_an_origin_must_allow_caching() -> None:
    def verify(headers: dict[str, str]) -> list[str]:
        found = Nginx().verify(Http("198.18.2.2", 8080), Answers([headers]), HttpObject(LENGTH))
        return [problem.what for problem in found]

    assert verify({"cache-control": CACHE_CONTROL}) == []
    assert "'missing'" in verify({})[0]


@pytest.mark.parametrize(("service", "offer"), [(Nginx(), Http("198.18.2.2", 8080)), (Squid(), PROXY)])
def test_a_load_that_asks_for_no_object_needs_none(service: Service, offer: Http) -> None:
    """One that only connects, say: nothing is made, and whether anything answers is all there is to prove."""
    agent, asked = ScriptedAgent(room_bytes=0), list[str]()

    class Visitor:
        def get(self, offer: Http, path: str) -> Answer:
            asked.append(path)
            return Answer(404, 0, "", {})

        def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
            raise AssertionError("it speaks HTTP")

    service.hold(instance(agent), [])
    assert service.verify(offer, Visitor(), None) == []
    assert asked == ["/"]


def test_unbound_may_open_as_many_files_as_the_hard_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would raise its soft limit to what it counts, and end where it may not ("too much tcp. not enough fds")."""
    agent = ScriptedAgent()
    monkeypatch.setattr(agent, "listening", lambda *_: bool(agent.spawned))
    agent.dies = 0
    Unbound().start(instance(agent), None)
    (argv,) = agent.spawned
    before = argv[: argv.index("unbound")]
    limited = ["sh", "-c", 'ulimit -Sn 64; ulimit -Hn 128; exec "$@"', "sh", *before, "sh", "-c", "ulimit -Sn"]
    assert subprocess.run(limited, check=True, capture_output=True).stdout == b"128\n"


def test_unbound_lets_as_many_users_in_over_tcp_as_are_measured() -> None:
    """By itself it takes ten, and hurries them: twenty users got 130 answers a second on every platform alike."""
    text = unbound.configuration(UnboundSettings(), 53)
    assert "    incoming-num-tcp: 1000\n" in text
    assert UnboundSettings().tcp_users >= 100, "dnsperf has up to a hundred sockets"


def test_unbound_is_ready_when_it_answered_once_and_is_asked_again_where_a_datagram_is_lost() -> None:
    asked: list[bytes] = []

    class Lossy:
        def exchange(self, _offer: Offer, sent: bytes, _most_bytes: int) -> bytes:
            asked.append(sent)
            if len(asked) < 3:
                raise TrialError("no answer: timed out")
            return b"answer"

    instance = SimpleNamespace(agent=SimpleNamespace(returncode=lambda _pid: None), services={"unbound": 7})
    Unbound(UnboundSettings()).await_ready(
        cast(Instance, instance), Dns("198.18.3.10", 53, ZONE), cast(Visitor, Lossy())
    )
    assert len(asked) == 3
