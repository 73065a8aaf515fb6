"""Moves a prepared veth end into a running container."""

from __future__ import annotations

from virtoll.hosts.base import Host
from virtoll.lab.wiring import EVERYWHERE, written
from virtoll.networks.base import Attachment

# For a shell in a container's namespace. The lab speaks IPv4 only, on every platform: a server that finds IPv6 opens
# other sockets. Nor does it filter by the reverse path: a new namespace begins as the machine's own is.
SETTINGS = written(EVERYWHERE)
# $1 is the gateway's address, $2 the link's.
_TELL_NEIGHBOUR = """
case $(ip link show eth0) in
    *NOARP*) ip neigh replace "$1" lladdr "$2" dev eth0 nud permanent ;;
esac
"""


def move_in(host: Host, attachment: Attachment, pid: int) -> None:
    """Make ``attachment.device`` the container's ``eth0`` (``pid``: any process in it), configured and up.

    It has its MAC address from the network mode: one that shares its port's (ipvlan) takes no other.
    When the container's namespace ends, the link ends with it.
    """
    _move(host, attachment, str(pid), f"/proc/{pid}/ns/net")


def move_to(host: Host, attachment: Attachment, netns: str) -> None:
    """The same, in a namespace by its name, in which nobody need be yet.

    A network stack that takes the link over may not see that it has no ARP (venet): it is told the other end's address,
    which there is the link's own.
    """
    path = f"/run/netns/{netns}"
    _move(host, attachment, netns, path)
    arguments = ["sh", attachment.gateway, attachment.mac]
    host.run(["nsenter", f"--net={path}", "sh", "-e", "-c", _TELL_NEIGHBOUR, *arguments])


def _move(host: Host, attachment: Attachment, told: str, path: str) -> None:
    gateway = f"{attachment.gateway} dev eth0" + (" onlink" if attachment.on_link_gateway else "")
    address = f"{attachment.address}/{attachment.prefix_length}"
    commands = f"link set lo up\nlink set eth0 up\naddress add {address} dev eth0\nroute add default via {gateway}\n"
    host.run(["ip", "-n", attachment.netns, "link", "set", attachment.device, "netns", told, "name", "eth0"])
    script = f"{SETTINGS}exec ip -batch -"
    host.run(["nsenter", f"--net={path}", "sh", "-e", "-c", script], stdin=commands.encode())
