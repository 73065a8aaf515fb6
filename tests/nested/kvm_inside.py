"""Runs inside the machine that test_kvm.py starts: platform kvm, over a KVM that boots ordinary guests.

kvm_inside.py DIGEST DIRECTORY of the image to deploy. What is learnt goes to standard output, a line of JSON for each.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import contract
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.lab.base import CpuPlan
from virtoll.lab.wiring import wired
from virtoll.platforms import under_kvm, vm
from virtoll.platforms.base import Instance
from virtoll.platforms.kvm import Kvm
from virtoll.platforms.qmp import Qmp

_BOOT_LIMIT_S = 120.0  # all is emulated here: a guest takes some 15 s, and the machine may be busy
_ONE_CPU = CpuPlan(frozenset({0}), frozenset({0}), frozenset({0}))


def main() -> None:
    """Try it all, and tell how that ended."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            _try(patch, Image("nested", sys.argv[1], Path(sys.argv[2])))
        _tell("ended", "well")
    except BaseException:
        _tell("ended", traceback.format_exc())


def _tell(what: str, value: Any) -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    print(json.dumps({"what": what, "value": value, "uptime_s": uptime_s}), flush=True)


def _try(patch: pytest.MonkeyPatch, image: Image) -> None:
    """The probe, then an instance that has to keep the contract. Only the time limits differ from a real run's."""
    patch.setattr(under_kvm, "boot_problem", partial(under_kvm.boot_problem, limit_s=_BOOT_LIMIT_S))
    patch.setattr(vm, "BOOT_LIMIT_S", _BOOT_LIMIT_S)
    host = LocalHost()
    host.run(["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"])
    _tell("check", [str(problem) for problem in Kvm().check(host) or Kvm().try_out(host)])
    _overhear_qmp(patch)
    with (
        ledgers.opened(host, Path("/tmp/nested-kvm-ledger"), "nested") as ledger,
        wired(host, ledger, "abcd", _ONE_CPU) as lab,
    ):
        with contract.deployed(lab, image, Kvm()) as instance:
            _tell("instance", instance.facts)
            _tell("agent", instance.agent.facts())
            contract.answers(instance)
            contract.is_reached(lab, instance)
            contract.is_accounted_for(instance)
            contract.cpu_limit_holds(instance)
            contract.memory_limit_holds(instance)
            contract.disk_limit_holds(instance)
            _tell("exits", _exits_of(instance))
            contract.pids_limit_holds(instance)  # the last: what it started runs on
        pinned = replace(contract.LIMITS, budget="vcpus")
        with contract.deployed(lab, image, Kvm(), "usernet", pinned) as instance:
            contract.answers(instance)
            contract.is_reached(lab, instance)


def _exits_of(instance: Instance) -> list[int]:
    """KVM's own count, before the guest does something and after."""
    (path,) = instance.accounting.counters.values()
    before = int(path.read_text())
    contract.answers(instance)
    return [before, int(path.read_text())]


def _overhear_qmp(patch: pytest.MonkeyPatch) -> None:
    """Tell what QEMU answers to the driver."""
    execute = Qmp.execute

    def told(qmp: Qmp, command: str, **arguments: Any) -> Any:
        answer = execute(qmp, command, **arguments)
        _tell(command, answer)
        return answer

    patch.setattr(Qmp, "execute", told)


if __name__ == "__main__":
    main()
