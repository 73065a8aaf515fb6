"""What a container's network namespace is told, whoever has made it."""

from __future__ import annotations

from pathlib import Path

import pytest

import standin
from virtoll.lab.base import Lab
from virtoll.networks.base import Kind, network_modes
from virtoll.offers import Port

# As a machine's own namespace has it by systemd's 50-default.conf, and so new ones (net.core.devconf_inherit_init_net).
_FILTERED = """
for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 2 >"$file"; done
"""
# As Docker 26 and later make one (moby, issue 47948): the device has no IPv6, the loopback its ::1.
_AS_DOCKER = f"""{_FILTERED}
ip link add eth0 type veth peer name eth1
echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6
ip -batch - <<END
link set lo up
link set eth0 up
link set eth1 up
END
"""
_HAS = {"routed": _FILTERED, "published": _AS_DOCKER, "pasta": _FILTERED}
_KINDS: dict[str, Kind] = {"routed": "veth", "published": "published", "pasta": "stack"}


@pytest.mark.machine
@pytest.mark.parametrize("mode", _HAS)
def test_a_containers_namespace_has_no_ipv6_and_no_filter(lab: Lab, mode: str) -> None:
    if not Path("/proc/sys/net/ipv6").exists():
        pytest.skip("this machine has no IPv6")
    made = network_modes()[mode]()
    if problems := made.check(lab.host, _KINDS[mode]):
        pytest.skip(str(problems[0]))
    with (
        made.attach(lab, _KINDS[mode], (Port(80),)) as attachment,
        standin.container(lab, attachment, _HAS[mode]) as (_, pid),
    ):
        there = ["nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-c"]
        for files, alike in (("ipv6/conf/*/disable_ipv6", "1"), ("ipv4/conf/*/rp_filter", "0")):
            told = lab.host.run([*there, f"cat /proc/sys/net/{files}"]).text.split()
            assert set(told) == {alike}, files
        assert lab.host.run([*there, "cat /proc/net/if_inet6"]).text == ""
