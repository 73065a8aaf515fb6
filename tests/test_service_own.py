"""A service of one's own: what is wrong with it beforehand, how it is started, and when it is ready; on fakes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from virtoll.agent import Agent, Process
from virtoll.errors import Problem, TrialError
from virtoll.images.base import Image
from virtoll.images.config import ImageConfig
from virtoll.lab.client import Answer
from virtoll.networks.base import Attachment
from virtoll.offers import Http, Offer, Port, Tcp, Udp
from virtoll.platforms.base import Accounting, Instance
from virtoll.services import daemon
from virtoll.services.own import Own, OwnSettings
from virtoll.study.limits import Limits
from virtoll.study.values import Beside, BesideAfterKind

IMAGE = BesideAfterKind("oci:/a/shop.tar")
SHOP = ImageConfig(
    entrypoint=("/usr/local/bin/shop",),
    command=("/etc/shop.toml",),
    env=(("SHOP_PORT", "8080"), ("SHOP_NAME", "the corner shop")),
    working_dir="/srv/shop",
    user="shop",
)
LOG = b"shop: SHOP_PORT is not set\n"


def settings(**told: Any) -> OwnSettings:
    """Of an image, where nothing else is told."""
    return OwnSettings(**{"ports": ("8080/tcp",), "image": IMAGE, **told})


# -- beforehand -------------------------------------------------------------------------------------------


def problems(**told: Any) -> list[Problem]:
    return Own(settings(**told)).problems(None)


def test_an_image_and_a_port_are_enough() -> None:
    assert problems() == []
    assert problems(image="", packages=("redis-server",), command=("/usr/bin/redis-server",)) == []
    assert problems(image="dir:/a/rootfs", command=("/bin/server",)) == []
    assert problems(ports=("8080/tcp", "8080/udp", "10000-10100/udp"), ready="udp") == []


@pytest.mark.parametrize(
    ("told", "what", "where", "remedy"),
    [
        ({"ports": ()}, "ports are missing", "[service]", 'ports = ["8080/tcp"]'),
        ({"ports": ("8080",)}, "'8080' is no port: write \"8080/tcp\"", "[service] ports", ""),
        ({"ports": ("0/tcp",)}, "0/tcp is no port: they are from 1 to 65535", "[service] ports", ""),
        ({"ports": ("9-8/udp",)}, "9-8/udp is no port", "[service] ports", ""),
        ({"ports": ("80/tcp", "80/tcp")}, "80/tcp is named twice, or part of another", "[service] ports", "leave it"),
        ({"ports": ("1-9/tcp", "5/tcp")}, "5/tcp is named twice, or part of another", "[service] ports", "leave it"),
        ({"image": ""}, "give an image or packages, one of the two", "[service]", 'image = "oci:shop.tar"'),
        (
            {"packages": ("nginx",), "command": ("nginx",)},
            "give an image or packages, one of the two",
            "[service]",
            'image = "oci:shop.tar"',
        ),
        ({"image": "", "packages": ("nginx",)}, "packages have no command to start", "[service]", "command = ["),
        ({"image": "dir:/a"}, "a directory has no command to start", "[service]", "command = ["),
        ({"files": {"etc/x": __file__}}, "'etc/x' is no absolute path of a file inside", "[service] files", ""),
        ({"files": {"/etc/": __file__}}, "'/etc/' is no absolute path of a file inside", "[service] files", ""),
        ({"files": {"/etc/x": "/no/where"}}, "there is no such file", "[service] files: /no/where", "correct the path"),
        ({"ready": "health"}, "ready = 'health' is nothing that can be looked for", "[service]", "an HTTP path"),
        ({"ready": "udp"}, "ready = 'udp', and no port is one of udp", "[service]", "53/udp"),
        (
            {"ready": "/up", "ports": ("53/udp", "80/tcp")},
            "ready = '/up' asks over HTTP, and the first port is 53/udp",
            "[service]",
            "name a port of tcp first",
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
    found = problems(ports=("x", "0/tcp"), image="", files={"a": Beside("/no/where")}, ready="?")
    assert [problem.what.split(" ")[0] for problem in found] == ["'x'", "0/tcp", "give", "'a'", "there", "ready"]


@pytest.mark.parametrize(
    ("ports", "ready", "kind"),
    [
        (("8080/tcp", "53/udp"), "tcp", Tcp),
        (("53/udp", "8080/tcp"), "tcp", Udp),
        (("8080/tcp", "53/udp"), "udp", Tcp),
        (("8080/tcp",), "/health", Http),
    ],
)
def test_it_offers_what_its_first_port_takes_and_http_where_a_path_is_asked_for(
    ports: tuple[str, ...], ready: str, kind: type[Offer]
) -> None:
    service = Own(settings(ports=ports, ready=ready))
    assert service.offers == (kind,)
    assert [str(port) for port in service.ports] == list(ports)


# -- started ----------------------------------------------------------------------------------------------


@dataclass
class ScriptedAgent:
    """Lets what is spawned listen when it was looked at so often, and run as it was asked to, or as it is told."""

    listens_on: frozenset[tuple[int, str]] = frozenset({(8080, "tcp")})
    listens_after: int = 0  # looks
    ends_after: int | None = None  # looks at its return code
    code: int = 2
    runs: Mapping[str, Any] = field(default_factory=dict)  # other than asked for
    spawned: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    asked: list[tuple[int, str]] = field(default_factory=list)
    looks: int = 0

    def listening(self, port: int, protocol: str = "tcp") -> bool:
        self.asked.append((port, protocol))
        return bool(self.spawned) and len(self.asked) > self.listens_after + 1 and (port, protocol) in self.listens_on

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        assert not self.spawned, "before it is started"
        self.files[path] = (data, mode)

    def spawn(self, argv: Sequence[str], **setting: Any) -> int:
        self.spawned.append({"argv": tuple(argv), **setting})
        return 7

    def returncode(self, pid: int) -> int | None:
        assert pid == 7
        self.looks += 1
        return None if self.ends_after is None or self.looks <= self.ends_after else self.code

    def tail(self, path: str, most_bytes: int) -> bytes:
        assert path == "/run/virtoll/own.log"
        return LOG

    def describe(self, pid: int) -> Process:
        assert pid == 7
        (asked,) = self.spawned
        assert asked["user"] == "shop"
        as_asked = Process(asked["argv"], asked["argv"][0], asked["cwd"], 1500, 1501, (1600,), dict(asked["env"]))
        return replace(as_asked, **self.runs)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """The example image, as far as it is looked at."""
    return built(tmp_path, SHOP)


def built(directory: Path, config: ImageConfig | None) -> Image:
    entry = directory / "entry"
    (entry / "rootfs/etc").mkdir(parents=True)
    (entry / "rootfs/etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nshop:x:1500:1501::/srv/home:/bin/false\n")
    (entry / "manifest.json").write_text(json.dumps({} if config is None else {"config": config.plain()}))
    return Image("shop", "0" * 64, entry)


def instance(agent: ScriptedAgent, image: Image) -> Instance:
    return Instance(
        "fake",
        cast(Agent, agent),
        Attachment("routed", "veth", "sut", "198.18.3.10", (Port(8080),)),
        Accounting("virtoll/t/i", Path("/nowhere")),
        Limits(),
        {},
        lambda: True,
        image,
    )


def started(agent: ScriptedAgent, made: Image, /, **told: Any) -> tuple[Instance, Offer]:
    where = instance(agent, made)
    return where, Own(settings(**told)).start(where, None)


def test_it_is_started_as_the_image_says(image: Image) -> None:
    agent = ScriptedAgent()
    where, offer = started(agent, image)
    assert offer == Tcp("198.18.3.10", 8080)
    assert agent.spawned == [
        {
            "argv": ("/usr/local/bin/shop", "/etc/shop.toml"),
            "log": "/run/virtoll/own.log",
            "env": {
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOSTNAME": "instance",
                "HOME": "/srv/home",
                "SHOP_PORT": "8080",
                "SHOP_NAME": "the corner shop",
            },
            "cwd": "/srv/shop",
            "user": "shop",
        }
    ]
    assert where.services == {"own": 7}
    assert Own(settings()).runs(where) == {
        "argv": ["/usr/local/bin/shop", "/etc/shop.toml"],
        "cwd": "/srv/shop",
        "uid": 1500,
        "gid": 1501,
        "groups": [1600],
        "environment": agent.spawned[0]["env"],
    }


@pytest.mark.parametrize(
    ("user", "given"),
    [("", "0"), ("shop", "shop"), ("shop:", "shop"), (":1501", "0:1501"), ("shop:1", "shop:1"), (":", "0")],
)
def test_an_empty_user_is_root_and_an_empty_group_the_users_as_docker_has_it(
    user: str, given: str, tmp_path: Path
) -> None:
    """Planning took "shop:" and ":1501" so, and the agent knew no such user: each trial failed."""
    agent = ScriptedAgent()
    started(agent, built(tmp_path, ImageConfig(command=("/shop",), user=user)))
    assert agent.spawned[0]["user"] == given


def test_the_study_has_its_command_in_the_images_place_and_its_environment_over_it(image: Image) -> None:
    agent = ScriptedAgent()
    started(agent, image, command=("--loud",), env={"SHOP_NAME": "mine", "MORE": "1", "HOME": "/tmp"})
    (spawned,) = agent.spawned
    assert spawned["argv"] == ("/usr/local/bin/shop", "--loud")
    assert {"SHOP_NAME": "mine", "MORE": "1", "SHOP_PORT": "8080", "HOME": "/tmp"}.items() <= spawned["env"].items()


def test_packages_run_the_command_as_root(tmp_path: Path) -> None:
    agent = ScriptedAgent()
    image = built(tmp_path, None)
    started(agent, image, image="", packages=("redis-server",), command=("redis-server", "--port", "8080"))
    (spawned,) = agent.spawned
    assert (spawned["argv"], spawned["user"], spawned["cwd"]) == (("redis-server", "--port", "8080"), "0", "/")


def test_files_are_roots_and_stay_executable(image: Image, tmp_path: Path) -> None:
    plain, script = tmp_path / "plain", tmp_path / "script"
    plain.write_bytes(b"port = 1")
    plain.chmod(0o600)
    script.write_bytes(b"#!/bin/sh")
    script.chmod(0o700)
    agent = ScriptedAgent()
    started(agent, image, files={"/etc/x": Beside(str(plain)), "/x": Beside(str(script))})
    assert agent.files == {"/etc/x": (b"port = 1", 0o644), "/x": (b"#!/bin/sh", 0o755)}


@pytest.mark.parametrize(
    ("ports", "ready", "awaited"),
    [
        (("53/udp", "8080/tcp"), "tcp", (8080, "tcp")),
        (("8080/tcp", "53/udp"), "udp", (53, "udp")),
        (("53/udp",), "tcp", (53, "udp")),
        (("8080/tcp", "53/udp"), "/health", (8080, "tcp")),
    ],
)
def test_the_first_port_of_the_transport_named_is_waited_for_and_the_load_is_told_the_first_of_all(
    image: Image, ports: tuple[str, ...], ready: str, awaited: tuple[int, str]
) -> None:
    agent = ScriptedAgent(listens_on=frozenset({awaited}), listens_after=3)
    _, offer = started(agent, image, ports=ports, ready=ready)
    assert set(agent.asked) == {awaited}
    assert offer.port == Port.parse(ports[0]).number


def test_one_that_ends_at_once_is_told_with_its_exit_code_and_its_log(image: Image) -> None:
    agent = ScriptedAgent(listens_on=frozenset(), ends_after=0)
    with pytest.raises(TrialError) as caught:
        started(agent, image)
    assert caught.value.problem.what == "own ended at once with code 2; its log ends with:\nshop: SHOP_PORT is not set"
    assert caught.value.problem.where == "fake, inside the instance"
    assert "the log names the cause" in caught.value.problem.remedy


def test_one_that_never_listens_is_told_with_its_log(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time(monkeypatch)
    with pytest.raises(TrialError, match=r"(?s)own did not listen on port 8080 within 5 s.*SHOP_PORT is not set"):
        started(ScriptedAgent(listens_on=frozenset()), image, ready_within_ns=5 * 10**9)


# -- ready ------------------------------------------------------------------------------------------------


def pass_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sleeping alone."""
    now = [0.0]

    class Time:
        monotonic: Callable[[], float] = staticmethod(lambda: now[0])

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += seconds

    monkeypatch.setattr(daemon, "time", Time)


