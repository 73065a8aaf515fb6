"""Ports of both protocols, and ranges of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.networks.base import Attachment, Kind
from virtoll.offers import PROTOCOLS, Port, Protocol, merged


def port(protocol: Protocol, number: int, more: int) -> Port:
    return Port(number, protocol, number + more if more else 0)


PORTS = st.builds(port, st.sampled_from(PROTOCOLS), st.integers(1, 40), st.integers(0, 8))


def numbers(ports: Iterable[Port]) -> list[tuple[str, int]]:
    return [(port.protocol, number) for port in ports for number in port.numbers]


@given(st.lists(PORTS))
def test_merged_ports_are_the_same_and_none_twice(ports: list[Port]) -> None:
    once = merged(ports)
    assert numbers(once) == sorted(set(numbers(ports)))
    assert merged(once) == once
    assert all(any(port in range_ for range_ in once) for port in ports)


def test_merged_ports_are_told_as_they_were_asked_for() -> None:
    asked = [Port(80), Port(80, "udp"), Port(81), Port(10, "udp", 20), Port(15, "udp", 25), Port(12, "udp"), Port(80)]
    assert [str(port) for port in merged(asked)] == ["80/tcp", "81/tcp", "10-25/udp", "80/udp"]


@pytest.mark.parametrize(
    ("kind", "own_address", "reached"),
    [
        ("shared", "", "8080/tcp 8080/udp 5000/udp 5000-5010/udp 5000-5011/udp"),
        ("veth", "198.18.1.1", "8080/tcp 8080/udp 5000/udp 5000-5010/udp 5000-5011/udp"),
        ("veth", "198.18.3.10", "8080/tcp 5000/udp 5000-5010/udp"),
        ("published", "", "8080/tcp 5000/udp 5000-5010/udp"),
        ("user", "10.0.2.15", "8080/tcp 5000/udp 5000-5010/udp"),
        ("stack", "10.0.2.100", "8080/tcp 5000/udp 5000-5010/udp"),
    ],
)
def test_an_address_that_is_not_the_instances_own_has_the_ports_that_were_asked_for(
    kind: Kind, own_address: str, reached: str
) -> None:
    asked = (Port(8080), Port(5000, "udp", 5010))
    attachment = Attachment("mode", kind, "netns", "198.18.1.1", asked, address=own_address)
    tried = [Port.parse(text) for text in ["8080/tcp", "8080/udp", "5000/udp", "5000-5010/udp", "5000-5011/udp"]]
    assert [str(port) for port in tried if attachment.reaches(port)] == reached.split()
