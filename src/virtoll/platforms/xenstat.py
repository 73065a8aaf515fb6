"""What a domain uses, as the hypervisor books it: libxenstat, the library of xentop (xenstat.h).

`xl list` and `xentop -b` tell CPU time in tenths of a second and in whole ones, and each is a process; this is the same
number in nanoseconds, from one hypercall. The library is of one version of Xen: that of the hypervisor that runs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from virtoll.errors import PlatformError
from virtoll.platforms.base import Used

_VERSION = Path("/sys/hypervisor/version")
_DOMAINS_ALONE = 0  # xenstat_get_node's flags: no vCPUs, networks or block devices besides
_MOST_NS = 2**63  # what is above is no CPU time: the library answers -1 where it fails


def library() -> Any:
    """The library for the running hypervisor; None where it is not installed."""
    names = ["libxenstat.so.0"]
    with suppress(OSError):
        major, minor = ((_VERSION / part).read_text(encoding="ascii").strip() for part in ("major", "minor"))
        names.insert(0, f"libxenstat.so.{major}.{minor}")
    for name in names:
        with suppress(OSError):
            return _declared(ctypes.CDLL(name, use_errno=True))
    return None


def _declared(found: Any) -> Any:
    """The functions' types: C's default, int, would cut pointers."""
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("xenstat_init", pointer, []),
        ("xenstat_uninit", None, [pointer]),
        ("xenstat_get_node", pointer, [pointer, ctypes.c_uint]),
        ("xenstat_free_node", None, [pointer]),
        ("xenstat_node_domain", pointer, [pointer, ctypes.c_uint]),
        ("xenstat_domain_cpu_ns", ctypes.c_ulonglong, [pointer]),
        ("xenstat_domain_cur_mem", ctypes.c_ulonglong, [pointer]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class DomainMeter:
    """Asks the hypervisor about one domain (`virtoll.platforms.base.Meter`)."""

    def __init__(self, xenstat: Any, handle: Any, domain: int) -> None:
        self._xenstat = xenstat
        self._handle = handle
        self._domain = domain
        self._asking = threading.Lock()

    def used(self) -> Used | None:
        """Since the domain was made; None of one that is gone."""
        with self._asking:
            if self._handle is None:
                return None
            node = self._xenstat.xenstat_get_node(self._handle, _DOMAINS_ALONE)
            if not node:
                return None
            try:
                domain = self._xenstat.xenstat_node_domain(node, self._domain)
                if not domain:
                    return None
                cpu_ns = self._xenstat.xenstat_domain_cpu_ns(domain)
                memory_bytes = self._xenstat.xenstat_domain_cur_mem(domain)
            finally:
                self._xenstat.xenstat_free_node(node)
        return Used(cpu_ns, memory_bytes) if max(cpu_ns, memory_bytes) < _MOST_NS else None

    def close(self) -> None:
        """Give the library's handle back; who asks later is told nothing."""
        with self._asking:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._xenstat.xenstat_uninit(handle)


@contextmanager
def metered(domain: int) -> Iterator[DomainMeter]:
    """A meter for the length of the block. PlatformError where the library is missing or the hypervisor refuses."""
    found = library()
    handle = None if found is None else found.xenstat_init()
    if not handle:
        raise PlatformError(
            "what a domain uses cannot be asked for: " + ("no libxenstat" if found is None else "xenstat_init fails"),
            where=f"Xen domain {domain}",
            remedy="install Xen's tools of the version that runs (xl info), and run as root in dom0",
        )
    meter = DomainMeter(found, handle, domain)
    try:
        yield meter
    finally:
        meter.close()