@dataclass
class Visitor:
    """Gets these answers one after the other, the last one for ever: a status, or no answer."""

    answers: list[int | str]
    paths: list[str] = field(default_factory=list)
    exchanged: int = 0

    def get(self, offer: Http, path: str) -> Answer:
        self.paths.append(path)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise TrialError(answer, where="the load generator")
        return Answer(answer, 0, "", {})

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        assert (sent, most_bytes) == (b"", 0)
        self.exchanged += 1
        if self.answers == ["refused"]:
            raise TrialError("no answer: refused")
        return b""


OFFER = Http("198.18.3.10", 8080)


def ready(visitor: Visitor, image: Image, agent: ScriptedAgent | None = None, **told: Any) -> None:
    service = Own(settings(ready="/health", **told))
    where = instance(agent or ScriptedAgent(), image)
    service.await_ready(where, service.start(where, None), visitor)


@pytest.mark.parametrize("good", [200, 204, 302, 399])
def test_a_path_is_asked_until_it_answers_below_400(image: Image, good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a server that listens but does not answer yet is waited for too."""
    pass_time(monkeypatch)
    visitor = Visitor(["connection reset by peer", 503, 404, 400, good])
    ready(visitor, image)
    assert visitor.paths == ["/health"] * 5


@pytest.mark.parametrize(("answer", "said"), [(503, "status 503"), ("connection closed", "connection closed")])
def test_one_that_never_becomes_ready_is_told_with_what_it_answered_and_its_log(
    image: Image, answer: int | str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time(monkeypatch)
    words = rf"own did not become ready within 3 s: {re.escape(said)} for /health; its log ends with:\n.*is not set"
    with pytest.raises(TrialError, match=words):
        ready(Visitor([answer]), image, ready_within_ns=3 * 10**9)


def test_one_that_dies_before_it_is_ready_is_not_waited_for(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time(monkeypatch)
    agent, visitor = ScriptedAgent(ends_after=1, code=-11), Visitor(["connection refused"])
    with pytest.raises(TrialError, match=r"(?s)own ended by signal 11 \(Segm.*before it was ready.*SHOP_PORT"):
        ready(visitor, image, agent)
    assert len(visitor.paths) == 2


def test_what_is_not_asked_over_http_is_ready_when_it_listens(image: Image) -> None:
    for port in ("8080/tcp", "53/udp"):
        service = Own(settings(ports=(port,)))
        visitor = Visitor(["nobody asks"])
        service.await_ready(instance(ScriptedAgent(), image), service.offers[0]("198.18.3.10", 1), visitor)
        assert (visitor.paths, visitor.exchanged) == ([], 0)


def test_it_answers_correctly_when_its_path_does_or_somebody_accepts() -> None:
    path = Own(settings(ready="/health"))
    assert path.verify(OFFER, Visitor([200]), None) == []
    problems = path.verify(OFFER, Visitor([500]), None)
    assert problems is not None
    (problem,) = problems
    assert (problem.what, problem.where) == ("status 500", "http://198.18.3.10:8080/health")
    visitor = Visitor([200])
    assert Own(settings()).verify(Tcp("198.18.3.10", 8080), visitor, None) == []
    assert visitor.exchanged == 1
    with pytest.raises(TrialError, match="no answer"):
        Own(settings()).verify(Tcp("198.18.3.10", 8080), Visitor(["refused"]), None)


def test_over_udp_it_cannot_be_asked_and_that_is_no_answer() -> None:
    visitor = Visitor(["refused"])
    assert Own(settings(ports=("53/udp",))).verify(Udp("198.18.3.10", 53), visitor, None) is None
    assert (visitor.paths, visitor.exchanged) == ([], 0)
