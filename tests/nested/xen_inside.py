"""Runs in the dom0 that test_xen.py starts: one of Xen's platforms, on a real Xen.

xen_inside.py PLATFORM DIGEST DIRECTORY of the image to deploy. What is learnt goes to standard output, lines of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import contract
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Image
from virtoll.lab.base import CpuPlan, Lab
from virtoll.lab.wiring import wired
from virtoll.platforms import vm, xen_dom0
from virtoll.platforms.base import Instance, platforms
from virtoll.platforms.xen import Xen

_BOOT_LIMIT_S = 240.0  # all is emulated here: a domain takes some 30 s, and the machine may be busy
_ONE_CPU = CpuPlan(frozenset({0}), frozenset({0}), frozenset({0}))


def main() -> None:
    """Try it all, and tell how that ended."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vm, "BOOT_LIMIT_S", _BOOT_LIMIT_S)
            patch.setattr(xen_dom0, "CREATE_LIMIT_S", _BOOT_LIMIT_S)
            cls = platforms()[sys.argv[1]]
            assert issubclass(cls, Xen)
            _try(cls(), Image("nested", sys.argv[2], Path(sys.argv[3])))
        _tell("ended", "well")
    except BaseException:
        _tell("ended", traceback.format_exc())
        _tell("xl list", _said("xl", "list"))
        _tell("hypervisor", _said("xl", "dmesg")[-2000:])
        for log in Path("/var/log/xen").glob("*"):
            _tell(log.name, log.read_text(errors="replace")[-2000:])


def _tell(what: str, value: Any) -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    print(json.dumps({"what": what, "value": value, "uptime_s": uptime_s}), flush=True)


def _said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def _try(platform: Xen, image: Image) -> None:
    """What this dom0 lacks, then an instance that has to keep the contract, and what is left of it."""
    host = LocalHost()
    _tell("xl info", _said("xl", "info"))
    _tell("check", [str(problem) for problem in platform.check(host)])
    with (
        ledgers.opened(host, Path("/run/nested-xen-ledger"), "nested") as ledger,
        wired(host, ledger, "abcd", _ONE_CPU) as lab,
    ):
        with contract.deployed(lab, image, platform) as instance:
            _keeps_the_contract(lab, instance)
        _nothing_is_left(lab)
    _tell("domains", _said("xl", "list").splitlines()[1:])


def _keeps_the_contract(lab: Lab, instance: Instance) -> None:
    _tell("instance", instance.facts)
    _tell("agent", instance.agent.facts())
    _tell("vcpu-list", _said("xl", "vcpu-list"))
    _step("answers", lambda: contract.answers(instance))
    _step("is reached", lambda: contract.is_reached(lab, instance))
    _step("files pass", lambda: contract.files_of_any_size_pass(instance))
    _step("root stays inside", lambda: contract.keeps_root_from_the_host(instance, own_kernel=True))
    _step("is accounted for", lambda: _is_accounted_for(instance))
    _step("CPU limit", lambda: contract.cpu_limit_holds(instance))
    _step("memory limit", lambda: contract.memory_limit_holds(instance))
    _step("disk limit", lambda: contract.disk_limit_holds(instance))
    _step("pids limit", lambda: contract.pids_limit_holds(instance))  # the last: what it started runs on


def _step(name: str, does: Callable[[], None]) -> None:
    does()
    _tell("step", name)


def _is_accounted_for(instance: Instance) -> None:
    """What it burns, the hypervisor books; what it writes and sends, dom0's threads work for, in its own group."""
    meter = instance.accounting.meter
    assert meter is not None
    group = Cgroup(instance.accounting.cgroup, hierarchies())
    before, dom0_ns = meter.used(), group.cpu_ns()
    burnt = instance.agent.burn(1, 2000)
    wrote = instance.agent.run(["dd", "if=/dev/zero", "of=/var/tmp/large", "bs=1M", "count=32", "conv=fsync"])
    assert wrote.returncode == 0
    after, dom0_after_ns = meter.used(), group.cpu_ns()
    assert before is not None
    assert after is not None
    assert dom0_ns is not None
    assert dom0_after_ns is not None
    _tell("used", {"domain_ns": after.cpu_ns - before.cpu_ns, "burnt": burnt, "memory_bytes": after.memory_bytes,
                   "dom0_ns": dom0_after_ns - dom0_ns})  # fmt: skip
    assert after.cpu_ns - before.cpu_ns >= 0.5 * burnt["cpu_ns"]
    assert dom0_after_ns > dom0_ns
    assert 0.9 * contract.LIMITS.memory_bytes < after.memory_bytes < 1.2 * contract.LIMITS.memory_bytes


def _nothing_is_left(lab: Lab) -> None:
    assert len(_said("xl", "list").splitlines()) == 2, "a heading, and dom0"
    assert _said("losetup", "--list", "--noheadings") == ""
    links = _said("ip", "-brief", "link") + _said("ip", "-n", lab.sut.netns, "-brief", "link")
    assert "vif" not in links
    assert "vt0" not in links


if __name__ == "__main__":
    main()
