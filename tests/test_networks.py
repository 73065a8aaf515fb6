"""Each network mode with each kind of attachment: the users reach the instance, the instance reaches the origin."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

import contract
import datagrams
import standin
from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import (
    GENERATOR_ADDRESS,
    INSTANCE_GATEWAY,
    ORIGIN_ADDRESS,
    SLOTS,
    SUT_ORIGIN_SIDE_ADDRESS,
    Lab,
    endpoint_address,
)
from virtoll.networks.base import Attachment, Kind, common_kind, network_modes
from virtoll.networks.nat import rules
from virtoll.networks.wires import Link
from virtoll.offers import Port
from virtoll.platforms.docker import Docker
from virtoll.trial.deployer import _attached

PORT = 3128
PORTS = (Port(PORT), Port(PORT, "udp"), Port(10_000, "udp", 10_003))
ONE_BY_ONE = ("pasta", "published", "slirp4netns", "usernet")  # each port costs
_WIRED: tuple[Kind, ...] = ("shared", "veth", "tap", "stack")
PAIRS = [(name, kind) for name, mode in network_modes().items() for kind in mode.kinds if kind in _WIRED]


def test_the_modes_of_the_papers_are_there() -> None:
    there = [
        "bridge",
        "direct",
        "host",
        "ipvlan",
        "macvlan",
        "nat",
        "pasta",
        "published",
        "routed",
        "slirp4netns",
        "usernet",
        "venet",
    ]
    assert list(network_modes()) == there
    assert all(mode.summary for mode in network_modes().values())


def test_impossible_pairs_are_refused_with_the_reason() -> None:
    modes = network_modes()
    assert common_kind("kvm", ("tap", "user"), modes["bridge"]) == "tap"
    assert common_kind("docker", ("veth", "published", "shared"), modes["bridge"]) == "veth"
    refusal = common_kind("kvm", ("tap", "user"), modes["host"])
    assert isinstance(refusal, Problem)
    assert "kvm cannot be attached in mode 'host'" in refusal.what


@pytest.mark.machine
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_mode_is_tried_before_it_is_called_ready(lab: Lab, name: str, kind: Kind) -> None:
    """Nothing stays where it is tried, here the SUT's namespace."""
    contract.skip_unless_there(name, kind)

    class There(LocalHost):
        def run(self, argv, **more):  # type: ignore[no-untyped-def]
            return super().run(argv, **{**more, "confinement": Confinement(netns=lab.sut.netns)})

    before = _sut_state(lab)
    assert network_modes()[name]().check(There(), kind) == []
    assert _sut_state(lab) == before


def test_a_kernel_that_cannot_is_told_in_its_own_words() -> None:
    class NoBridge(LocalHost):
        def run(self, argv, **_):  # type: ignore[no-untyped-def]
            return Completed(tuple(argv), 1, b"", b"Error: Unknown device type.\n")

    (problem,) = network_modes()["bridge"]().check(NoBridge(), "veth")
    assert "'bridge' cannot be set up: Error: Unknown device type." in problem.what
    assert "modprobe -a veth tun bridge" in problem.remedy
    for name in ("macvlan", "ipvlan"):
        (problem,) = network_modes()[name]().check(NoBridge(), "veth")
        assert problem.remedy.endswith(f"modprobe -a veth {name}")


