"""What platforms of one kind have in common of their features, and those of the papers' platforms without a driver."""

from __future__ import annotations

from virtoll.features import BHANAGE, EIRAS, SUKARIDHOTO, VASCONCELOS, Features, no, partly, yes

_CGROUPS = "docs.kernel.org/admin-guide/cgroup-v2.html, Limits"
_QEMU_MIGRATION = "qemu.org/docs/master/devel/migration/main.html"

# A container: processes of the host in namespaces and control groups of their own.
CONTAINER: Features = {
    "own-kernel": no("all share the host's", f"{EIRAS}, table I"),
    "other-systems": no("what runs on the host's Linux, and nothing else", f"{EIRAS}, III.B"),
    "own-distribution": yes(
        "its root filesystem is its own (Eiras et al., III.B, say that it is not)", f"{SUKARIDHOTO}, II.B"
    ),
    "changed-kernel": no("the kernel and its modules are the host's", f"{BHANAGE}, 2"),
    "root-inside": yes("bounded by namespaces, capabilities and filters", f"{BHANAGE}, 2"),
    "separate-files": partly("directories of the host can be mounted in it", f"{EIRAS}, table I"),
    "fault-isolation": no("what breaks the kernel breaks the host and all others", f"{SUKARIDHOTO}, II.B"),
    "own-network": yes("a network namespace of its own", f"{VASCONCELOS}, 2.7"),
    "shared-base": yes("they share what lies on the host's disk", f"{EIRAS}, table I"),
    "unmodified-guest": yes("programs run as they do on the host; there is no guest's kernel", f"{VASCONCELOS}, 2.7"),
    "no-cpu-extensions": yes("nothing of the CPU is virtualized", f"{BHANAGE}, 2"),
    "stock-kernel": yes("namespaces and control groups are in Linux itself", f"{VASCONCELOS}, 2.7"),
    "own-resource-view": no("/proc shows the host's CPUs and memory", f"{VASCONCELOS}, 2.7"),
    "resize": yes("by changing the limits of its control group", f"{VASCONCELOS}, 2.7"),
    "overcommit": yes("limits are bounds, and may add up to more than there is", _CGROUPS),
}

# A virtual machine of QEMU's.
MACHINE: Features = {
    "own-kernel": yes("it boots its own on virtual hardware", f"{EIRAS}, table I"),
    "other-systems": yes("whatever runs on such a PC", f"{VASCONCELOS}, 2.6"),
    "own-distribution": yes("its disk is its own", f"{BHANAGE}, 2"),
    "changed-kernel": yes("in its kernel, or its driver", f"{BHANAGE}, table 1"),
    "root-inside": yes("of the guest alone", f"{BHANAGE}, 2"),
    "separate-files": yes("libraries and files are its own", f"{EIRAS}, table I"),
    "fault-isolation": yes("what breaks its kernel ends with it", f"{EIRAS}, III.A"),
    "own-network": yes("virtual Ethernet devices", f"{EIRAS}, table I"),
    "shared-base": partly(
        "images that hold only what differs from a base have to be made; by itself each stores a whole system "
        "(Eiras et al., table I)",
        "qemu.org/docs/master/system/images.html",
    ),
    "unmodified-guest": yes("the guest needs not know", f"{VASCONCELOS}, 2.1 and 2.3"),
    "stock-kernel": yes("KVM is in Linux since 2.6.20; without it QEMU is a program as any", f"{VASCONCELOS}, 2.5"),
    "live-migration": yes("to a QEMU that was started alike", _QEMU_MIGRATION),
    "checkpoint": yes("its state is saved and loaded", _QEMU_MIGRATION),
    "own-resource-view": yes("its kernel counts what the virtual machine has", f"{EIRAS}, table I"),
    "resize": partly(
        "CPUs where the machine and the guest can plug them in, memory by a balloon in the guest",
        "qemu.org/docs/master/system/cpu-hotplug.html",
    ),
    "overcommit": yes(
        "a guest is a process, its memory is taken when touched and can be merged with others'",
        "docs.kernel.org/admin-guide/mm/ksm.html",
    ),
}

# The same on QEMU's machine of that name, with PCI Express.
_QEMU_MICROVM = "qemu.org/docs/master/system/i386/microvm.html"
MICROVM: Features = {
    **MACHINE,
    "other-systems": partly("those whose kernel QEMU can load: no firmware of its boots a disk", _QEMU_MICROVM),
    "live-migration": partly("to a QEMU of the same version", _QEMU_MICROVM),
    "resize": partly("memory, by a balloon in the guest: nothing can be plugged in", _QEMU_MICROVM),
}
