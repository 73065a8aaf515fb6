"""Where a client of the service stands, and what it can ask from there: one GET, and the wait for a first answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from virtoll.agent import Agent
from virtoll.binaries import binary
from virtoll.errors import CommandError, TrialError
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.open_files import most_of
from virtoll.offers import Http, Offer, Udp

# A client by hand: what stands in the generator's namespace is a process of its own.
_EXCHANGE = """
import socket, sys
address, port, protocol, most = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
sent, got = sys.stdin.buffer.read(), b""
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM) as s:
    s.settimeout(30)
    s.connect((address, port))
    s.sendall(sent)
    while len(got) < most and (part := s.recv(65536)):
        got += part
        if protocol == "udp":
            break
sys.stdout.buffer.write(got[:most])
"""

LOCAL_PORTS = range(1024, 65536)  # of a client's own: one for each connection to a server
_GET_S = 30.0
_EXCHANGE_S = 90.0  # all of it: each wait in it has 30 s
# Groups below the lab's: of a load's own programs, and of what stands behind the service.
LOAD, ORIGIN = "load", "origin"
SAID = "load.txt"  # in a client's directory: what a load's programs printed


def most_connected(files_each: int, threads: int) -> int:
    """Of those who take a port and so many open files each, as many as a client of so many threads may connect."""
    return min(most_of(files_each, max(1, threads)), len(LOCAL_PORTS))


@dataclass(frozen=True)
class Programs:
    """A root filesystem with a load's own programs, on the generator's CPUs, in a control group of its own."""

    agent: Agent
    cgroup: str
    root: Path  # where it lies on the host
    confinement: Confinement  # where the host starts more of them: in that group, and in the generator's namespace

    def cpu_ns(self) -> int | None:
        """CPU time that all of it has used; None where the kernel does not tell."""
        return Cgroup(self.cgroup, hierarchies()).cpu_ns()


_Session_co = TypeVar("_Session_co", covariant=True)


class Opens(Protocol[_Session_co]):
    """A load (`virtoll.loads.base.Load`)."""

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[_Session_co]:
        """Open it where ``client`` stands."""
        ...


@dataclass(frozen=True)
class Client:
    """Where a load runs: a host, confined to the generator's namespace, CPUs and cgroup; ``directory`` for logs."""

    host: Host
    confinement: Confinement
    directory: Path
    cpus: int  # how many CPUs the generator may use
    programs: Programs | None = None  # where a load's own programs run, if it has some
    is_seeded: bool = False  # the service, by an earlier trial of its deployment
    # The counters of CPU time (`Cgroup.cpu_file`) of the instance that is asked, by source: a generator that can looks
    # at them where its window begins and ends.
    books: Mapping[str, Path] = field(default_factory=dict)

    @property
    def brings_programs(self) -> bool:
        """Whether it has programs of a load's own where it stands: there is no need to deploy them from here."""
        return False

    def opened(self, load: Opens[_Session_co], offer: Offer) -> AbstractContextManager[_Session_co]:
        """A load's session at an offer, from here."""
        return load.session(self, offer)

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        """Send ``sent`` over the offer's transport, and read until ``most_bytes`` came, or the end (one datagram).

        TrialError when nothing can be sent, or no answer comes within seconds.
        """
        protocol = "udp" if isinstance(offer, Udp) else "tcp"
        argv = [sys.executable, "-I", "-S", "-c", _EXCHANGE, offer.address, str(offer.port), protocol, str(most_bytes)]
        where = f"{offer.kind} at {offer.address}:{offer.port}"
        try:
            done = self.host.run(argv, stdin=sent, check=False, timeout_s=_EXCHANGE_S, confinement=self.confinement)
        except CommandError as error:
            raise TrialError(f"no whole answer: {error.problem.what}", where=where) from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise TrialError(f"no answer: {said}", where=where)
        return done.stdout

    def received_bytes(self) -> int:
        """What has come over the generator's link so far."""
        command = ["cat", "/proc/net/dev"]
        lines = self.host.run(command, confinement=self.confinement).text.splitlines()
        counts = (line.partition(":")[2].split() for line in lines if line.strip().startswith("eth0:"))
        return next(int(count[0]) for count in counts)

    def get(self, offer: Http, path: str) -> Answer:
        """Fetch one object whole. TrialError when no complete answer comes; any status is an answer."""
        spec = {"target": target_of(offer, path), "timeout_ns": round(_GET_S * 1e9)}
        return Answer(**ask(self, "get", spec, _GET_S))


@dataclass(frozen=True)
class Answer:
    """What one plain GET of one object brought; the evidence of a verification."""

    status: int
    length_bytes: int
    sha256: str
    headers: dict[str, str]
    tls: dict[str, Any] | None = None  # version, cipher and certificate, where it was spoken


@dataclass(frozen=True)
class Ready:
    """When a server was found serving: CLOCK_MONOTONIC, and what it took."""

    ready_ns: int
    waited_ns: int
    attempts: int


def wait_until_ready(
    client: Client, offer: Http, path: str = "/", *, answer: bool = True, deadline_s: float, poll_ms: float = 5
) -> Ready:
    """Wait until the offer accepts connections, or with ``answer`` until it brings an HTTP status for ``path``.

    TrialError says what stood in the way when it does not happen within ``deadline_s``.
    """
    spec = {
        "target": target_of(offer, path),
        "answer": answer,
        "deadline_ns": round(deadline_s * 1e9),
        "poll_ns": round(poll_ms * 1e6),
    }
    return Ready(**ask(client, "wait", spec, deadline_s + 5))


def target_of(offer: Http, path: str) -> dict[str, Any]:
    """The native generator's words for an object behind an offer."""
    tls = {"server_name": offer.address, "pinned": offer.certificate} if offer.certificate else None
    return {"address": f"{offer.address}:{offer.port}", "url": offer.url(path), "proxy": offer.proxy, "tls": tls}


def ask(client: Client, verb: str, spec: dict[str, Any], timeout_s: float) -> Any:
    """Run one subcommand of the native generator where the client stands, and return its report.

    TrialError with the generator's own words when it fails, is killed, or outlives ``timeout_s`` by 30 s.
    """
    argv = [str(binary("virtoll-load")), verb]
    try:
        done = client.host.run(
            argv,
            stdin=json.dumps(spec).encode(),
            timeout_s=timeout_s + 30,
            check=False,
            confinement=client.confinement,
        )
    except CommandError as error:
        raise TrialError(error.problem.what, where=client.host.where, remedy=error.problem.remedy) from error
    if done.returncode != 0:
        ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        said = done.stderr.decode(errors="replace").strip().removeprefix("virtoll-load: ")
        raise TrialError(said or f"virtoll-load {verb}: {ended}", where=f"the load generator on {client.host.where}")
    return json.loads(done.stdout)
