"""What network stacks in user space share: programs that rootless containers reach the world by.

Such a program makes a tap in the container's network namespace and ends the container's connections: each goes on by a
socket of its own in the SUT's namespace. Here it runs as root, as virtoll does: what a TCP stack in user space costs is
measured. (A user namespace is a setting of the container's platform. Each program gives up what it does not need: an
instance's facts say which user it is and what it may.)
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.programs import Stamp, find, stamp
from virtoll.lab.base import Lab, endpoint_address
from virtoll.networks.base import Attachment, Kind, NetworkMode, Stack
from virtoll.networks.wires import TOWARDS_GENERATOR, Link, forwarded, too_many
from virtoll.offers import Port

ADDRESS = "10.0.2.100"  # inside; slirp4netns(1)

_TRIED = "tried"  # what the network namespace is called in which a program is tried
# $1: a device like the SUT's, $2 and $3: its address and the namespace's name; what follows is the program. Its link is
# there, or its own words say why not. (By /proc/self: in a pid namespace /proc/PID is somebody else, and a namespace
# that has routes is none of ours.)
_TRY = """
mount -t tmpfs none /run; mkdir /run/netns; : >"/run/netns/$3"
unshare --net mount --bind /proc/self/ns/net "/run/netns/$3"
[ -z "$(ip -n "$3" route)" ]
ip tuntap add "$1" mode tap; ip address add "$2/24" dev "$1"; ip link set "$1" up
netns=$3; shift 3; cd /run; n=0
{ "$@" || true; : >ended; } &
until ip -n "$netns" route | grep -q '^default .* dev eth0'; do
    n=$((n + 1)); [ $n -lt 1000 ]; [ ! -e ended ]; sleep 0.01
done
"""


class StackNetwork(NetworkMode):
    """A mode whose packets ``program`` carries, of Debian's ``package``."""

    kinds: ClassVar[tuple[Kind, ...]] = ("stack",)
    program: ClassVar[str]
    package: ClassVar[str]

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Whether the program is there; and tries it, in namespaces that end with all that is in them."""
        del kind
        if find(self.program) is None:
            return [Problem(f"{self.program} is not installed", host.where, f"apt-get install {self.package}")]
        address = endpoint_address(0)
        argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", _TRY, "sh"]
        argv += [TOWARDS_GENERATOR, address, _TRIED, *self.command(_TRIED, Link(), address, ())]
        done = host.run(argv, check=False)
        if done.returncode == 0:
            return []
        detail = done.stderr.decode(errors="replace").strip()
        return [
            Problem(
                f"network mode {self.name!r} cannot be set up: {detail}",
                host.where,
                f"modprobe tun; or let no profile of AppArmor's forbid it to {self.program} (aa-status)",
            )
        ]

    def versions(self, host: Host) -> dict[str, str]:
        """The program's."""
        return {self.program: version(host, self.program)}

    def problems_with(self, ports: Sequence[Port]) -> list[Problem]:
        """Each port is a socket of the program's."""
        return too_many(self.name, ports)

    @abstractmethod
    def command(self, netns: str, link: Link, address: str, ports: tuple[Port, ...]) -> list[str]:
        """The program in the foreground, which makes eth0 in the namespace of that name, with the link's MAC address.

        It is to bring ``ports`` of the SUT's ``address`` to ADDRESS, by `requests` if not by this.
        """

    def requests(self, address: str, ports: tuple[Port, ...]) -> list[str]:  # noqa: ARG002
        """What it is asked for when it is there (`Stack.requests`)."""
        return []

    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """The program makes all when there is a container."""
        netns, link = f"vt-{lab.run_tag}-in{lab.slot}", Link(lab.slot)

        def stack(address: str) -> Stack:
            return Stack(
                netns,
                tuple(self.command(netns, link, address, ports)),
                version(lab.host, self.program),
                tuple(self.requests(address, ports)),
            )

        return forwarded(lab, self.name, kind, ports, ADDRESS, stack=stack)


_versions: dict[tuple[str, str, Stamp | None], str] = {}  # by host and program


def version(host: Host, program: str) -> str:
    """What a program says of itself, asked once: deployments are timed. Its digest as well, where it does not know
    (Debian 12's pasta).
    """
    key = (host.where, program, stamp(program))
    if key not in _versions:
        told = host.run([program, "--version"]).text.partition("\n")[0]
        if "unknown" in told:
            told += f", sha256 {hashlib.sha256(host.read(Path(find(program) or program))).hexdigest()}"
        _versions[key] = told
    return _versions[key]
