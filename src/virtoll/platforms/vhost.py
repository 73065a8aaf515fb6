"""vhost-net: a tap's packets are carried between guest and host by the kernel, in a thread of its own for each device.

That thread's work is the guest's cost. Since Linux 6.4 it is a thread of QEMU's, and so where QEMU is. Before, it is
one of the kernel's (``vhost-PID``, after who asked for it), which the kernel moves to QEMU's control groups of version
1, and to that of version 2 only since 5.16 (kernel/cgroup/cgroup-v1.c: cgroup_attach_task_all). So it is looked for,
and moved.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

from virtoll.errors import PlatformError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup
from virtoll.hosts.processes import kernel_threads

_DEVICE = Path("/dev/vhost-net")
_MODULE = Path("/sys/module/vhost_net")  # of one that is built in, too, where it has parameters: vhost_net's has
_PROC = Path("/proc")
_WITHOUT = "or leave vhost out: QEMU carries the packets itself then"


def problem(host: Host) -> Problem | None:
    """Why the device cannot be opened, if it cannot. Opened is only that of a kernel that has vhost already: else that
    would load the module, which is left to QEMU.
    """
    try:
        if _MODULE.exists():
            os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
        else:
            _DEVICE.stat()
            if not os.access(_DEVICE, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError:
        return Problem(f"there is no {_DEVICE}", host.where, f"modprobe vhost_net; {_WITHOUT}")
    except OSError as error:
        return Problem(f"{_DEVICE} cannot be opened: {error.strerror}", host.where, f"run as root; {_WITHOUT}")
    return None


def take_in(monitor: int, group: Cgroup) -> dict[int, str]:
    """The threads that carry the packets of process ``monitor``'s guest, by number; from now on all are in ``group``.

    PlatformError where there is none: QEMU may do without vhost, and say so in a warning alone.
    """
    own = _own_threads(_PROC, monitor)
    kernels = kernel_threads(re.compile(rf"vhost-{monitor}$"), _PROC)
    taken = {thread: kernels[thread] for thread in group.add_living(kernels)}
    if not own and not taken:
        raise PlatformError(
            "no thread of the kernel's carries the guest's packets, though vhost was asked for",
            where="/proc",
            remedy="the instance's monitor.log has QEMU's reason; is vhost_net loaded?",
        )
    return {**own, **taken}


def _own_threads(proc: Path, monitor: int) -> dict[int, str]:
    """QEMU's own threads of that kind (since Linux 6.4): they were born in its group."""
    found = {}
    for task in (proc / str(monitor) / "task").glob("[0-9]*"):
        with suppress(OSError):
            name = (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
            if re.fullmatch(r"vhost-\d+", name):
                found[int(task.name)] = name
    return found
