"""What the network modes with a link of their own share: names, addresses, and making and ending that link.

Everything is done by one `ip -batch` in the SUT's namespace, and all of it is removed with that namespace if a
crash leaves it behind; so it needs no line in the ledger. The link is made anew for each deployment: no neighbour
entry, counter or queue of an earlier instance survives.

Instances that live at the same time have a slot each (`Lab.slot`), from which every name and address follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_GATEWAY, Lab, endpoint_address, instance_address
from virtoll.lab.tables import FORGET
from virtoll.networks.base import Attachment, Kind, Stack
from virtoll.offers import Port

MOST_SINGLE_PORTS = 256  # Docker has a process and three rules for each: 100 take some seconds, 1000 minutes
_FIRST_GROUP = 118
SLIRP_GATEWAY, SLIRP_PREFIX_LENGTH = "10.0.2.2", 24  # of QEMU's slirp, and of slirp4netns(1)
TOWARDS_GENERATOR = "gen0"  # the SUT's device (virtoll.lab.wiring)


@dataclass(frozen=True)
class Link:
    """The link of the instance in ``slot``: names, addresses, and the `ip` commands that make it.

    A slot's MAC address is always the same: a new one behind a known address stays unreachable for seconds.
    """

    slot: int = 0

    @property
    def host_side(self) -> str:
        """The end that stays in the SUT namespace; a tap, or a hypervisor's vif, is this device itself."""
        return f"vt{2 * self.slot}"

    @property
    def instance_side(self) -> str:
        """The veth's other end, which becomes the instance's eth0."""
        return f"vt{2 * self.slot + 1}"

    @property
    def instance_mac(self) -> str:
        """The instance's own."""
        return f"02:76:74:{self.slot:02x}:03:10"

    @property
    def group(self) -> int:
        """Marks every link of this attachment, so that one command deletes them all."""
        return _FIRST_GROUP + self.slot

    @property
    def address(self) -> str:
        """The instance's own, where the mode gives it one."""
        return instance_address(self.slot)

    def device(self, kind: Kind) -> str:
        """What the platform is handed."""
        return self.host_side if kind in ("tap", "vif") else self.instance_side

    def commands(self, kind: Kind) -> list[str]:
        """`ip` commands that make the link, with the host's side up; a vif is there already when they run."""
        mac = f"02:76:74:{self.slot:02x}:03:01"
        if kind in ("tap", "vif"):
            make = [f"tuntap add dev {self.host_side} mode tap"] if kind == "tap" else []
            make += [f"link set {self.host_side} address {mac}"]
        else:
            peer = f"peer name {self.instance_side} address {self.instance_mac}"
            make = [f"link add {self.host_side} address {mac} type veth {peer}"]
        return [*make, f"link set {self.host_side} group {self.group} up"]


def quick_neighbours(device: str) -> str:
    """Ask again after 10 ms where ARP got no answer: by default a starting instance is found up to 1 s late.

    It is given up after 3 s, as by default: a virtual machine whose CPU is used up is silent for longer than three
    questions take.
    """
    return f"ntable change name arp_cache dev {device} retrans 10 ucast_probes 300 mcast_probes 300"


def tryable(kind: Kind) -> Kind:
    """What a mode is tried with: a vif is wired as a tap is, and comes with an instance alone."""
    return "tap" if kind == "vif" else kind


_MODULES = "veth tun bridge nft_chain_nat nft_masq nf_conntrack_netlink"


def tried(host: Host, mode: str, commands: Sequence[str], rules: str = "", modules: str = _MODULES) -> list[Problem]:
    """What keeps `ip` ``commands`` and nftables ``rules`` from working, tried in a namespace of their own.

    ``modules``: of the kernel, which may be what is missing.
    """
    lines = "\n".join(commands)
    script = f"ip -batch - <<'END' || exit 1\n{lines}\nEND\n"
    if rules:
        script += f"nft -f - <<'END' && {FORGET}\n{rules}END\n"
    done = host.run(["unshare", "--net", "sh", "-c", script], check=False)
    if done.returncode == 0:
        return []
    detail = done.stderr.decode(errors="replace").strip()
    return [
        Problem(
            f"network mode {mode!r} cannot be set up: {detail}",
            where=host.where,
            remedy=f"apt-get install iproute2 nftables conntrack; modprobe -a {modules}",
        )
    ]