@pytest.mark.machine
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_traffic_flows_both_ways(lab: Lab, name: str, kind: Kind) -> None:
    contract.skip_unless_there(name, kind)
    before = _sut_state(lab)
    for _ in range(2):  # the second instance is reached as fast as the first: no stale neighbour
        with ExitStack() as stack:
            attachment = stack.enter_context(network_modes()[name]().attach(lab, kind, PORTS))
            inside = stack.enter_context(standin.instance(lab, attachment))
            stack.enter_context(standin.serving(lab, inside, "0.0.0.0", PORT))
            stack.enter_context(standin.serving(lab, lab.origin.netns, ORIGIN_ADDRESS, 80, body_bytes=1_000_000))
            seen, _, _ = standin.ask(lab, lab.generator.netns, attachment.endpoint_address, PORT)
            assert seen == GENERATOR_ADDRESS
            stack.enter_context(standin.answering(lab, inside, PORTS))
            assert datagrams.exchanged(lab, attachment.endpoint_address, PORTS) == 5 * [GENERATOR_ADDRESS]
            seen, length, _ = standin.ask(lab, inside, ORIGIN_ADDRESS, 80)
            assert length > 1_000_000
            shown = SUT_ORIGIN_SIDE_ADDRESS if kind == "stack" or name in ("nat", "host") else attachment.address
            assert seen == shown
        assert _sut_state(lab) == before


@pytest.mark.machine
@pytest.mark.parametrize("name", ["routed", "bridge"])
@pytest.mark.parametrize("kind", ["veth", "tap"])
def test_an_instance_that_is_silent_for_a_while_is_not_given_up(lab: Lab, name: str, kind: Kind) -> None:
    """A guest that was throttled by its quota answered no ARP for 30 ms: "no route to host"."""
    with network_modes()[name]().attach(lab, kind, PORTS) as attachment:
        asked = ["ip", "-n", lab.sut.netns, "-json", "route", "get", attachment.address]
        (route,) = json.loads(lab.host.run(asked).stdout)
        table = lab.host.run(
            ["ip", "-n", lab.sut.netns, "ntable", "show", "name", "arp_cache", "dev", route["dev"]]
        ).text
    told = dict(re.findall(r"(\w+) (\d+)", table))
    for probes in ("ucast_probes", "mcast_probes"):
        assert int(told[probes]) * int(told["retrans"]) >= 3000
    assert int(told["retrans"]) < 20


@pytest.mark.machine
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_an_instance_that_took_its_link_along_is_no_trouble(lab: Lab, name: str, kind: Kind) -> None:
    contract.skip_unless_there(name, kind)
    before = _sut_state(lab)
    with network_modes()[name]().attach(lab, kind, PORTS) as attachment:
        if attachment.device:
            lab.host.run(["ip", "-n", lab.sut.netns, "link", "delete", attachment.device])
    assert _sut_state(lab) == before


def test_every_slot_has_names_and_addresses_of_its_own() -> None:
    links = [Link(slot) for slot in range(SLOTS)]
    for told_apart in (
        [link.address for link in links],
        [endpoint_address(link.slot) for link in links],
        [link.instance_mac for link in links],
        [link.group for link in links],
        [device for link in links for device in (link.host_side, link.instance_side)],
    ):
        assert len(set(told_apart)) == len(told_apart)
    addresses = {ip_address(link.address) for link in links} | {ip_address(endpoint_address(n)) for n in range(SLOTS)}
    assert all(address in ip_network("198.18.0.0/15") for address in addresses)
    assert not addresses & {ip_address(each) for each in (INSTANCE_GATEWAY, "198.18.3.0", "198.18.3.255")}
    first = links[0]
    assert (first.address, endpoint_address(0), first.host_side, first.instance_side, first.group) == (
        "198.18.3.10", "198.18.1.1", "vt0", "vt1", 118,
    )  # fmt: skip
    assert SLOTS >= 250


@pytest.mark.machine
def test_there_are_no_more_slots_than_addresses(lab: Lab) -> None:
    assert replace(lab, slot=SLOTS - 1).slot == SLOTS - 1
    with pytest.raises(HostError, match=f"no room for instance number {SLOTS}"):
        replace(lab, slot=SLOTS)


@pytest.mark.machine
@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair[1] != "shared"])
def test_instances_live_side_by_side(lab: Lab, name: str, kind: Kind) -> None:
    """Each answers at its own address, still does when the first has gone, and nothing is left of any."""
    contract.skip_unless_there(name, kind)
    before = _sut_state(lab)
    with ExitStack() as others:
        with ExitStack() as first:
            attachments = [_served(lab, first if slot == 0 else others, name, kind, slot) for slot in (0, 1, SLOTS - 1)]
            assert len({attachment.endpoint_address for attachment in attachments}) == 3
            assert [_length_from(lab, attachment) for attachment in attachments] == [0, 1000, 2000]
        assert [_length_from(lab, attachment) for attachment in attachments[1:]] == [1000, 2000]
    assert _sut_state(lab) == before


