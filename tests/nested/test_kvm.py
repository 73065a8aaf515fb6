"""The kvm platform on a real KVM, on any machine: QEMU emulates a computer with AMD-V and Linux's kvm-amd runs in it.

    .venv/bin/pytest -m slow tests/nested/test_kvm.py

takes one to three minutes on one CPU, so it is no part of `pytest`. A guest in an emulated computer shows that the
driver works; it says nothing about what KVM costs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import contract
from nested.computer import Computer, python, run_in
from virtoll.hosts.local import LocalHost
from virtoll.images import disk, kernel
from virtoll.platforms.qemu_tcg import QemuTcg

LIMIT_S = 480.0
# One CPU: with two, one of the two guests tried never printed a line.
COMPUTER = Computer(cpus=1, modules=("kvm_amd", "tun"), in_memory=())


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 240)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
def test_kvm_keeps_the_contract_in_an_emulated_computer(host: LocalHost, tmp_path: Path) -> None:
    contract.skip_unless_ready(QemuTcg())
    image = contract.image()
    disk.ext4(host, image, contract.LIMITS.disk_bytes, print)  # made here: there, it would take minutes
    kernel.guest_kernel(host, print)
    command = python("kvm_inside.py", image.digest, str(image.directory))
    out = run_in(COMPUTER, host, tmp_path, command, limit_s=LIMIT_S)
    lines = [json.loads(line) for line in (out / "log").read_text().splitlines() if line.startswith("{")]
    print(*lines, sep="\n")
    told = {line["what"]: line["value"] for line in lines}
    assert told["ended"] == "well"
    assert told["check"] == []
    assert told["query-kvm"] == {"enabled": True, "present": True}
    assert told["instance"]["accelerator"] == "kvm"
    assert told["agent"]["clocksource"] == "kvm-clock"
    before, after = told["exits"]
    assert 0 < before < after
