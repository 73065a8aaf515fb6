"""What files of /proc and /sys say, as `virtoll.trial.audit` compares it. Pure: text in, text out.

An instance may write anything, of any length, into them: no pattern here looks at a character more than a few times.
`UntoldError` where a file does not say it. Formats: proc(5), proc_pid_status(5), proc_pid_mountinfo(5), getauxval(3).
"""

from __future__ import annotations

import ipaddress
import re
import struct

_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
_AT_PAGESZ = 6
_MOST_LINE_CHARS = 4096  # of what a program says of itself
_LOADER_NAME = r"ld-linux[\w.-]{0,24}|ld-musl-[\w.-]{1,24}|ld-[\d.]{1,8}\.so"
_LOADER = re.compile(_LOADER_NAME, re.ASCII)
# Where a system has its loader: what lies there is run as the agent's user, root.
_KNOWN_LOADER = re.compile(rf"(?:/usr)?/lib(?:32|64|x32)?/(?:[\w-]{{1,40}}/)?(?:{_LOADER_NAME})", re.ASCII)
# Bits of a virtio network device's features: virtio 1.2, 5.1.3.
_VIRTIO_NET = {
    0: "checksum",
    1: "guest checksum",
    7: "guest tso4",
    8: "guest tso6",
    11: "tso4",
    12: "tso6",
    15: "merged buffers",
    22: "queues",
}


class UntoldError(Exception):
    """A file that was read does not say what was looked for."""


def keyed(text: str, key: str) -> str:
    """The value of ``KEY:\tVALUE``."""
    found = re.search(rf"^{re.escape(key)}:[ \t]*(.*)$", text, re.MULTILINE)
    if found is None or not found[1].strip():
        raise UntoldError(f"this kernel's /proc/PID/status has no {key}")
    return found[1].strip()


def seccomp(status: str) -> str:
    """``off``, ``strict``, ``filter``."""
    told = keyed(status, "Seccomp")
    return _SECCOMP.get(told, told)


def users(uid_map: str) -> str:
    """Whose the users of a process are, of /proc/PID/uid_map (user_namespaces(7)): ``its kernel's``, or
    ``0 to 65535, to the host 1878982656 and on`` of a user namespace.
    """
    told = []
    for line in uid_map.splitlines():
        inside, outside, count = (int(word) for word in line.split())
        if (inside, outside, count) == (0, 0, 2**32 - 1):
            return "its kernel's"
        told.append(f"{inside} to {inside + count - 1}, to the host {outside} and on")
    return "; ".join(told)


def open_files(limits: str) -> str:
    """``1024 of 524288``: soft and hard."""
    found = re.search(r"^Max open files\s+(\S+)\s+(\S+)", limits, re.MULTILINE)
    if found is None:
        raise UntoldError("/proc/PID/limits has no line of open files")
    return f"{found[1]} (at most {found[2]})"


def page_size(auxv: bytes) -> str:
    """Of the auxiliary vector of a 64-bit process: ``4096 bytes``."""
    for key, value in struct.iter_unpack("=QQ", auxv[: len(auxv) // 16 * 16]):
        if key == _AT_PAGESZ:
            return f"{value} bytes"
    raise UntoldError("its auxiliary vector has no page size")


def chosen(text: str) -> str:
    """The one in brackets of ``always [madvise] never``."""
    told, closed, _ = text.partition("[")[2].partition("]")
    if not closed or not told:
        raise UntoldError("nothing is chosen there")
    return told


def interface_towards(route: str, address: str) -> str:
    """The device of /proc/net/route by which packets to ``address`` leave: that of the longest prefix, and of several
    of one length that of the smallest metric.
    """
    wanted = int(ipaddress.IPv4Address(address))
    found: list[tuple[int, int, str]] = []
    for line in route.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        # Both in the machine's byte order, printed as a number: little-endian on x86-64.
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if wanted & mask == destination and re.fullmatch(r"[\w.:@-]{1,15}", fields[0]):
            found.append((-mask, int(fields[6]) % 2**32, fields[0]))  # the kernel prints it with a sign
    if not found:
        raise UntoldError(f"/proc/net/route has no way to {address}")
    return min(found, key=lambda way: way[:2])[2]


def virtio_offloads(bits: str) -> str:
    """What a virtio network device and its driver agreed on, of the bits of its ``features``, the lowest first."""
    on = [name for bit, name in _VIRTIO_NET.items() if bits.strip()[bit : bit + 1] == "1"]
    return ", ".join(on) or "none"


def root_mount(mountinfo: str) -> str:
    """``overlay rw,relatime``: type and options of what is mounted at /, without those that name places or it."""
    if not (told := _mounted(mountinfo, "/")):
        raise UntoldError("nothing is mounted at its /")
    return told


def temporary_files(mountinfo: str) -> str:
    """Where what is written in /tmp lies: ``the root file system``, or what is mounted there, as of `root_mount`."""
    root_mount(mountinfo)
    return _mounted(mountinfo, "/tmp") or "the root file system"


def _mounted(mountinfo: str, place: str) -> str:
    told = ""
    for line in mountinfo.splitlines():
        fields, separator, rest = line.partition(" - ")
        words, after = fields.split(), rest.split()
        if separator and len(words) >= 6 and words[4] == place and after:
            options = [*words[5].split(","), *(after[2].split(",") if len(after) > 2 else [])]
            kept = dict.fromkeys(option for option in options if "/" not in option and not option.startswith("uuid="))
            told = f"{after[0]} {','.join(kept)}"  # the last of those mounted over each other is seen
    return told


def loader(maps: str) -> str | None:
    """The dynamic loader that a process has mapped; None of a static program. Untold where no system has one."""
    if not maps.strip():
        raise UntoldError("its map of memory cannot be seen")
    elsewhere = ""
    for line in maps.splitlines():
        path = line.partition("/")[2].removesuffix(" (deleted)")
        if _LOADER.fullmatch(path.rpartition("/")[2]):
            if _KNOWN_LOADER.fullmatch(found := line[line.index("/") :]):
                return found
            elsewhere = elsewhere or found
    if elsewhere:
        raise UntoldError(f"its loader is {elsewhere[:200]}, where no system has one: it was not run")
    return None


def libc(told: str, path: str) -> str:
    """``glibc 2.36 (Debian GLIBC 2.36-9+deb12u10)`` or ``musl 1.2.3`` from what a loader says of itself."""
    first, second = [*(line[:_MOST_LINE_CHARS] for line in told[: 4 * _MOST_LINE_CHARS].splitlines()), "", ""][:2]
    build, closed, rest = first.partition("ld.so (")[2].partition(")")
    glibc = re.match(r"\d[\d.]*\d", rest.partition(" version ")[2])
    if closed and glibc is not None:
        return f"glibc {glibc[0]} ({build})"
    musl = re.match(r"Version (\S+)", second)
    if first.startswith("musl libc") and musl is not None:
        return f"musl {musl[1]}"
    raise UntoldError(f"{path} does not say its version")
