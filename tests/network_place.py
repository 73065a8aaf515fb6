"""A place for network probes without a lab: the real agent on this machine stands for the instance, by the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.limits import Limits
from virtoll.loads.base import Client
from virtoll.networks.base import Attachment
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.stdio import agent_on_stdio
from virtoll.probes import peers
from virtoll.probes.base import Place
from virtoll.services import daemon


@contextmanager
def network_place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Instance and client on this machine; servers log to ``directory``."""
    host = LocalHost()
    agent_path = str(binary("virtoll-agent"))
    monkeypatch.setattr(peers, "AGENT", agent_path)
    monkeypatch.setattr(daemon, "DIRECTORY", str(directory))
    attachment = Attachment("host", "shared", "", "127.0.0.1", (peers.PORT,))
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
        )
        client = Client(host, Confinement(), directory, cpus=1)

        def another(_: int) -> Iterator[Instance]:
            raise NotImplementedError

        yield Place(instance, client, [], contextmanager(another))
