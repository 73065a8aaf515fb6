"""An instance's place in the cgroup tree, the same on every platform.

virtoll/<tag>/<instance>            everything the instance costs; budget "inclusive": cpuset and quota are here
virtoll/<tag>/<instance>/payload    guest or container; memory and pids limits; budget "vcpus": cpuset and quota
virtoll/<tag>/<instance>/helpers    shims, proxies, monitors, I/O threads
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtoll.errors import PlatformError
from virtoll.hosts.cgroup import Cgroup, owned
from virtoll.lab.base import Lab
from virtoll.lab.cpus import instances
from virtoll.platforms.base import Accounting
from virtoll.study.limits import Limits


@dataclass(frozen=True)
class Groups:
    """The three cgroups of an instance, and the CPUs its vCPUs may use."""

    whole: Cgroup
    payload: Cgroup
    helpers: Cgroup
    cpus: frozenset[int]

    def accounting(self, directory: Path, shared: tuple[str, ...] = (), *, apart: bool = True) -> Accounting:
        """Where the cost of the instance in ``directory`` is booked. ``apart``: all that helps the payload is in
        the helpers' group; a kernel in user space is among the payload, and no part tells its share.
        """
        parts = {"payload": self.payload.name, **({"helpers": self.helpers.name} if apart else {})}
        return Accounting(self.whole.name, directory, parts, shared)

    def pid_inside(self) -> int:
        """A process of the payload, by which its namespaces are found; PlatformError where none is left."""
        pids = self.payload.pids()
        if not pids:
            raise PlatformError(
                "the instance has ended as soon as its agent had answered",
                where=f"cgroup {self.payload.name}",
                remedy="see its log; is limits.memory enough for the platform's own processes?",
            )
        return pids[0]


@contextmanager
def instance_groups(
    lab: Lab, name: str, limits: Limits, *, payload_memory_bytes: int | None = None, payload_pids: int | None = None
) -> Iterator[Groups]:
    """The cgroups of instance ``name`` (unique in the run) with ``limits``; all in them is killed at the end.

    ``payload_memory_bytes`` replaces the memory limit where the payload is a virtual machine monitor, which needs
    memory of its own besides its guest's; ``payload_pids`` that of processes, where one inside is several outside.
    """
    cpus = instance_cpus(lab, limits)
    inclusive = limits.budget == "inclusive"
    quota = float(limits.vcpus)
    top = f"{lab.cgroup}/{name}"
    with ExitStack() as stack:
        whole = owned(
            lab.ledger,
            top,
            cpus=cpus if inclusive else cpus | lab.generator.cpus,
            cpu_quota=quota if inclusive else None,
        )
        payload = owned(
            lab.ledger,
            f"{top}/payload",
            cpus=cpus,
            cpu_quota=None if inclusive else quota,
            memory_bytes=payload_memory_bytes or limits.memory_bytes,
            pids=payload_pids or limits.pids,
        )
        helpers = owned(lab.ledger, f"{top}/helpers", cpus=cpus if inclusive else lab.generator.cpus)
        groups = Groups(stack.enter_context(whole), stack.enter_context(payload), stack.enter_context(helpers), cpus)
        if not inclusive:
            groups.whole.go_first()  # as the generator, or helpers would wait for it on its CPUs
        yield groups


def instance_cpus(lab: Lab, limits: Limits) -> frozenset[int]:
    """The host's CPUs for the instance's vCPUs; PlatformError where there are too few."""
    if limits.vcpus > len(lab.sut.cpus):
        raise PlatformError(
            f"{limits.vcpus} vCPUs do not fit on the {len(lab.sut.cpus)} CPUs that the lab leaves to the instance",
            where="limits.vcpus",
            remedy="give the instance fewer vCPUs, or the lab a machine with more CPUs",
        )
    return instances(lab.host, lab.sut.cpus, limits.vcpus)
