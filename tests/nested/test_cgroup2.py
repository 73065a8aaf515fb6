"""The containers' contract on control groups of version 2, on any machine: pytest runs in an emulated computer.

    .venv/bin/pytest -m slow tests/nested/test_cgroup2.py -k lxc

What runs there are the tests of test_platforms_containers.py and test_cgroup.py, as they are, with more patience. They
say of the kernel's limits and accounts that they hold; the computer is too slow to say anything of speed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

import contract
from nested.computer import Computer, run_in
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import LocalHost

LIMIT_S = 2400.0
TEST_LIMIT_S = 900
# What the kernel does not load by itself when it is asked for it (modprobe by alias, of file systems, links, rules).
MODULES = ("loop", "fuse", "tun", "overlay", "br_netfilter")
TESTS = {
    "cgroup": ("tests/test_cgroup.py", ""),
    "native": ("tests/test_platforms_containers.py", "native"),
    "lxc": ("tests/test_platforms_containers.py", "lxc and not lxcfs"),
    "lxcfs": ("tests/test_platforms_containers.py", "lxcfs"),
    "bubblewrap": ("tests/test_platforms_containers.py", "bubblewrap"),
    "nspawn": ("tests/test_platforms_containers.py", "nspawn"),
    "openvz-profile": ("tests/test_platforms_containers.py", "openvz-profile"),
    "oci-runc": ("tests/test_platforms_containers.py", "oci-runc"),
    "oci-crun": ("tests/test_platforms_containers.py", "oci-crun"),
    "podman": ("tests/test_platforms_containers.py", "podman and not podman-runc"),
    "podman-runc": ("tests/test_platforms_containers.py", "podman-runc"),
    "docker": ("tests/test_platforms_containers.py", "docker and not unconfined"),
}


@dataclass(frozen=True)
class Told:
    """How the tests inside ended: their names, and the reasons of those that were skipped."""

    passed: list[str]
    skipped: list[str]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the emulated computer reads this machine's files")
@pytest.mark.parametrize("name", TESTS)
def test_keeps_the_contract_on_version_2(name: str, host: LocalHost, tmp_path: Path) -> None:
    contract.image()  # made here: there, it would take an hour
    file, keywords = TESTS[name]
    docker_data = str(cache_directory() / "docker")  # overlay2 does not write to an overlay
    computer = Computer(memory_mib=4000, modules=MODULES, in_memory=("/tmp", docker_data))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "nested.patience",
        "--durations=0",
        "-m",
        "machine",
    ]
    command += [f"--timeout={TEST_LIMIT_S}", "--junit-xml=/run/out/junit.xml", file, "-k", keywords]
    out = run_in(computer, host, tmp_path, command, limit_s=LIMIT_S)
    told = read(out / "junit.xml")
    print(*told.passed, *told.skipped, sep="\n")
    if not told.passed:
        pytest.skip("\n".join(sorted(set(told.skipped))))


def read(junit: Path) -> Told:
    """What pytest's --junit-xml says."""
    passed, skipped = [], []
    for case in ElementTree.parse(junit).iter("testcase"):
        name, why = case.get("name", ""), case.find("skipped")
        if why is not None:
            skipped.append(f"{name}: {why.get('message')}")
        else:
            passed.append(f"{name}: {case.get('time')} s")
    return Told(passed, skipped)
