"""slirp4netns: how rootless Podman reached the world before 5.0, and rootless Docker by default."""

from __future__ import annotations

import json
from typing import ClassVar

from virtoll.networks.base import Stack
from virtoll.networks.stacks import ADDRESS, StackNetwork
from virtoll.networks.wires import Link
from virtoll.offers import Port, Protocol

MTU_BYTES = 65_520  # Podman's default; slirp4netns takes one more at most
# As root its sandbox takes all mounts away in a copy that is the machine's peer still (it makes `/` private, and
# nothing below it): what is mounted below a shared mount would go from the machine, too. `ip netns add` makes
# /run/netns one, and systemd all. Podman's is in a user namespace, where the kernel sees to that.
_APART = ("unshare", "--mount", "--propagation=private", "--")


class Slirp4netnsNetwork(StackNetwork):
    """libslirp, QEMU's own stack (`usernet`), behind a tap: a whole TCP of its own in one thread.

    Its options are Podman's (containers/common, libnetwork/slirp4netns), less IPv6, which the lab does not speak. As
    root it keeps CAP_NET_BIND_SERVICE alone, and sees /etc and /run alone. Ports are forwarded by itself
    (`--network slirp4netns:port_handler=slirp4netns`), so that the service sees who asks. Podman's default there is
    rootlessport, whose connections end before slirp4netns: what users send does not pass it then.
    """

    name: ClassVar[str] = "slirp4netns"
    summary: ClassVar[str] = "a rootless container before Podman 5: a TCP stack in a program (slirp4netns), ports too"
    program: ClassVar[str] = "slirp4netns"
    package: ClassVar[str] = "slirp4netns"

    def command(self, netns: str, link: Link, address: str, ports: tuple[Port, ...]) -> list[str]:
        """See `StackNetwork.command`."""
        del address, ports
        command = [*_APART, self.program, "--disable-host-loopback", f"--mtu={MTU_BYTES}", "--enable-sandbox"]
        command += ["--enable-seccomp", "--configure", f"--macaddress={link.instance_mac}"]
        return [*command, f"--api-socket={Stack.SOCKET}", "--netns-type=path", f"/run/netns/{netns}", "eth0"]

    def requests(self, address: str, ports: tuple[Port, ...]) -> list[str]:
        """One for each port (slirp4netns(1), API SOCKET)."""
        return [_forward(port.protocol, address, number) for port in ports for number in port.numbers]


def _forward(protocol: Protocol, address: str, number: int) -> str:
    there = {"proto": protocol, "host_addr": address, "host_port": number}
    return json.dumps({"execute": "add_hostfwd", "arguments": {**there, "guest_addr": ADDRESS, "guest_port": number}})
