"""What the network probes share: the responder inside the instance, and the client on the generator's side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from virtoll.binaries import binary
from virtoll.errors import AgentError, CommandError, Problem
from virtoll.images.base import AGENT
from virtoll.networks.base import MOST_DATAGRAM_BYTES, Attachment
from virtoll.offers import Port, Protocol
from virtoll.platforms.base import Instance
from virtoll.probes.base import Place, ProbeError, ProbeResult, Timed
from virtoll.probes.native import arguments, parse, proved, time_limit_s
from virtoll.services import daemon
from virtoll.units import within

PORT = 5210  # for TCP and UDP: a port that no service of a study uses
PORTS = (Port(PORT), Port(PORT, "udp"))
MOST_MESSAGE_BYTES = 16 * 1024**2  # over TCP


@dataclass(frozen=True)
class Networked(Timed):
    """Settings that every network probe has. ``patience``: no wait for the other end is longer."""

    patience_ns: int = within(10 * 10**9, least=1_000_000)


def measure(place: Place, name: str, settings: Any, protocol: Protocol) -> ProbeResult:
    """Run probe ``name`` on the generator's side against a peer in the instance.

    ProbeError of kind *peer* where it cannot be reached, *refused* where its port was not asked for.
    """
    attachment = place.instance.attachment
    expect_way(attachment, name, protocol)
    client = place.client
    with serving(place, "peer", [AGENT, "peer", "--port", str(PORT)], "tcp"):
        target = f"{attachment.endpoint_address}:{PORT}"
        argv = [str(binary("virtoll-agent")), *arguments(name, settings), "--peer", target]
        try:
            limit_s = time_limit_s(settings)
            done = client.host.run(argv, timeout_s=limit_s, check=False, confinement=client.confinement)
        except CommandError as error:
            raise ProbeError(
                error.problem.what, kind="peer", where=f"probe {name}", remedy=error.problem.remedy
            ) from error
    return proved(parse(name, done.returncode, done.stdout, done.stderr), settings)


def too_large(protocol: Protocol, size_bytes: int) -> list[Problem]:
    """The problem of a datagram that IPv4 does not carry."""
    if protocol == "tcp" or size_bytes <= MOST_DATAGRAM_BYTES:
        return []
    return [Problem(f"no datagram holds {size_bytes} B", "size", f"choose {MOST_DATAGRAM_BYTES} B or less")]


def expect_way(attachment: Attachment, name: str, protocol: Protocol) -> None:
    """ProbeError unless `PORT` reaches the instance: over ``protocol``, and over TCP, by which both ends agree."""
    for port in (Port(PORT), Port(PORT, protocol)):
        if not attachment.reaches(port):
            raise ProbeError(
                f"network mode {attachment.mode!r} does not bring {port} to this instance",
                kind="refused",
                where=f"probe {name}",
                remedy="name the port in the probe's `ports`, or choose a mode with an address of the instance's own: "
                "host, bridge or routed",
            )


def started(instance: Instance, name: str, argv: Sequence[str], port: int, protocol: Protocol = "tcp") -> int:
    """`daemon.start` of a probe's server. ProbeError of kind *peer* with its log where it does not come to listen: one
    that a neighbour keeps from it does not answer. Nothing is left of it.
    """
    try:
        return daemon.start(instance, name, argv, port, protocol=protocol)
    except daemon.NotStartedError as error:
        with suppress(AgentError):  # the instance may have died, and that is not what is to be told
            instance.agent.kill(instance.services[name])
        what, where, remedy = error.problem.what, error.problem.where, error.problem.remedy
        raise ProbeError(what, kind="peer", where=where, remedy=remedy) from error


@contextmanager
def serving(place: Place, name: str, argv: Sequence[str], protocol: Protocol) -> Iterator[None]:
    """A server on `PORT` inside, ended with the block; see `started`."""
    agent = place.instance.agent
    pid = started(place.instance, name, argv, PORT, protocol)
    try:
        yield
    except BaseException:
        with suppress(AgentError):  # the instance may have died, and that is not what is to be told
            agent.kill(pid)
        raise
    agent.kill(pid)
