"""A known cost: an instance that gets a little less of its CPUs than its limits say. For `virtoll calibrate` alone."""

from __future__ import annotations

from dataclasses import dataclass

from virtoll.errors import HostError
from virtoll.hosts.cgroup import Cgroup, hierarchies

# Of the quota. The kernel's own period of 100 ms is too long for short windows: each begins with most of a quota left,
# and is held up once or twice, not for its share. Quotas below 1 ms are refused by the kernel.
_PERIOD_US = 5000


@dataclass(frozen=True)
class Throttle:
    """``quota_percent``: of its CPUs' time; 100: none is taken away. No study file can set it (`StudyArm`)."""

    quota_percent: float = 100.0


NO_THROTTLE = Throttle()


def throttle(wanted: Throttle, cgroup: str, cpus: int) -> None:
    """Put a quota on all of an instance's control group, which has ``cpus`` CPUs; nothing where none is wanted. It ends
    with the instance. HostError where the kernel refuses it.
    """
    if wanted.quota_percent >= 100:
        return
    group = Cgroup(cgroup, hierarchies())
    directory, quota_us = group.directory("cpu"), round(cpus * _PERIOD_US * wanted.quota_percent / 100)
    files = {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    if group.hierarchies.version == 1:  # the quota first: with the period alone the old one would be many CPUs
        files = {"cpu.cfs_quota_us": str(quota_us), "cpu.cfs_period_us": str(_PERIOD_US)}
    for name, text in files.items():
        try:
            (directory / name).write_text(text, encoding="ascii")
        except OSError as error:
            what = f"a CPU quota of {wanted.quota_percent:g} % cannot be set: {error.strerror}"
            remedy = "calibrate without it, or on a kernel with CONFIG_CFS_BANDWIDTH"
            raise HostError(what, where=str(directory / name), remedy=remedy) from error
