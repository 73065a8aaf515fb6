"""Slices: pairs of instances on two nodes, each pair with an emulated channel of its own between them.

    node A: SUT netns                               node B: generator netns
    near 1 ---- vt0  \\        tbf        tbf      /  vt2 ---- far 1
                        chan0 ------------- chan0
                        chan1 ------------- chan1
    near 2 ---- vt4  /        tbf        tbf      \\  vt6 ---- far 2

A channel is a veth pair with a token bucket at each end: so much in each direction, whatever the other does. That a
radio channel is half-duplex and shared by all who are on its frequency is *not* modelled.

Only what near and far of one slice send each other passes their channel. Routed instances are told apart by rules
(`ip rule`): a packet from a near instance to the far one of its slice, or back, looks its route up in a table of the
channels. The nodes' own tables know no far instance, and a rule of node B refuses the near ones to every far instance
of another slice. Instances that share their node's network stack (native) have their addresses on the channels
themselves. Neighbours are permanent, so that no channel carries ARP.

Node B forwards and steers what it receives to its instances' CPUs, as node A does (`virtoll.lab.wiring`), for as long
as there are slices. Like all links of a lab, channels live in its namespaces, which are in the ledger, and go with
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.interrupts import held_off
from virtoll.lab import shaping
from virtoll.lab.base import INSTANCE_NETWORK, Lab, instance_address
from virtoll.lab.shaping import LinkShape, qdisc_commands
from virtoll.lab.wiring import ip_batch, receive_on
from virtoll.units import within

_MOST = 100
_GROUP = 100  # of the channels' links; those of the network modes begin at 118 (virtoll.networks.wires)
_TABLE = 118  # of the routes through the channels
_PROTOCOL = 118  # marks our rules, so that one command deletes them
_RULE, _REFUSAL = 100, 200  # priorities: both before the node's own table, at 32766


@dataclass(frozen=True)
class Slices:
    """``count`` slices (0: none), each with a channel of ``rate`` in each direction (none: as fast as a veth)."""

    count: int = within(0, least=0, most=_MOST)
    rate_bit_per_s: int | None = within(36_000_000, least=1)


@dataclass(frozen=True)
class Channel:
    """The channel of slice ``index`` (from 0), and the slots and addresses of the two instances at its ends."""

    index: int
    rate_bit_per_s: int | None

    @property
    def near_slot(self) -> int:
        """Of the instance on node A. Slot 0 is the deployment's own instance: it is slice 0's."""
        return 2 * self.index

    @property
    def far_slot(self) -> int:
        """Of the instance on node B."""
        return 2 * self.index + 1

    @property
    def near_address(self) -> str:
        """Where far reaches near."""
        return instance_address(self.near_slot)

    @property
    def far_address(self) -> str:
        """Where near reaches far."""
        return instance_address(self.far_slot)

    @property
    def device(self) -> str:
        """The link's name, the same on both nodes."""
        return f"chan{self.index}"

    def shaping(self) -> list[str]:
        """`tc` commands, the same for both ends."""
        return qdisc_commands(LinkShape(rate_bit_per_s=self.rate_bit_per_s), self.device)

    def mac(self, end: int) -> str:
        """Of the end on node A (1) or B (2)."""
        return f"02:76:74:{self.index:02x}:04:{end:02x}"


def channels(slices: Slices) -> list[Channel]:
    """The channels of the slices, in their order."""
    return [Channel(index, slices.rate_bit_per_s) for index in range(slices.count)]


def first_free_slot(slices: Slices) -> int:
    """From here on no instance of a slice has a slot; slot 0 has an instance in any case."""
    return max(1, 2 * slices.count)


def check(host: Host, slices: Slices) -> list[Problem]:
    """Whether this kernel can shape the channels."""
    if slices.count == 0:
        return []
    return shaping.check(host, LinkShape(rate_bit_per_s=slices.rate_bit_per_s))


