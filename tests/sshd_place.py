"""A machine with a real sshd: keys and configuration of its own, and where asked a network namespace.

Nothing of it is on this machine's own network, and all of it ends with its processes: a link between two namespaces
without a name, a /run in a mount namespace. Its files are in the test's directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from virtoll.hosts.local import end_session
from virtoll.hosts.programs import find

HERE, THERE = "192.0.2.1", "192.0.2.7"  # RFC 5737
DESTINATION = f"root@{THERE}"
_SSHD = """\
ListenAddress {address}
Port 22
HostKey {directory}/host
AuthorizedKeysFile {directory}/user.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
LogLevel ERROR
SetEnv VIRTOLL_STATE={directory}/state
"""
_CLIENT = """\
Host *
    IdentityFile {directory}/user
    IdentitiesOnly yes
    UserKnownHostsFile {directory}/known_hosts
    GlobalKnownHostsFile none
"""
# Two namespaces: ours ($$), and that of a process that only holds it.
_WIRED = """
ip link set lo up
ip link add here0 type veth peer name there0 netns {holder}
ip addr add {here}/24 dev here0
ip link set here0 up
nsenter --net=/proc/{holder}/ns/net sh -e -c '
    ip link set lo up; ip addr add {there}/24 dev there0; ip link set there0 up'
"""


@dataclass(frozen=True)
class Machine:
    """Reached from the network namespace of process ``ours``, and from no other."""

    directory: Path
    ours: int
    theirs: int

    def within(self, argv: Sequence[str]) -> list[str]:
        """The command where the machine is reached, with the machine's key in ``known_hosts``."""
        return ["nsenter", f"--net=/proc/{self.ours}/ns/net", "--", *argv]

    @property
    def path(self) -> str:
        """With an `ssh` that reaches the machine."""
        return f"{self.directory}/client:{os.environ['PATH']}"

    def known(self, key: str = "host") -> None:
        """This key of it has been accepted; its own, unless said otherwise."""
        words = (self.directory / f"{key}.pub").read_text().split()[:2]
        (self.directory / "known_hosts").write_text(f"{THERE} {' '.join(words)}\n")

    def forgotten(self) -> None:
        """Nobody has accepted its key."""
        (self.directory / "known_hosts").write_text("")


@contextmanager
def machine(directory: Path) -> Iterator[Machine]:
    """One, for the length of the block."""
    for program in ("sshd", "ssh-keygen"):
        if find(program) is None:
            pytest.skip(f"no {program}: apt-get install openssh-server")
    directory.mkdir()
    _configured(directory)
    with ExitStack() as stack:
        ours = stack.enter_context(_started(["unshare", "--net", "sleep", "infinity"]))
        theirs = stack.enter_context(_started(["unshare", "--net", "sleep", "infinity"]))
        for process in (ours, theirs):
            _await_namespace(process)
        wired = _WIRED.format(holder=theirs.pid, here=HERE, there=THERE)
        made = Machine(directory, ours.pid, theirs.pid)
        _put_client(directory, ours.pid)
        made.known()
        subprocess.run(made.within(["sh", "-e", "-c", wired]), check=True)
        _await_port(made, stack.enter_context(_started(_server(directory, theirs.pid))))
        yield made


def _configured(directory: Path) -> None:
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    (directory / "sshd_config").write_text(_SSHD.format(address=THERE, directory=directory))
    (directory / "ssh_config").write_text(_CLIENT.format(directory=directory))


def _put_client(directory: Path, ours: int) -> None:
    """An `ssh` from where the machine is reached, with the test's configuration in the place of root's."""
    client = directory / "client/ssh"
    client.parent.mkdir()
    real = shutil.which("ssh")
    client.write_text(f'#!/bin/sh\nexec nsenter --net=/proc/{ours}/ns/net {real} -F {directory}/ssh_config "$@"\n')
    client.chmod(0o755)


def _server(directory: Path, holder: int) -> list[str]:
    """sshd in the foreground; the directory that it wants in /run is in a /run of its own."""
    sshd = find("sshd")
    own = f"mount -t tmpfs run /run; mkdir /run/sshd; exec {sshd} -D -e -f {directory}/sshd_config"
    return ["nsenter", f"--net=/proc/{holder}/ns/net", "unshare", "--mount", "sh", "-e", "-c", own]


@contextmanager
def _started(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        yield process
    finally:
        end_session(process)


def _await_namespace(process: subprocess.Popen[bytes]) -> None:
    while os.path.samestat(Path(f"/proc/{process.pid}/ns/net").stat(), Path("/proc/self/ns/net").stat()):
        assert process.poll() is None
        time.sleep(0.01)


def _await_port(there: Machine, server: subprocess.Popen[bytes]) -> None:
    ask = f"import socket; socket.create_connection(('{THERE}', 22), 5).close()"
    while subprocess.run(there.within([sys.executable, "-c", ask]), stderr=subprocess.DEVNULL).returncode != 0:
        assert server.poll() is None, "sshd has ended"
        time.sleep(0.02)
