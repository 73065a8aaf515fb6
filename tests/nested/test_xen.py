"""Xen's platforms on a real Xen, on any machine: QEMU emulates a computer with AMD-V, in which Xen runs with a dom0.

    .venv/bin/pytest -m slow tests/nested/test_xen.py

takes a quarter of an hour and more. A domain in an emulated computer shows that the driver works; it says nothing about
what Xen costs. On a busy machine PVH's bulk did not pass in time.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

import contract
from nested.computer import Computer, python, run_in
from nested.xen_files import Xen, xen_files
from virtoll.hosts.local import LocalHost
from virtoll.images import disk, kernel, rootfs
from virtoll.images.base import Image
from virtoll.study.limits import Limits

LIMIT_S, STUDY_LIMIT_S = 1200.0, 3600.0
DOM0_MIB = 1800
MODULES = ("xenfs", "xen-evtchn", "xen-gntdev", "xen-gntalloc", "xen-privcmd", "xen-blkback", "xen-netback")
_START = "mount -t xenfs xenfs /proc/xen; /etc/init.d/xen start; "
STUDY = """
name = "dom0"
title = "A small study on an emulated Xen host"
question = "Does it run, and is there a report?"
blocks = 2

[limits]
vcpus = 1
memory = "256 MiB"
pids = 64

[[probes]]
name = "round-trip"
time = "500 ms"

[[arms]]
platform = "native"
[[arms]]
platform = "xen-pv"
[[arms]]
platform = "xen-pvh"
"""
_RUN = """
echo "$STUDY" >/run/study.toml
$PYTHON -c 'import nested.patience; from virtoll.__main__ import main; main()' run /run/study.toml --out /run/dom0
echo "virtoll run: $?"
cp -r /run/dom0 /run/out/run
xl list
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 240)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
@pytest.mark.parametrize("platform", ["xen-pv", "xen-pvh", "xen-hvm"])
def test_xen_keeps_the_contract_in_an_emulated_dom0(host: LocalHost, tmp_path: Path, platform: str) -> None:
    image = contract.image()
    disk.ext4(host, image, contract.LIMITS.disk_bytes, print)  # made here: there, it would take minutes
    kernel.guest_kernel(host, print, None, kernel.XEN)
    xen = xen_files(host)
    inside = python("xen_inside.py", platform, image.digest, str(image.directory))
    command = ["sh", "-c", _START + "exec " + shlex.join(inside)]
    out = run_in(_dom0(xen, 1), host, tmp_path, command, limit_s=LIMIT_S, hypervisor=xen.hypervisor(DOM0_MIB))
    lines = [json.loads(line) for line in (out / "log").read_text().splitlines() if line.startswith("{")]
    print(*lines, sep="\n")
    told = {line["what"]: line["value"] for line in lines}
    assert told["ended"] == "well"
    assert told["check"] == []
    assert told["instance"]["guest_type"] == platform.removeprefix("xen-").upper()
    assert told["agent"]["clocksource"] in ("xen", "tsc")
    assert len(told["domains"]) == 1, "dom0 alone"


def _dom0(xen: Xen, cpus: int) -> Computer:
    modules = (*MODULES, "loop", "tun", "bridge", "nft_chain_nat", "nft_masq", "nf_conntrack_netlink")
    in_memory = ("/tmp", "/var/log/xen", "/var/lib/xen")
    return Computer(cpus=cpus, memory_mib=DOM0_MIB + 900, modules=modules, in_memory=in_memory, added=xen.tree)


@pytest.mark.slow
@pytest.mark.timeout(STUDY_LIMIT_S + 600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
def test_a_study_of_native_and_domains_has_its_report(host: LocalHost, tmp_path: Path) -> None:
    disk.ext4(host, _image(host), Limits().disk_bytes, print)  # made here: there, it would take minutes
    kernel.guest_kernel(host, print, None, kernel.XEN)
    xen = xen_files(host)
    out = run_in(
        _dom0(xen, 2),
        host,
        tmp_path,
        ["sh", "-c", _START + _RUN],
        limit_s=STUDY_LIMIT_S,
        environment={"PYTHON": sys.executable, "STUDY": STUDY},
        hypervisor=xen.hypervisor(DOM0_MIB),
    )
    print((out / "log").read_text(errors="replace"))
    records = [json.loads(line) for line in (out / "run/trials.jsonl").read_text().splitlines()]
    valid = [record for record in records if record["status"] == "valid"]
    assert {record["trial"]["arm"]["platform"] for record in valid} == {"native", "xen-pv", "xen-pvh"}
    # libxl gives a script of Xen's 40 s, and no more on a busy machine (seen, beside other tests).
    assert all("killing execution" in record["reason"] for record in records if record not in valid)
    assert "processor is emulated" in (out / "run/report/index.html").read_text()
    assert len((out / "log").read_text().split("Name ")[-1].splitlines()) == 2, "a heading, and dom0"


def _image(host: LocalHost) -> Image:
    return rootfs.build(host, "dom0", (), print)
