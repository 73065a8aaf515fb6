"""A Xen domain's configuration (xl.cfg(5)), as a pure function of what the guest is to be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from virtoll.errors import PlatformError
from virtoll.images.kernel import Kernel

Type = Literal["pv", "pvh", "hvm"]

KERNEL_ARGUMENTS = ("console=hvc0", "quiet", "panic=-1", "cryptomgr.notests")
# A domain that has ended stays until it is destroyed: its console still holds what it said last.
_ENDINGS = ("on_poweroff", "on_reboot", "on_watchdog", "on_crash")
# HVM: no screen and no memory for one (it is taken from the guest's own), and Xen's own network device alone, without
# an emulated one beside it.
_HVM = ('vga = "none"', "nographic = 1", "vnc = 0", "sdl = 0", "xen_platform_pci = 1")
_MIB = 1024**2

# Called by libxl in place of Xen's own script: the device is wired by the platform, which knows the lab.
VIF_SCRIPT = b"""#!/bin/sh
case $1 in online) exec xenstore-write "$XENBUS_PATH/hotplug-status" connected ;; esac
"""


@dataclass(frozen=True)
class Domain:
    """What a configuration depends on."""

    type: Type
    name: str
    kernel: Kernel
    vcpus: int
    cpus: frozenset[int]  # of the machine, as Xen numbers them: where the vCPUs may run
    memory_bytes: int
    disk: Path  # an ext4 file; it becomes xvda
    mac: str
    vif_script: Path

    @property
    def memory_mib(self) -> int:
        """Xen counts in whole MiB; a part of one is left out."""
        return self.memory_bytes // _MIB


def configuration(domain: Domain) -> str:
    """The file for ``xl create``.

    Its CPU quota is its number of vCPUs on as many CPUs: no cap is set, which the scheduler would enforce by stopping
    a vCPU for parts of 10 ms.
    """
    nic = "type=vif," if domain.type == "hvm" else ""
    lines = [
        f"type = {quoted(domain.type)}",
        f"name = {quoted(domain.name)}",
        f"kernel = {quoted(str(domain.kernel.vmlinuz))}",
        f"ramdisk = {quoted(str(domain.kernel.initramfs))}",
        f"cmdline = {quoted(' '.join(KERNEL_ARGUMENTS))}",
        f"vcpus = {domain.vcpus}",
        f"cpus = {quoted(','.join(str(cpu) for cpu in sorted(domain.cpus)))}",
        f"memory = {domain.memory_mib}",
        f"maxmem = {domain.memory_mib}",
        f"disk = [ {quoted(f'format=raw,vdev=xvda,access=rw,target={domain.disk}')} ]",
        f"vif = [ {quoted(f'mac={domain.mac},{nic}script={domain.vif_script}')} ]",
        *(f'{ending} = "preserve"' for ending in _ENDINGS),
        *(_HVM if domain.type == "hvm" else ()),
    ]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A string of xl.cfg(5). PlatformError for what its lines, and the specifications in them, cannot hold."""
    if re.search(r'["\\\x00-\x1f\x7f]', text):
        raise PlatformError(
            f"xl's configuration cannot hold {text!r}",
            where="xl.cfg",
            remedy="let VIRTOLL_STATE and VIRTOLL_CACHE name directories without quotes and control characters",
        )
    return f'"{text}"'