@contextmanager
def linked(
    lab: Lab, mode: str, kind: Kind, ports: tuple[Port, ...], commands: Sequence[str], *, point_to_point: bool
) -> Iterator[Attachment]:
    """Run `ip` ``commands`` that make the instance's link; it is deleted at the end of the block. For a vif the
    platform runs them, when it is there.

    ``point_to_point``: the instance has a network of one address, and its gateway is outside it.
    """
    link = Link(lab.slot)
    try:
        if kind != "vif":
            configure(lab, commands)
        yield Attachment(
            mode,
            kind,
            lab.sut.netns,
            link.address,
            ports,
            device=link.device(kind),
            mac=link.instance_mac,
            address=link.address,
            prefix_length=32 if point_to_point else 24,
            gateway=INSTANCE_GATEWAY,
            on_link_gateway=point_to_point,
            wiring=tuple(commands) if kind == "vif" else (),
        )
    finally:
        _remove(lab, link)


def one_by_one(mode: str, ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """``ports``, where each of a range costs a process or a socket of its own. HostError where they are too many."""
    for problem in too_many(mode, ports):
        raise HostError(problem.what, where=problem.where, remedy=problem.remedy)
    return ports


def too_many(mode: str, ports: Sequence[Port]) -> list[Problem]:
    """What keeps these ports from being brought to an instance one by one; empty when nothing does."""
    count = sum(len(port.numbers) for port in ports)
    if count <= MOST_SINGLE_PORTS:
        return []
    what = f"mode {mode!r} brings ports to the instance one by one: {count} are more than {MOST_SINGLE_PORTS}"
    remedy = "ask for fewer, or choose a mode that has a rule for a whole range (nat), or needs none (routed)"
    return [Problem(what, ", ".join(map(str, ports)), remedy)]


@contextmanager
def shown(lab: Lab) -> Iterator[str]:
    """The SUT's address at which the generator reaches what the mode hides; beyond slot 0 it is made for the block."""
    address = endpoint_address(lab.slot)
    if lab.slot == 0:
        yield address
        return
    configure(lab, [f"addr replace {address}/32 dev {TOWARDS_GENERATOR}"])
    try:
        yield address
    finally:
        configure(lab, [f"addr del {address}/32 dev {TOWARDS_GENERATOR}"])


@contextmanager
def forwarded(
    lab: Lab,
    mode: str,
    kind: Kind,
    ports: tuple[Port, ...],
    inside: str,
    *,
    stack: Callable[[str], Stack] | None = None,
) -> Iterator[Attachment]:
    """What a stack in user space brings to the instance from an address of the SUT's: nothing is to be made but that
    address, where it is a further instance's. ``inside``: the instance's own; ``stack``: the program, if it is not the
    monitor's, for the SUT's address.

    Inside are slirp's default addresses, the same in every instance: each has a network of its own.
    """
    with shown(lab) as address:
        yield Attachment(
            mode,
            kind,
            lab.sut.netns,
            address,
            one_by_one(mode, ports),
            mac=Link(lab.slot).instance_mac,
            address=inside,
            prefix_length=SLIRP_PREFIX_LENGTH,
            gateway=SLIRP_GATEWAY,
            stack=None if stack is None else stack(address),
        )


def configure(lab: Lab, commands: Sequence[str]) -> None:
    """Run `ip` commands in the SUT namespace."""
    lab.host.run(["ip", "-n", lab.sut.netns, "-batch", "-"], stdin="\n".join(commands).encode())


def _remove(lab: Lab, link: Link) -> None:
    """Delete the links of the slot's group at one go: the kernel then waits once, not for each, till nobody uses them.

    A veth whose other end died with its container has gone already; having none left to delete is no error.
    """
    group = ["group", str(link.group)]
    done = lab.host.run(["ip", "-n", lab.sut.netns, "link", "delete", *group], check=False)
    if done.returncode != 0 and lab.host.run(["ip", "-n", lab.sut.netns, "link", "show", *group]).text:
        raise HostError(
            f"cannot delete the instance's links: {done.stderr.decode(errors='replace').strip()}",
            where=f"namespace {lab.sut.netns}",
            remedy="end what uses them; `virtoll clean` removes the whole namespace",
        )
