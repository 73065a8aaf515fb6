"""A place for network probes without a lab: the real agent on this machine stands for the instance, by the loopback."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from virtoll.binaries import binary
from virtoll.fakes import FAKE_IMAGE
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.networks.base import Attachment
from virtoll.offers import Port
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.probes import peers
from virtoll.probes.base import Place, ProbeResult
from virtoll.probes.native import AS_LONG_AS_ASKED
from virtoll.record.model import Check
from virtoll.services import daemon
from virtoll.study.limits import Limits

_PORTS = range(10_000, 32_000)  # below those that the kernel gives to whoever asks for none (ip_local_port_range)


def own_checks(result: ProbeResult) -> list[Check]:
    """All but how long windows lasted, which is judged of none so brief as the tests', and so never false."""
    lengths = [check for check in result.checks if check.name == AS_LONG_AS_ASKED]
    assert all(check.passed is not False for check in lengths), lengths
    return [check for check in result.checks if check not in lengths]


@contextmanager
def own_ports(count: int = 1) -> Iterator[int]:
    """The first of ``count`` ports in a row that nobody listens on, and no other test takes, whatever its checkout.

    Each is held by an abstract socket of its number (unix(7)), which is gone with its process.
    """
    with ExitStack() as held:
        yield next(first for first in _anywhere(count) if _are_held(held, range(first, first + count)))


def _anywhere(count: int) -> Iterator[int]:
    for _ in range(1000):
        yield random.choice(_PORTS[: len(_PORTS) - count])


def _are_held(held: ExitStack, ports: range) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0virtoll-test-port-{port}")
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(socket.AF_INET, kind) as trial:
                        if kind == socket.SOCK_STREAM:  # as servers do: what is in TIME_WAIT there is nobody's
                            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        trial.bind(("", port))
        except OSError:
            return False
        held.push(stack.pop_all())
    return True


@contextmanager
def network_place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Instance and client on this machine, the peer on a port of its own; servers log to ``directory``."""
    with own_ports() as port:
        monkeypatch.setattr(peers, "PORT", port)
        with _place(directory, monkeypatch) as place:
            yield place


@contextmanager
def _place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    host = LocalHost()
    agent_path = str(binary("virtoll-agent"))
    monkeypatch.setattr(peers, "AGENT", agent_path)
    monkeypatch.setattr(daemon, "DIRECTORY", str(directory))
    attachment = Attachment("host", "shared", "", "127.0.0.1", (Port(peers.PORT),))
    serve = agent_on_stdio(
        host, [agent_path, "serve"], log=directory / "agent.log", confinement=Confinement(), platform="native"
    )
    with serve as (agent, process):
        instance = Instance(
            platform="native",
            agent=agent,
            attachment=attachment,
            accounting=Accounting("", directory),
            limits=Limits(),
            facts={},
            is_running=lambda: process.poll() is None,
            image=FAKE_IMAGE,
        )
        client = Client(host, Confinement(), directory, cpus=1)

        def another(_: int) -> Iterator[Instance]:
            raise NotImplementedError

        yield Place(instance, client, [], contextmanager(another))
