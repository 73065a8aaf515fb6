"""A mount namespace of an instance's own, without the copies of other instances' mounts.

A new mount namespace begins as a copy of the one it is made in. A file system that is unmounted elsewhere stays mounted
in the copy, and its disk in use, until the namespace ends or the directory that it is mounted on is removed (since
Linux 3.18); and what is not needed is not to be seen.
"""

from __future__ import annotations

from pathlib import Path

# For a shell in the new namespace. What is mounted below something that has gone is gone, but may still be listed.
FORGET = """
forget_others() {
    while read -r source point _; do
        case $point in "$1"|"$1"/*) continue ;; esac
        case "$source $point" in virtoll-*|*" $2"/lab-*) umount --lazy "$(printf %b "$point")" 2>/dev/null || : ;; esac
    done </proc/self/mounts
}
"""

# The same for a kind of file system, "" for none.
HIDE = """
hide() {
    while read -r _ point kind _; do
        [ "$kind" != "$1" ] || umount --lazy "$(printf %b "$point")"
    done </proc/self/mounts
}
"""


def kept(own: Path) -> tuple[str, str]:
    """The arguments of `forget_others`: what stays mounted, of an instance's directory (it need not be a mount), and
    where the labs lie that it is in one of.
    """
    return listed(own), listed(own.parents[2])


def listed(path: Path) -> str:
    """As /proc/self/mounts writes it (proc(5)), fstab(5) has it, and `printf %b` reads it."""
    return "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\" else letter for letter in str(path))
