"""A container's network, made when its first process is there: a link that is moved in, or a stack beside it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from virtoll.errors import HostError, PlatformError
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.local import end_session
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Stack
from virtoll.offers import PROTOCOLS, Protocol
from virtoll.platforms import veth
from virtoll.platforms.groups import Groups
from virtoll.platforms.logs import bounded
from virtoll.platforms.requirements import bare
from virtoll.platforms.stdio import tail

LOG = "network.log"  # in the instance's directory: what a stack says
START_LIMIT_S = 30.0  # from a stack's start until its link and ports are there: milliseconds, where nothing else runs
_LOOK_S = 0.005
_ANSWER_BYTES = 4096
# $1: a process in the namespace, $2: what the namespace is told (`veth.SETTINGS`), $3: its name.
_TELL = """
[ ! "/proc/$1/ns/net" -ef /proc/self/ns/net ] || { echo "process $1 is not the instance's any more" >&2; exit 1; }
nsenter --net="/proc/$1/ns/net" sh -e -c "$2"
"""
_NAME = f"""{_TELL}: >"$3"; mount --bind "/proc/$1/ns/net" "$3"
"""


@dataclass(frozen=True)
class Network:
    """What is to be recorded of it, and whether all that it needs is still there."""

    facts: dict[str, Any]
    lives: Callable[[], bool]


@contextmanager
def attached(lab: Lab, attachment: Attachment, groups: Groups, directory: Path) -> Iterator[Network]:
    """Do what `Attachment` asks for when a container's first process is there, and undo it at the end of the block.

    ``groups``: a stack is started in their helpers. PlatformError with its own words where it does not come up.
    """
    if attachment.stack is not None:
        with _beside(lab, attachment, attachment.stack, groups, directory) as network:
            yield network
        return
    if attachment.kind == "veth":
        veth.move_in(lab.host, attachment, groups.pid_inside())
    if attachment.kind == "published":  # Docker from 26 on leaves the loopback its ::1 (moby, 47948)
        lab.host.run(["sh", "-e", "-c", _TELL, "sh", str(groups.pid_inside()), veth.SETTINGS])
    yield Network({}, lambda: True)


@contextmanager
def _beside(lab: Lab, attachment: Attachment, stack: Stack, groups: Groups, directory: Path) -> Iterator[Network]:
    log = directory / LOG
    with ExitStack() as exits:
        exits.enter_context(_named(lab, stack.netns, groups.pid_inside()))
        output = exits.enter_context(bounded(log))
        process = lab.host.spawn(
            bare(stack.command),
            stdout=output,
            stderr=output,
            confinement=Confinement(groups.helpers.procs, netns=attachment.netns),
            cwd=directory,
        )
        exits.callback(end_session, process)
        try:
            _come_up(lab.host, attachment, process, groups, directory)
            facts = {"version": stack.version, "command": [*stack.command], **_rights(lab.host, process.pid)}
        except (PlatformError, HostError) as error:  # of one that has just ended /proc tells nothing
            exits.close()  # then all that it said is in the log
            raise PlatformError(
                f"{stack.command[0]} {error.problem.what}\n{tail(log)}",
                where=f"network mode {attachment.mode}",
                remedy="its own words say why; `virtoll doctor` tries it",
            ) from error
        yield Network({"network": facts}, lambda: process.poll() is None)


@contextmanager
def _named(lab: Lab, name: str, pid: int) -> Iterator[None]:
    """Give the network namespace of process ``pid`` a name, and tell it what those of the lab are told.

    A program that gives up root's capabilities may not look into /proc/PID/ns of who has more of them. The name goes
    before the ledger would end whoever works there: a container is ended by its platform.
    """
    with lab.ledger.owning("netns", name):
        lab.host.run(["sh", "-e", "-c", _NAME, "sh", str(pid), veth.SETTINGS, f"/run/netns/{name}"])
        try:
            yield
        finally:
            lab.host.run(["ip", "netns", "delete", name])


def _come_up(
    host: Host, attachment: Attachment, process: subprocess.Popen[bytes], groups: Groups, directory: Path
) -> None:
    """Wait for the link, ask for what is to be asked for, and wait for the ports."""
    _wait(process, "it has made no link", lambda: _has_route(host, groups.pid_inside()))
    if attachment.stack is not None and attachment.stack.requests:
        _ask(process, directory, attachment.stack.requests)
    wanted = {(port.protocol, number) for port in attachment.ports for number in port.numbers}
    missing = f"not all of {', '.join(map(str, attachment.ports))} are open"
    _wait(process, missing, lambda: wanted <= _open_ports(host, process.pid, attachment.endpoint_address))


def _ask(process: subprocess.Popen[bytes], directory: Path, requests: Sequence[str]) -> None:
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # by which any path is short enough
    try:
        for request in requests:
            _wait(process, "it takes no requests", partial(_told, f"/proc/self/fd/{at}/{Stack.SOCKET}", request))
    finally:
        os.close(at)


def _wait(process: subprocess.Popen[bytes], missing: str, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not is_there():
        if process.poll() is not None:
            raise PlatformError(f"has ended (exit code {process.returncode}): {missing}")
        if time.monotonic() > deadline:
            raise PlatformError(f"is not ready within {START_LIMIT_S:g} s: {missing}")
        time.sleep(_LOOK_S)


def _has_route(host: Host, pid: int) -> bool:
    """Whether there is a default route by eth0 where that process is: what a stack makes last of its link."""
    return any(line.startswith("eth0\t00000000\t") for line in _lines(host, pid, "route"))


def _open_ports(host: Host, pid: int, address: str) -> set[tuple[Protocol, int]]:
    """The ports of ``address`` that somebody listens at where that process is; proc(5), /proc/net/tcp."""
    here = socket.inet_aton(address)[::-1].hex().upper()
    found: set[tuple[Protocol, int]] = set()
    for protocol, state in zip(PROTOCOLS, ("0A", "07"), strict=True):  # include/net/tcp_states.h
        for line in _lines(host, pid, protocol):
            at, _, port = line.split()[1].partition(":")
            if at == here and line.split()[3] == state:
                found.add((protocol, int(port, 16)))
    return found


def _lines(host: Host, pid: int, file: str) -> list[str]:
    """Of a table in /proc/net, without its head; none where the process has just ended."""
    with suppress(HostError):
        return host.read(Path(f"/proc/{pid}/net/{file}")).decode().splitlines()[1:]
    return []


def _told(path: str, request: str) -> bool:
    """Whether somebody takes requests at ``path``; PlatformError where this one is refused."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_LIMIT_S)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        try:
            connection.sendall(request.encode())
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(_ANSWER_BYTES)
        except OSError as error:
            raise PlatformError(f"does not answer {request}: {error}") from error
    try:
        is_done = "return" in json.loads(answer)
    except (RecursionError, TypeError, ValueError):
        is_done = False
    if not is_done:
        raise PlatformError(f"refuses {request}: {answer.decode(errors='replace')}")
    return True


def _rights(host: Host, pid: int) -> dict[str, str]:
    """Which user a program is, and what it may (capabilities(7))."""
    told = dict(line.split(":\t", 1) for line in host.read(Path(f"/proc/{pid}/status")).decode().splitlines())
    return {"uid": told["Uid"].split()[0], "capabilities": told["CapEff"]}
