"""What is mounted, by /proc/self/mountinfo (proc_pid_mountinfo(5)).

Any user may mount (FUSE), under any name: names are bytes, as in the rest of Python's file names.
"""

from __future__ import annotations

import os
import re

MOUNTINFO = "/proc/self/mountinfo"


def mount_lines(data: bytes) -> list[str]:
    """One text a mount; what is not UTF-8 in it stands as half surrogates."""
    return [os.fsdecode(line) for line in data.split(b"\n") if line]


def mount_point(line: str) -> str:
    """Where the mount is; "" for a line of no mount. Space, tab, newline and backslash are written in octal there."""
    fields = line.split(" ")
    if len(fields) < 5:
        return ""
    return re.sub(r"\\([01][0-7]{2})", lambda octal: chr(int(octal[1], 8)), fields[4])


def mount_points(data: bytes) -> set[str]:
    """Where something is mounted."""
    return {mount_point(line) for line in mount_lines(data)}


def is_read_only(line: str) -> bool:
    """Whether nothing can be written through the mount; it may be through another of the same file system."""
    fields = line.split(" ")
    return len(fields) > 5 and "ro" in fields[5].split(",")
