"""What the network modes with a link of their own share: names, addresses, and making and ending that link.

Everything is done by one `ip -batch` in the SUT's namespace, and all of it is removed with that namespace if a
crash leaves it behind; so it needs no line in the ledger. The link is made anew for each deployment: no neighbour
entry, counter or queue of an earlier instance survives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_ADDRESS, INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind

HOST_SIDE = "vt0"  # stays in the SUT namespace; a tap is this device itself
INSTANCE_SIDE = "vt1"  # the veth's other end, which becomes the instance's eth0
HOST_SIDE_MAC = "02:76:74:00:03:01"
GROUP = 118  # marks every link of an attachment, so that one command deletes them all
INSTANCE_MAC = "02:76:74:00:03:10"  # always the same: a new MAC behind a known address stays unreachable for seconds


def link_commands(kind: Kind) -> list[str]:
    """`ip` commands that make the instance's link, with the host's side up."""
    if kind == "tap":
        make = [f"tuntap add dev {HOST_SIDE} mode tap", f"link set {HOST_SIDE} address {HOST_SIDE_MAC}"]
    else:
        peer = f"peer name {INSTANCE_SIDE} address {INSTANCE_MAC}"
        make = [f"link add {HOST_SIDE} address {HOST_SIDE_MAC} type veth {peer}"]
    return [*make, f"link set {HOST_SIDE} group {GROUP} up"]


def device_for(kind: Kind) -> str:
    """The device that the platform is handed."""
    return HOST_SIDE if kind == "tap" else INSTANCE_SIDE


def quick_neighbours(device: str) -> str:
    """Ask again after 10 ms where ARP got no answer: by default a starting instance is found up to 1 s late."""
    return f"ntable change name arp_cache dev {device} retrans 10"


def tried(host: Host, mode: str, commands: Sequence[str], rules: str = "") -> list[Problem]:
    """What keeps `ip` ``commands`` and nftables ``rules`` from working, tried in a namespace of their own."""
    lines = "\n".join(commands)
    script = f"ip -batch - <<'END' || exit 1\n{lines}\nEND\n"
    if rules:
        script += f"nft -f - <<'END'\n{rules}END\n"
    done = host.run(["unshare", "--net", "sh", "-c", script], check=False)
    if done.returncode == 0:
        return []
    detail = done.stderr.decode(errors="replace").strip()
    return [
        Problem(
            f"network mode {mode!r} cannot be set up: {detail}",
            where=host.where,
            remedy="apt-get install iproute2 nftables; modprobe -a veth tun bridge nft_chain_nat nft_masq",
        )
    ]


@contextmanager
def linked(
    lab: Lab, mode: str, kind: Kind, ports: tuple[int, ...], commands: Sequence[str], *, point_to_point: bool
) -> Iterator[Attachment]:
    """Run `ip` ``commands`` that make the instance's link; it is deleted at the end of the block.

    ``point_to_point``: the instance has a network of one address, and its gateway is outside it.
    """
    try:
        configure(lab, commands)
        yield Attachment(
            mode,
            kind,
            lab.sut_netns,
            INSTANCE_ADDRESS,
            ports,
            device=device_for(kind),
            mac=INSTANCE_MAC,
            address=INSTANCE_ADDRESS,
            prefix_length=32 if point_to_point else 24,
            gateway=INSTANCE_GATEWAY,
            on_link_gateway=point_to_point,
        )
    finally:
        remove_links(lab)


def configure(lab: Lab, commands: Sequence[str]) -> None:
    """Run `ip` commands in the SUT namespace."""
    lab.host.run(["ip", "-n", lab.sut_netns, "-batch", "-"], stdin="\n".join(commands).encode())


def remove_links(lab: Lab) -> None:
    """Delete the links of our group at one go: the kernel then waits once, not for each, till nobody uses them.

    A veth whose other end died with its container has gone already; having none left to delete is no error.
    """
    group = ["group", str(GROUP)]
    done = lab.host.run(["ip", "-n", lab.sut_netns, "link", "delete", *group], check=False)
    if done.returncode != 0 and lab.host.run(["ip", "-n", lab.sut_netns, "link", "show", *group]).text:
        raise HostError(
            f"cannot delete the instance's links: {done.stderr.decode(errors='replace').strip()}",
            where=f"namespace {lab.sut_netns}",
            remedy="end what uses them; `virtoll clean` removes the whole namespace",
        )
