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
# As OCI configurations and Docker's API are told what to hide; what a kernel lacks is passed over. The last two are in
# Docker's list since then: who reads how much energy the host takes, or when it is interrupted, learns what others do.
MASKED = (
    *(f"/proc/{name}" for name in (*PROC_HIDDEN_FILES, *PROC_HIDDEN_DIRECTORIES)),
    *("/sys/firmware", "/proc/interrupts", "/sys/devices/virtual/powercap"),
)

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

# What container runtimes give an image that lacks it: mount points, and the devices that every program may expect.
# sysfs shows the network devices of the namespace that it is mounted in; shared memory is Squid's. $1 is the root
# directory, $2 the size of shared memory in bytes.
CHROOT = f"""
cd "$1"
{PLACES}
device() {{ [ -c "dev/$1" ] || {{ rm -f "dev/$1"; mknod -m 666 "dev/$1" c "$2" "$3"; }}; }}
link() {{ [ -L "dev/$1" ] || {{ rm -f "dev/$1"; ln -s "/proc/self/$2" "dev/$1"; }}; }}
device null 1 3; device zero 1 5; device full 1 7; device random 1 8; device urandom 1 9; device tty 5 0
link fd fd; link stdin fd/0; link stdout fd/1; link stderr fd/2
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o "mode=1777,nosuid,nodev,size=$2" shm dev/shm
"""


def in_proc(*names: str) -> list[str]:
    """Those of /proc's files that this kernel has."""
    return [path for name in names if Path(path := f"/proc/{name}").exists()]
