"""Each network mode with each kind of attachment: the users reach the instance, the instance reaches the origin."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import leaks
import standin
from virtoll.errors import Problem
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import GENERATOR_ADDRESS, ORIGIN_ADDRESS, SUT_ORIGIN_SIDE_ADDRESS, Lab
from virtoll.networks.base import Kind, common_kind, network_modes

PORT = 3128
_WIRED: tuple[Kind, ...] = ("shared", "veth", "tap")
PAIRS = [(name, kind) for name, mode in network_modes().items() for kind in mode.kinds if kind in _WIRED]


def test_the_modes_of_the_papers_are_there() -> None:
    assert list(network_modes()) == ["bridge", "host", "nat", "published", "routed", "usernet"]
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
def test_a_mode_is_tried_before_it_is_called_ready(host: LocalHost, name: str, kind: Kind) -> None:
    """This machine can make them all: the tests below do."""
    before = leaks.snapshot()["links"]
    assert network_modes()[name]().check(host, kind) == []
    assert leaks.snapshot()["links"] == before


def test_a_kernel_that_cannot_is_told_in_its_own_words() -> None:
    class NoBridge(LocalHost):
        def run(self, argv, **_):  # type: ignore[no-untyped-def]
            return Completed(tuple(argv), 1, b"", b"Error: Unknown device type.\n")

    (problem,) = network_modes()["bridge"]().check(NoBridge(), "veth")
    assert "'bridge' cannot be set up: Error: Unknown device type." in problem.what
    assert "modprobe" in problem.remedy


@pytest.mark.machine
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_traffic_flows_both_ways(lab: Lab, name: str, kind: Kind) -> None:
    before = _sut_state(lab)
    for _ in range(2):  # the second instance is reached as fast as the first: no stale neighbour
        with ExitStack() as stack:
            attachment = stack.enter_context(network_modes()[name]().attach(lab, kind, (PORT,)))
            inside = stack.enter_context(standin.instance(lab, attachment))
            stack.enter_context(standin.serving(lab, inside, "0.0.0.0", PORT))
            stack.enter_context(standin.serving(lab, lab.origin_netns, ORIGIN_ADDRESS, 80, body_bytes=1_000_000))
            seen, _, _ = standin.ask(lab, lab.generator_netns, attachment.endpoint_address, PORT)
            assert seen == GENERATOR_ADDRESS
            seen, length, _ = standin.ask(lab, inside, ORIGIN_ADDRESS, 80)
            assert length > 1_000_000
            shown = SUT_ORIGIN_SIDE_ADDRESS if name in ("nat", "host") else attachment.address
            assert seen == shown
        assert _sut_state(lab) == before


@pytest.mark.machine
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_an_instance_that_took_its_link_along_is_no_trouble(lab: Lab, name: str, kind: Kind) -> None:
    before = _sut_state(lab)
    with network_modes()[name]().attach(lab, kind, (PORT,)) as attachment:
        if attachment.device:
            lab.host.run(["ip", "-n", lab.sut_netns, "link", "delete", attachment.device])
    assert _sut_state(lab) == before


@pytest.mark.machine
def test_only_nat_tracks_connections(lab: Lab) -> None:
    tables = {}
    for name in ("bridge", "routed", "nat"):
        with network_modes()[name]().attach(lab, "veth", (PORT, 8080)):
            tables[name] = _in_sut(lab, "nft", "list", "ruleset")
    assert tables["bridge"] == tables["routed"] == ""
    assert "dnat to 198.18.3.10" in tables["nat"]
    assert "3128, 8080" in tables["nat"]


@pytest.mark.machine
@pytest.mark.parametrize("name", ["published", "usernet"])
def test_what_the_runtime_wires_itself_only_needs_to_know_where(lab: Lab, name: str) -> None:
    mode = network_modes()[name]
    with mode().attach(lab, mode.kinds[0], (PORT,)) as attachment:
        assert (attachment.netns, attachment.endpoint_address) == (lab.sut_netns, "198.18.1.1")
        assert attachment.ports == (PORT,)


def _in_sut(lab: Lab, *argv: str) -> str:
    return lab.host.run(argv, confinement=Confinement(netns=lab.sut_netns)).text


def _sut_state(lab: Lab) -> tuple[str, ...]:
    """Links, routes, addresses and rules of the SUT namespace."""
    commands = (("ip", "-br", "link"), ("ip", "route"), ("ip", "-br", "addr"), ("nft", "list", "ruleset"))
    return tuple(_in_sut(lab, *command) for command in commands)
