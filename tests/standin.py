"""A stand-in for an instance: a namespace with a TCP stack of its own, attached as a platform attaches its guest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import datagrams
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import end_session
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment
from virtoll.offers import Port
from virtoll.platforms.container_network import Network, attached
from virtoll.platforms.groups import instance_groups
from virtoll.study.limits import Limits

_RELAY = Path(__file__).with_name("tap_relay.py")


@contextmanager
def instance(lab: Lab, attachment: Attachment) -> Iterator[str]:
    """The name of the namespace in which the instance's programs run."""
    if attachment.kind == "shared":
        yield attachment.netns
        return
    if attachment.stack is not None:
        with beside_a_stack(lab, attachment):
            yield attachment.stack.netns
        return
    name = f"vt-{lab.run_tag}-ins{lab.slot or ''}"
    with ExitStack() as stack:
        stack.enter_context(lab.ledger.owning("netns", name))
        lab.host.run(["sh", "-e", "-c", f": >/run/netns/{name}; unshare --net=/run/netns/{name} true"])
        if attachment.kind == "veth":
            move = ["ip", "-n", attachment.netns, "link", "set", attachment.device, "netns", name, "name", "eth0"]
            lab.host.run(move)
        else:
            relay = lab.host.spawn(
                [sys.executable, str(_RELAY), attachment.netns, attachment.device, name, attachment.mac]
            )
            stack.callback(end_session, relay)
            lab.host.run(["sh", "-c", f"until ip -n {name} link show eth0 2>/dev/null; do sleep 0.01; done"])
        onlink = "onlink" if attachment.on_link_gateway else ""
        commands = f"""link set lo up
link set eth0 up
addr add {attachment.address}/{attachment.prefix_length} dev eth0
route add default via {attachment.gateway} dev eth0 {onlink}
"""
        lab.host.run(["ip", "-n", name, "-batch", "-"], stdin=commands.encode())
        yield name


@contextmanager
def beside_a_stack(lab: Lab, attachment: Attachment) -> Iterator[Network]:
    """A process in a network namespace of its own, which gets its network as containers do."""
    with container(lab, attachment) as (network, _):
        yield network


@contextmanager
def container(lab: Lab, attachment: Attachment, before: str = ":") -> Iterator[tuple[Network, int]]:
    """The same, and the process; its namespace is as the script ``before`` makes it, before it gets its network."""
    directory = lab.directory / f"standin{lab.slot or ''}"
    with ExitStack() as stack:
        stack.enter_context(lab.ledger.owning("directory", str(directory)))
        directory.mkdir()
        groups = stack.enter_context(instance_groups(lab, directory.name, Limits(vcpus=1)))
        waits = ["unshare", "--net", "sh", "-e", "-c", f"{before}\necho there; exec sleep 1000"]
        process = lab.host.spawn(waits, stdout=subprocess.PIPE, confinement=Confinement(groups.payload.procs))
        stack.callback(end_session, process)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"there\n"
        yield stack.enter_context(attached(lab, attachment, groups, directory)), process.pid


# The client speaks first: by Debian 12's pasta a server that does is not heard (`virtoll.networks.pasta`).
_SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    connection, peer = server.accept()
    connection.recv(1)
    connection.sendall((peer[0] + "\\n").encode() + b"x" * int(sys.argv[3]))
    connection.close()
"""

_ASK = """
import socket, sys, time
start = time.monotonic()  # before anything can be on its way
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=600) as connection:
    answer = b""
    connection.sendall(b"?")
    while data := connection.recv(1 << 20):
        answer += data
    print(answer.split(b"\\n")[0].decode(), len(answer), time.monotonic() - start)
"""


@contextmanager
def serving(lab: Lab, netns: str, address: str, port: int, body_bytes: int = 0) -> Iterator[None]:
    """A server that tells each client the address it sees, followed by ``body_bytes``."""
    with _listening(lab, netns, [sys.executable, "-c", _SERVE, address, str(port), str(body_bytes)]):
        yield


@contextmanager
def answering(lab: Lab, netns: str, ports: Sequence[Port]) -> Iterator[None]:
    """A server that answers every datagram to the UDP ports among ``ports`` (`datagrams.exchanged`)."""
    with _listening(lab, netns, datagrams.server(ports)):
        yield


@contextmanager
def _listening(lab: Lab, netns: str, argv: Sequence[str]) -> Iterator[None]:
    process = lab.host.spawn(argv, stdout=subprocess.PIPE, confinement=Confinement(netns=netns))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        end_session(process)
        if process.stdout is not None:
            process.stdout.close()


def ask(lab: Lab, netns: str, address: str, port: int) -> tuple[str, int, float]:
    """Connect from ``netns``; what the server saw as our address, bytes received, and how many seconds it took."""
    argv = [sys.executable, "-c", _ASK, address, str(port)]
    seen, length, seconds = lab.host.run(argv, confinement=Confinement(netns=netns)).text.split()
    return seen, int(length), float(seconds)
