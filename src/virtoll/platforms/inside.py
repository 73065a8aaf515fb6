"""What root finds inside a container, where virtoll says it: Docker's defaults, for every runtime that leaves it open.

Docker's lists (moby: oci/defaults.go, 20.10): what servers need, and nothing that reaches the host through this kernel
(mounts, modules, raw I/O).
"""

from __future__ import annotations

from pathlib import Path

CAPABILITIES = (
    "audit_write chown dac_override fowner fsetid kill mknod net_bind_service net_raw setfcap setgid setpcap setuid "
    "sys_chroot"
)
# What of /proc is the host's. Most runtimes see to /proc/sys and /proc/sysrq-trigger by themselves.
PROC_READ_ONLY = ("bus", "fs", "irq")
PROC_HIDDEN_FILES = ("kcore", "keys", "latency_stats", "sched_debug", "timer_list", "timer_stats")
PROC_HIDDEN_DIRECTORIES = ("acpi", "asound", "dynamic_debug", "scsi")
# Of these not in Docker's list: who writes there makes the host's kernel log what he likes. Docker leaves it to
# AppArmor, and Podman to SELinux, which need not be there.
PROC_UNLISTED = ("dynamic_debug",)
# As OCI configurations and Docker's API are told what to hide.
MASKED = (*(f"/proc/{name}" for name in (*PROC_HIDDEN_FILES, *PROC_HIDDEN_DIRECTORIES)), "/sys/firmware")

# For a shell in the root directory of an image: the mount points that every container has, where the image lacks them.
# A link of the image's in their place would lead out of it.
PLACES = """
place() {
    [ ! -L "$1" ] || { echo "the image's /$1 is a link, and something is to be mounted or made there" >&2; exit 1; }
    [ -d "$1" ] || mkdir -m "$2" "$1"
}
for path in dev dev/shm proc sys var; do place $path 755; done
for path in tmp var/tmp; do [ -L $path ] || place $path 1777; done
"""


def in_proc(*names: str) -> list[str]:
    """Those of /proc's files that this kernel has."""
    return [path for name in names if Path(path := f"/proc/{name}").exists()]
