"""Platform xen-pv on a real Xen, on any machine: QEMU emulates a computer with AMD-V, in which Xen runs with a dom0.

    .venv/bin/pytest -m slow tests/nested/test_xen.py

takes four minutes and more. A domain in an emulated computer shows that the driver works; it says nothing about what
Xen costs. PVH booted here, was of its type and answered; on a busy machine its bulk did not pass in time, so it is not
asked yet. HVM is not tried: its guests need a QEMU in dom0.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

import contract
from nested.computer import Computer, python, run_in
from nested.xen_files import xen_files
from virtoll.hosts.local import LocalHost
from virtoll.images import disk, kernel

LIMIT_S = 1200.0
DOM0_MIB = 1800
MODULES = ("xenfs", "xen-evtchn", "xen-gntdev", "xen-gntalloc", "xen-privcmd", "xen-blkback", "xen-netback")
_START = "mount -t xenfs xenfs /proc/xen; /etc/init.d/xen start; exec "


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 240)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
@pytest.mark.parametrize("platform", ["xen-pv"])
def test_xen_keeps_the_contract_in_an_emulated_dom0(host: LocalHost, tmp_path: Path, platform: str) -> None:
    image = contract.image()
    disk.ext4(host, image, contract.LIMITS.disk_bytes, print)  # made here: there, it would take minutes
    kernel.guest_kernel(host, print, None, kernel.XEN)
    xen = xen_files(host)
    computer = Computer(
        cpus=1,
        memory_mib=DOM0_MIB + 900,
        modules=(*MODULES, "loop", "tun", "bridge", "nft_chain_nat", "nft_masq", "nf_conntrack_netlink"),
        in_memory=("/tmp", "/var/log/xen", "/var/lib/xen"),
        added=xen.tree,
    )
    inside = python("xen_inside.py", platform, image.digest, str(image.directory))
    command = ["sh", "-c", _START + shlex.join(inside)]
    out = run_in(computer, host, tmp_path, command, limit_s=LIMIT_S, hypervisor=xen.hypervisor(DOM0_MIB))
    lines = [json.loads(line) for line in (out / "log").read_text().splitlines() if line.startswith("{")]
    print(*lines, sep="\n")
    told = {line["what"]: line["value"] for line in lines}
    assert told["ended"] == "well"
    assert told["check"] == []
    assert told["instance"]["guest_type"] == platform.removeprefix("xen-").upper()
    assert told["agent"]["clocksource"] in ("xen", "tsc")
    assert len(told["domains"]) == 1, "dom0 alone"