@pytest.mark.machine
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_further_instance_behind_the_runtimes_wiring_has_an_address_on_the_sut(lab: Lab, name: str) -> None:
    before = _sut_state(lab)
    mode = network_modes()[name]
    with mode().attach(replace(lab, slot=1), mode.kinds[0], PORTS) as attachment:
        assert attachment.endpoint_address == "198.19.1.1"
        with standin.serving(lab, lab.sut.netns, attachment.endpoint_address, PORT):
            seen, _, _ = standin.ask(lab, lab.generator.netns, attachment.endpoint_address, PORT)
            assert seen == GENERATOR_ADDRESS
    assert _sut_state(lab) == before


@pytest.mark.machine
def test_instances_that_share_the_suts_stack_share_its_address(lab: Lab) -> None:
    mode, further = network_modes()["host"], replace(lab, slot=1)
    with mode().attach(further, "shared", PORTS) as attachment:
        assert attachment.netns == lab.sut.netns
        assert attachment.endpoint_address == lab.sut.address


@pytest.mark.machine
def test_only_nat_tracks_connections(lab: Lab) -> None:
    tables = {}
    for name in ("bridge", "routed", "nat"):
        with network_modes()[name]().attach(lab, "veth", (*PORTS, Port(8080))):
            tables[name] = _in_sut(lab, "nft", "list", "ruleset")
    assert tables["bridge"] == tables["routed"] == ""
    assert "ip daddr 198.18.1.1 tcp dport { 3128, 8080 } dnat to 198.18.3.10" in tables["nat"]
    assert "ip daddr 198.18.1.1 udp dport { 3128, 10000-10003 } dnat to 198.18.3.10" in tables["nat"]


def test_the_rules_of_nat() -> None:
    def prerouting(*ports: Port) -> list[str]:
        lines = rules(ports, Link(1)).splitlines()
        return [line.strip() for line in lines[3 : lines.index("    }")]]

    to, back = "ip daddr 198.19.1.1", "dnat to 198.18.3.11"
    assert prerouting() == []
    assert prerouting(Port(80)) == [f"{to} tcp dport {{ 80 }} {back}"]
    assert prerouting(Port(53, "udp", 60), Port(443)) == [
        f"{to} tcp dport {{ 443 }} {back}",
        f"{to} udp dport {{ 53-60 }} {back}",
    ]
    assert (
        rules((Port(80), Port(81), Port(53, "udp"), Port(10_000, "udp", 10_100)), Link())
        == """\
table ip virtoll {
    chain prerouting {
        type nat hook prerouting priority dstnat
        ip daddr 198.18.1.1 tcp dport { 80, 81 } dnat to 198.18.3.10
        ip daddr 198.18.1.1 udp dport { 53, 10000-10100 } dnat to 198.18.3.10
    }
    chain postrouting {
        type nat hook postrouting priority srcnat
        oifname "org0" ip saddr 198.18.3.10 masquerade
    }
}
"""
    )


@pytest.mark.machine
def test_connections_are_tracked_until_the_last_instance_that_needs_it_has_gone(lab: Lab) -> None:
    """UDP knows no end of a connection: its entries would be on the way of the next arm for up to two minutes."""

    def tracked(address: str) -> list[str]:
        return [line for line in _tracked(lab).splitlines() if "udp" in line and f"dst={address}" in line]

    with ExitStack() as stay:
        with ExitStack() as go:
            first, second = (_answered(lab, stack, slot) for stack, slot in ((go, 0), (stay, 1)))
            assert len(tracked(first.endpoint_address)) == len(tracked(second.endpoint_address)) == 5
        assert len(tracked(second.endpoint_address)) == 5, "those of the one that stays are not touched"
        seen = datagrams.exchanged(lab, second.endpoint_address, PORTS)
        assert seen == 5 * [GENERATOR_ADDRESS]
    assert _tracked(lab) == ""


