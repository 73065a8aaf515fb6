"""Where User Mode Linux runs: a file system of its own that holds next to nothing, as a user of its own.

A guest's root can have its kernel do what he wants (load a module into it, mount hostfs, whose root "hostfs=" does not
hold: ".." leads out of it), so its kernel must not be able to do much. A mount namespace, which ends with its last
process, a root of a few files in it, an unprivileged user that nobody else is, and no way to more privileges: a chroot
cannot be left by such a user, nor can he make a user namespace in it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.platforms import mounts

DISK = "/disk"  # inside: what the kernel may write
BASE = "/image/disk.ext4"  # not in the root itself: UML cannot make its path absolute there
MEMORY = "/dev/shm"
KERNEL = "/linux.uml"

_FIRST_UID = 0x7000_0000  # above what systemd and the subordinate ids of containers take
_UIDS = 0x00FF_FFFF

# The arguments: those of `forget_others`, the empty directory to be the root, the user, bytes of memory, the disk's
# directory, and pairs of a file and the place it gets, read only, up to "--"; then the kernel's command line.
_ENTER = f"""
{mounts.FORGET}
forget_others "$1" "$2"; shift 2
cd "$1"; user=$2 memory=$3 disk=$4; shift 4
mount -t tmpfs -o mode=755,size=1m jail .
cd "$PWD"
mkdir -p dev/net proc .{DISK} .{MEMORY}
chown "$user" "$disk"
mount --bind "$disk" .{DISK}
mount -t tmpfs -o "mode=1777,nosuid,nodev,size=$memory" shm .{MEMORY}
mknod -m 666 dev/net/tun c 10 200
mknod -m 666 dev/null c 1 3
sed '/^$/q' /proc/cpuinfo >proc/cpuinfo
while [ "$1" != -- ]; do
  mkdir -p ".${{2%/*}}"; : >".$2"; mount --bind "$1" ".$2"; mount -o remount,bind,ro ".$2"; shift 2
done
shift
mount -o remount,ro .
unset PWD OLDPWD
exec setpriv --no-new-privs -- chroot --userspec="+$user:+$user" --groups= . "$@"
"""


@dataclass(frozen=True)
class Jail:
    """The directories (of the instance's) that a kernel is locked into, and who it runs as."""

    root: Path
    disk: Path
    user: int

    @staticmethod
    def made(directory: Path) -> Jail:
        """Make the directories below the instance's."""
        jail = Jail(directory / "jail", directory / "disk", _FIRST_UID + secrets.randbelow(_UIDS))
        jail.root.mkdir()
        jail.disk.mkdir(mode=0o700)
        return jail

    def entered(self, files: dict[Path, str], memory_bytes: int, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` inside, where it finds ``files`` (of the host's) at their places."""
        pairs = [text for source, place in files.items() for text in (str(source), place)]
        arguments = [str(self.root), str(self.user), str(memory_bytes), str(self.disk), *pairs, "--", *argv]
        return ["unshare", "--mount", "sh", "-e", "-c", _ENTER, "sh", *mounts.kept(self.root), *arguments]


def program_files(host: Host, program: Path) -> dict[Path, str]:
    """A program and the libraries it is linked with, and where it looks for them."""
    shown = host.run(["ldd", str(program)], check=False).text  # a static one fails, and needs nothing
    return {program: KERNEL, **{Path(path): path for path in linked(shown)}}


def linked(shown: str) -> list[str]:
    """The files in the output of ldd: ``libc.so.6 => /lib/libc.so.6 (0x7f)``, ``/lib64/ld.so (0x7f)``."""
    return re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x", shown, re.MULTILINE)
