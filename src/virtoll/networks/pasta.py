"""pasta (passt.top): how rootless Podman reaches the world since 5.0."""

from __future__ import annotations

from typing import ClassVar

from virtoll.networks.stacks import ADDRESS, StackNetwork
from virtoll.networks.wires import SLIRP_GATEWAY, SLIRP_PREFIX_LENGTH, TOWARDS_GENERATOR, Link
from virtoll.offers import PROTOCOLS, Port


class PastaNetwork(StackNetwork):
    """pasta copies between a tap and sockets of the host's kernel, and leaves buffering to the two kernels' TCP.

    Its options are Podman 5's (containers/common, libnetwork/pasta: `--config-net`, the ports, `-T none -U none`,
    `--no-map-gw`, `--quiet`), and further:

    - `--runas 0:0`: started by root it becomes nobody, who may not enter the namespace of a container of root's. It
      keeps CAP_SYS_ADMIN and CAP_NET_BIND_SERVICE, and its own filter of system calls.
    - `--interface`, `--address`, `--netmask`, `--gateway`: the SUT has no default route whose link and addresses it
      could copy (by itself a container has its host's address; Podman documents this choice, too: podman-run(1)).
    - `--ipv4-only`, for the lab speaks nothing else; `--foreground`, so that it ends with the instance.

    Podman's `--dns-forward` and `--map-guest-addr` (which Debian 12's does not know) are left out: the lab has no DNS,
    and nobody inside asks for the host. The MTU is its own default, 65520 bytes.

    Seen of Debian 12's (March 2023): it completes no handshake with the service before the client has sent something,
    so that a service which speaks first is not heard.
    """

    name: ClassVar[str] = "pasta"
    summary: ClassVar[str] = (
        "a rootless container since Podman 5: sockets of the host's, by a program (pasta, of passt)"
    )
    program: ClassVar[str] = "pasta"
    package: ClassVar[str] = "passt"

    def command(self, netns: str, link: Link, address: str, ports: tuple[Port, ...]) -> list[str]:
        """See `StackNetwork.command`."""
        command = [self.program, "--foreground", "--runas", "0:0", "--config-net", "--ipv4-only"]
        command += ["--interface", TOWARDS_GENERATOR, "--ns-ifname", "eth0", "--ns-mac-addr", link.instance_mac]
        command += ["--address", ADDRESS, "--netmask", str(SLIRP_PREFIX_LENGTH), "--gateway", SLIRP_GATEWAY]
        command += forwards(address, ports)
        return [
            *command,
            "--tcp-ns",
            "none",
            "--udp-ns",
            "none",
            "--no-map-gw",
            "--quiet",
            "--netns",
            f"/run/netns/{netns}",
        ]


def forwards(address: str, ports: tuple[Port, ...]) -> list[str]:
    """The options that bring these ports in, and no others."""
    options = []
    for protocol in PROTOCOLS:
        asked = [port for port in ports if port.protocol == protocol]
        for port in asked:
            options += [f"--{protocol}-ports", f"{address}/{port.number}-{port.end}"]
        if not asked:
            options += [f"--{protocol}-ports", "none"]
    return options