@pytest.mark.machine
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_the_runtime_wires_itself_only_needs_to_know_where(lab: Lab, name: str) -> None:
    mode = network_modes()[name]
    with mode().attach(lab, mode.kinds[0], PORTS) as attachment:
        assert (attachment.netns, attachment.endpoint_address) == (lab.sut.netns, "198.18.1.1")
        assert attachment.ports == PORTS


@pytest.mark.machine
@pytest.mark.parametrize("name", network_modes())
def test_a_wide_range_is_refused_where_each_port_costs(lab: Lab, name: str) -> None:
    mode, before = network_modes()[name], _sut_state(lab)
    contract.skip_unless_there(name, mode.kinds[0])
    with ExitStack() as stack:
        if name in ONE_BY_ONE:
            stack.enter_context(pytest.raises(HostError, match=f"'{name}' .* one by one: 257 are more than 256"))
        with mode().attach(lab, mode.kinds[0], (Port(80), Port(10_000, "udp", 10_255))):
            assert name not in ONE_BY_ONE
    assert _sut_state(lab) == before


@pytest.mark.machine
def test_ports_that_overlap_are_asked_for_once(lab: Lab) -> None:
    """nftables and QEMU refuse what is named twice."""
    asked = (Port(5000, "udp", 5100), Port(5050, "udp"), Port(5090, "udp", 5110))
    with _attached(lab, Docker(), "nat", asked) as attachment:
        assert attachment.ports == (Port(5000, "udp", 5110),)
        assert "udp dport 5000-5110 dnat to 198.18.3.10" in _in_sut(lab, "nft", "list", "ruleset")


def _answered(lab: Lab, stack: ExitStack, slot: int) -> Attachment:
    """An attachment in mode nat in ``slot``, whose UDP ports have been asked and have answered."""
    there = replace(lab, slot=slot)
    attachment = stack.enter_context(network_modes()["nat"]().attach(there, "veth", PORTS))
    datagrams.remembered(lab)
    inside = stack.enter_context(standin.instance(there, attachment))
    stack.enter_context(standin.answering(lab, inside, PORTS))
    assert datagrams.exchanged(lab, attachment.endpoint_address, PORTS) == 5 * [GENERATOR_ADDRESS]
    return attachment


def _tracked(lab: Lab) -> str:
    return _in_sut(lab, "conntrack", "-L")


def _served(lab: Lab, stack: ExitStack, name: str, kind: Kind, slot: int) -> Attachment:
    """An attachment in ``slot``, with a server behind it whose answer has a length of its own."""
    there = replace(lab, slot=slot)
    attachment = stack.enter_context(network_modes()[name]().attach(there, kind, PORTS))
    inside = stack.enter_context(standin.instance(there, attachment))
    stack.enter_context(standin.serving(lab, inside, "0.0.0.0", PORT, body_bytes=1000 * min(slot, 2)))
    return attachment


def _length_from(lab: Lab, attachment: Attachment) -> int:
    """How many bytes the server at the attachment's address answers with, besides the address it saw."""
    seen, length, _ = standin.ask(lab, lab.generator.netns, attachment.endpoint_address, PORT)
    return length - len(seen) - 1


def _in_sut(lab: Lab, *argv: str) -> str:
    return lab.host.run(argv, confinement=Confinement(netns=lab.sut.netns)).text


def _sut_state(lab: Lab) -> tuple[str, ...]:
    """Links, routes, addresses, rules and tracked connections of the SUT namespace."""
    commands = (("ip", "-br", "link"), ("ip", "route"), ("ip", "-br", "addr"), ("nft", "list", "ruleset"))
    return (*(_in_sut(lab, *command) for command in commands), _tracked(lab))
