"""A load drives what it takes; whatever else a service offers is refused before anything is deployed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.hosts.base import Host
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import Load, Session
from virtoll.offers import Content, Offer, Tcp, Udp
from virtoll.platforms.base import Instance
from virtoll.registry import registered
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.services.base import Service, Visitor
from virtoll.study.file import read_study
from virtoll.study.model import Study


@dataclass(frozen=True)
class Nothing:
    """No settings."""


class Resolver(Service):
    """Offers datagrams."""

    name: ClassVar[str] = "resolver"
    port: ClassVar[int] = 53
    offered: ClassVar[tuple[type[Offer], ...]] = (Udp,)
    Settings: ClassVar[type[Any]] = Nothing

    def start(self, instance: Instance, behind: Offer | None) -> Offer:
        raise NotImplementedError

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        raise NotImplementedError


class _Fake(Load):
    Settings: ClassVar[type[Any]] = Nothing

    @property
    def unit(self) -> str:
        return "message"

    @property
    def loop(self) -> Literal["closed", "open"]:
        return "closed"

    def check(self, host: Host) -> list[Problem]:
        return []

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        raise NotImplementedError


class Datagrams(_Fake):
    """Drives whatever takes datagrams."""

    name: ClassVar[str] = "datagrams"
    takes: ClassVar[tuple[type[Offer], ...]] = (Udp,)


class Connections(_Fake):
    """Drives whatever accepts connections."""

    name: ClassVar[str] = "connections"
    takes: ClassVar[tuple[type[Offer], ...]] = (Tcp,)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doubles, beside what there is, on a machine that lacks nothing."""
    for package, base, doubles in (
        ("virtoll.services", Service, [Resolver]),
        ("virtoll.loads", Load, [Datagrams, Connections]),
    ):
        for cls in doubles:
            monkeypatch.setitem(registered(package, base).classes, cls.name, cls)
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])


def study(service: str, load: str) -> Study:
    text = f"""\
name = "pairing"
blocks = 2
noise_floor = false
[service]
name = "{service}"
[load]
name = "{load}"
[factors]
"limits.memory" = ["256 MiB", "512 MiB"]
[[arms]]
platform = "native"
"""
    return read_study(text, "pairing.toml", catalogue())


def problems_of(service: str, load: str) -> list[Problem]:
    try:
        arms, skipped = Stage(study(service, load), LocalHost()).offered("pairing.toml", tries=False)
    except StudyError as error:
        return list(error.problems)
    assert ([arm.platform for arm in arms], skipped) == (["native"], [])
    return []


def fit(problem: Problem) -> set[str]:
    """The loads that it names."""
    return set(problem.remedy.removeprefix("loads that can: ").split(", "))


def test_a_load_is_refused_that_does_not_take_what_is_offered() -> None:
    """Once, whatever the number of conditions, with the names of the loads that would."""
    (problem,) = problems_of("resolver", "connections")
    assert problem.what == "load 'connections' cannot drive resolver, which offers udp"
    assert problem.where == "pairing.toml: [load] name"
    assert problem.remedy == "loads that can: command, datagrams"


def test_it_is_told_where_there_is_none_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Datagrams, "takes", ())
    assert [problem.remedy for problem in problems_of("resolver", "http")] == ["loads that can: command"]


def test_all_that_would_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take what the offer is derived from, too."""
    (problem,) = problems_of("nginx", "datagrams")
    assert problem.what == "load 'datagrams' cannot drive nginx, which offers http"
    assert {"ab", "connections", "http", "siege", "wrk"} <= fit(problem)
    assert "datagrams" not in fit(problem)
    monkeypatch.setattr(Resolver, "offered", (Udp, Tcp))
    (problem,) = problems_of("resolver", "http")
    assert problem.what.endswith("which offers udp or tcp")
    assert fit(problem) == {"command", "connections", "datagrams"}


@pytest.mark.parametrize(("service", "load"), [("resolver", "datagrams"), ("nginx", "http"), ("nginx", "connections")])
def test_a_load_that_takes_it_is_not_refused(service: str, load: str) -> None:
    assert problems_of(service, load) == []