@contextmanager
def channelled(lab: Lab, wanted: Sequence[Channel], *, shared: bool) -> Iterator[None]:
    """The channels for the length of the block, from the slots' addresses on node A to those on node B.

    ``shared``: the instances use their node's network stack, so the node itself gets their addresses.
    """
    try:
        lab.host.run(["sh", "-e", "-c", _script(lab, wanted, shared=shared)])
        yield
    finally:
        with held_off():
            # What was never made cannot be deleted; the other half of each link goes with this one.
            lab.host.run(["sh", "-c", _removal(lab)], check=False)


@contextmanager
def reshaped(lab: Lab, channel: Channel, rate_bit_per_s: int) -> Iterator[None]:
    """The channel at another rate, in each direction, for the length of the block; then at its own again."""
    other = replace(channel, rate_bit_per_s=rate_bit_per_s)
    try:
        _shape_again(lab, channel, other)
        yield
    finally:
        with held_off():
            _shape_again(lab, other, channel)


def _shape_again(lab: Lab, now: Channel, then: Channel) -> None:
    """From the one rate to the other. A queue is made anew, its bucket full; it is empty between trials."""
    away = [] if now.rate_bit_per_s is None else [f"qdisc del dev {now.device} root"]
    lines = [*away, *then.shaping()]
    lab.host.run(
        ["sh", "-e", "-c", "\n".join(_tc_batch(netns, lines) for netns in (lab.sut.netns, lab.generator.netns))]
    )


def _script(lab: Lab, wanted: Sequence[Channel], *, shared: bool) -> str:
    near, far = lab.sut.netns, lab.generator.netns
    devices = [channel.device for channel in wanted]
    shaping_lines = [line for channel in wanted for line in channel.shaping()]
    pairs = [(channel, channel.near_address, channel.far_address) for channel in wanted]
    return "\n".join(
        [
            _set_forwarding(far, on=True),
            ip_batch(near, *(_link(channel, far) for channel in wanted)),
            ip_batch(near, *(line for c, here, there in pairs for line in _end(c, here, there, c.mac(2), shared))),
            ip_batch(
                far,
                *(line for c, there, here in pairs for line in _end(c, here, there, c.mac(1), shared)),
                *(
                    f"rule add pref {_REFUSAL} from {c.far_address} to {INSTANCE_NETWORK} unreachable "
                    f"protocol {_PROTOCOL}"
                    for c in ([] if shared else wanted)
                ),
            ),
            *(_tc_batch(netns, shaping_lines) for netns in (near, far) if shaping_lines),
            receive_on(lab.sut.cpus, near, *devices),
            receive_on(lab.generator.cpus, far, *devices),
        ]
    )


def _link(channel: Channel, far_netns: str) -> str:
    peer = f"peer name {channel.device} address {channel.mac(2)} netns {far_netns}"
    return f"link add {channel.device} group {_GROUP} address {channel.mac(1)} type veth {peer}"


def _end(channel: Channel, here: str, there: str, mac_there: str, shared: bool) -> tuple[str, ...]:
    """`ip` commands for one end of a channel, between address ``here`` on this node and ``there`` on the other."""
    device = channel.device
    up = (f"link set {device} up", f"neigh add {there} lladdr {mac_there} dev {device} nud permanent")
    if shared:
        return (*up, f"addr add {here} peer {there}/32 dev {device}")
    return (
        *up,
        f"route add {there}/32 dev {device} table {_TABLE}",
        f"rule add pref {_RULE} from {here} to {there} lookup {_TABLE} protocol {_PROTOCOL}",
    )


def _removal(lab: Lab) -> str:
    return "\n".join(
        [
            f"ip -n {lab.sut.netns} link delete group {_GROUP}",
            f"ip -n {lab.sut.netns} rule flush protocol {_PROTOCOL}",
            f"ip -n {lab.generator.netns} rule flush protocol {_PROTOCOL}",
            _set_forwarding(lab.generator.netns, on=False),
        ]
    )


def _set_forwarding(netns: str, *, on: bool) -> str:
    return f"nsenter --net=/run/netns/{netns} sh -c 'echo {int(on)} >/proc/sys/net/ipv4/ip_forward'"


def _tc_batch(netns: str, lines: Sequence[str]) -> str:
    batch = "\n".join(lines)
    return f"tc -n {netns} -batch - <<'END'\n{batch}\nEND"
