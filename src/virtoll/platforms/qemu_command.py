"""QEMU's command line, as a pure function of what the guest is to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from virtoll.images.kernel import Kernel
from virtoll.networks.base import Attachment

Accelerator = Literal["kvm", "tcg"]
DiskCache = Literal["writeback", "none", "writethrough", "directsync", "unsafe"]
DiskIo = Literal["threads", "native", "io_uring"]
MachineType = Literal["pc", "q35", "microvm"]
PAST_THE_HOSTS_CACHE: tuple[DiskCache, ...] = ("none", "directsync")

AGENT_PORT = "virtoll.agent"
TRANSLATION_BUFFER_MIB = 128  # of TCG. QEMU's default is 1 GiB: memory of the host's that no limit would show
# The monitor's own need besides the guest's memory: code, device models, page tables, disk requests in flight.
_MONITOR_BYTES = 128 * 1024**2
OVERHEAD_BYTES: dict[Accelerator, int] = {
    "kvm": _MONITOR_BYTES,
    "tcg": _MONITOR_BYTES + TRANSLATION_BUFFER_MIB * 1024**2,
}

# Who gets hold of QEMU by a fault in a device model is root: he is to start no program, and to gain nothing more.
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_ACCELERATOR = {"kvm": "kvm", "tcg": f"tcg,tb-size={TRANSLATION_BUFFER_MIB}"}
# microvm by itself has virtio on MMIO, of which it tells in a way that distributions' kernels do not listen to. It gets
# PCI Express, where the devices of the others fit; without ACPI it would neither tell of that bus nor reset.
_MACHINE: dict[MachineType, str] = {"pc": "pc", "q35": "q35", "microvm": "microvm,acpi=on,pcie=on,rtc=on"}
CPU_MODEL: dict[Accelerator, str] = {"kvm": "host", "tcg": "max"}
# cryptomgr.notests leaves out self-tests while booting. no_timer_check: emulated on a busy machine, the timer seems not
# to work to a kernel that tries it, and it gives up (KVM's guests do not try). Nothing here changes what follows.
KERNEL_ARGUMENTS = ("console=ttyS0", "quiet", "panic=-1", "cryptomgr.notests", "no_timer_check")


@dataclass(frozen=True)
class Guest:
    """What the command line depends on. File names are relative to the monitor's working directory."""

    accelerator: Accelerator
    kernel: Kernel
    vcpus: int
    memory_bytes: int
    disk: str = ""  # a qcow2 file; "" for a guest without a disk
    attachment: Attachment | None = None
    qmp_fd: int | None = None  # connected stream sockets
    agent_fd: int | None = None
    kernel_arguments: tuple[str, ...] = KERNEL_ARGUMENTS
    disk_cache: DiskCache = "writeback"
    disk_io: DiskIo = "threads"
    machine: MachineType = "pc"
    vhost: bool = False  # of a tap
    huge_pages: bool = False


def command_line(guest: Guest) -> list[str]:
    """The argv. What the guest prints goes to QEMU's standard output.

    The guest starts paused (-S) where there is a QMP session to let it go.
    """
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-sandbox", _SANDBOX]
    argv += ["-machine", _MACHINE[guest.machine] + (",memory-backend=ram" if guest.huge_pages else "")]
    argv += ["-accel", _ACCELERATOR[guest.accelerator], "-cpu", CPU_MODEL[guest.accelerator]]
    argv += ["-smp", f"cpus={guest.vcpus},sockets=1,cores={guest.vcpus},threads=1"]
    size = f"size={guest.memory_bytes // 1024}K"
    argv += ["-m", size]
    if guest.huge_pages:
        argv += ["-object", f"memory-backend-memfd,id=ram,{size},hugetlb=on,prealloc=on"]
    argv += ["-kernel", str(guest.kernel.vmlinuz), "-initrd", str(guest.kernel.initramfs)]
    argv += ["-append", " ".join(guest.kernel_arguments)]
    argv += ["-chardev", "file,id=console,path=/proc/self/fd/1", "-serial", "chardev:console"]
    if guest.disk:
        # Nobody writes to the image below the overlay. A UML guest that has it open locks all of it for reading, and
        # QEMU would refuse to share it.
        drive = f"id=disk,if=none,format=qcow2,file={guest.disk},backing.file.locking=off"
        drive += f",cache={guest.disk_cache},aio={guest.disk_io}"
        argv += ["-drive", drive, "-device", "virtio-blk-pci,drive=disk"]
    if guest.attachment is not None:
        argv += ["-netdev", _netdev(guest.attachment, vhost=guest.vhost)]
        argv += ["-device", f"virtio-net-pci,netdev=net,mac={guest.attachment.mac},romfile="]
    if guest.agent_fd is not None:
        argv += ["-device", "virtio-serial-pci,max_ports=2", "-chardev", f"socket,id=agent,fd={guest.agent_fd}"]
        argv += ["-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"]
    if guest.qmp_fd is not None:
        argv += ["-chardev", f"socket,id=qmp,fd={guest.qmp_fd}", "-mon", "chardev=qmp,mode=control", "-S"]
    return argv


def _netdev(attachment: Attachment, *, vhost: bool) -> str:
    if attachment.kind == "tap":
        # Forced, it is an error where it cannot be had while QEMU starts, which else warns and does without.
        asked = "vhost=on,vhostforce=on" if vhost else "vhost=off"
        return f"tap,id=net,ifname={attachment.device},script=no,downscript=no,{asked}"
    address = attachment.endpoint_address
    forwards = [
        f"hostfwd={port.protocol}:{address}:{number}-:{number}" for port in attachment.ports for number in port.numbers
    ]
    return ",".join(["user", "id=net", "ipv6=off", *forwards])
