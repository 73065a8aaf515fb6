"""What is found on a machine that is reached by ssh, before anything is made there: who we are, what there is."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from virtoll.errors import HostError, Problem
from virtoll.hosts.ssh import Ssh, script

# Every Linux has these, in coreutils and util-linux or in BusyBox; tar may lack in the smallest.
PROGRAMS = (
    *("cat", "chroot", "df", "env", "id", "ln", "ls", "mkdir", "mknod", "mount", "mv", "rm", "rmdir", "sleep"),
    *("tar", "uname", "unshare"),
)
# Each line that counts begins with a mark, since a login shell may print what it likes. $1 is the directory that
# something will be made in, the others are programs.
_LOOK = """
say() { printf 'virtoll %s %s\\n' "$1" "$2"; }
say uid "$(id -u)"
say system "$(uname -s)"
say machine "$(uname -m)"
say kernel "$(uname -r)"
say seen_from "${SSH_CONNECTION%% *}"
at=$1
shift
for program; do command -v "$program" >/dev/null 2>&1 || say lacks "$program"; done
if [ -L "$at" ]; then say place "it is a link"
elif [ -e "$at" ] && { [ ! -d "$at" ] || [ ! -O "$at" ]; }; then say place "it is no directory of this user's"; fi
while [ ! -d "$at" ]; do at=${at%/*}; at=${at:-/}; done
real=$(cd -P -- "$at" && pwd -P)
case $real in *[!A-Za-z0-9_.+/-]*) say place "its real path is not plain letters" ;; esac
guarded() {
    step=$1
    while :; do
        ls -ldn -- "$step" | { read -r mode _ user group _ || :; say step "$mode $user $group $step"; }
        [ "$step" != / ] || return 0
        step=${step%/*}
        step=${step:-/}
    done
}
guarded "$at"
guarded "$real"
cpus=0
while read -r key _; do case $key in processor) cpus=$((cpus + 1)) ;; esac; done </proc/cpuinfo
say cpus "$(nproc 2>/dev/null || echo $cpus)"
while read -r key value _; do case $key in MemTotal:) say memory_kib "$value" ;; esac; done </proc/meminfo
say processes "$(cat /proc/sys/kernel/pid_max)"
say processes "$(cat /proc/sys/kernel/threads-max)"
say processes "$(ulimit -u 2>/dev/null)"
df -Pk "$at" | { read -r _; read -r _ _ _ free _; say disk_kib "$free"; }
say end .
"""
_MOST_CHARS = 64 * 1024
_MOST_VALUE_CHARS = 200


@dataclass(frozen=True)
class Machine:
    """What it told of itself; None where it did not. Sizes are those of the whole machine, as its kernel has them."""

    uid: int | None
    system: str
    machine: str  # its architecture: x86_64
    kernel: str
    lacks: tuple[str, ...]  # programs
    place: str  # why nothing can be made where it should be; ""
    open_to: str  # who else could write there, or put something else in its place; ""
    sticky: str  # a directory above it that everybody may write to, and replace nothing in (/tmp); ""
    seen_from: str  # the IPv4 address that it sees us at, by sshd; ""
    cpus: int | None
    memory_bytes: int | None
    processes: int | None  # the lowest bound that was told
    disk_free_bytes: int | None

    @property
    def found(self) -> dict[str, Any]:
        """For a trial's facts."""
        return asdict(self)

    def problems(self, where: str, directory: str, *, kept: bool = False) -> list[Problem]:
        """What keeps an instance from being deployed there; ``kept``: images lie there between runs."""
        ours = os.uname().machine
        found = []
        if self.system != "Linux":
            found.append(Problem(f"it runs {self.system or 'no Linux'}, and not Linux", where, "name a Linux machine"))
        if self.machine != ours:
            what = f"its processor is {self.machine or 'untold'}, and agent and image are for {ours}"
            found.append(Problem(what, where, f"name a machine that is {ours}"))
        if self.uid != 0:
            what = "we are not root there: chroot and mounts need it"
            found.append(Problem(what, where, 'log in as root: destination = "root@...", or User in ~root/.ssh/config'))
        if self.lacks:
            packages = "coreutils, util-linux and tar bring them"
            found.append(Problem(f"there is no {', '.join(self.lacks)}", where, f"install them there: {packages}"))
        if self.open_to:
            what = f"{directory} cannot be used, for what lies there is run as root: {self.open_to}"
            found.append(Problem(what, where, "let `directory` name a place that root alone can write to, or below"))
        elif kept and self.sticky:
            what = f"no image can be kept in {directory}: everybody may write to {self.sticky}, and make it first"
            found.append(Problem(what, where, "let `directory` name another place, or set keep = false"))
        if self.place:
            remedy = "move it away there, or let `directory` name another place"
            found.append(Problem(f"{directory} cannot be used: {self.place}", where, remedy))
        return found


@dataclass(frozen=True)
class _Step:
    """A directory or link on the way to where something is made, judged as by `virtoll.hosts.private`."""

    path: str
    flaw: str = ""  # why it is not root's alone
    is_sticky: bool = False

    @classmethod
    def parse(cls, line: str, directory: str) -> _Step:
        """``drwxr-xr-x 0 0 /var``; with a ``+`` behind the mode the group's bits are those of whomever an ACL names."""
        modes = r"([dl])[-rwxsStT]{4}(.)[-rwxsStT]{2}(.)([-xtT])([.+@]?)"
        found = re.fullmatch(rf"{modes} (\d{{1,10}}) (\d{{1,10}}) (.+)", line)
        if found is None:
            return cls(line, f"who else may write is not told: {line[:60]!r}")
        kind, by_group, by_all, last, mark, user, group, path = found.groups()
        if user != "0":
            return cls(path, f"{path} belongs to user {user}")
        if kind == "l" or not (by_all == "w" or (by_group == "w" and (group != "0" or mark == "+"))):
            return cls(path)
        if last in "tT" and path != directory:
            return cls(path, is_sticky=True)
        return cls(path, f"others may write to {path} ({line.partition(' ')[0]})")


def look(ssh: Ssh, directory: str) -> Machine:
    """Look, and leave no trace. HostError where it cannot be reached, or told nothing."""
    done = ssh.run(script(_LOOK, directory, *PROGRAMS), check=False)
    told = parse(done.stdout.decode(errors="replace"), directory)
    if told is None:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[:300]
        what = f"it has no POSIX shell that answers: {said or 'it said nothing'}"
        raise HostError(
            what, where=f"ssh {ssh.destination}", remedy=f"try it by hand: ssh {ssh.destination} sh -c true"
        )
    return told


def parse(text: str, directory: str = "") -> Machine | None:
    """What it printed; None where it was cut short. Whatever cannot be read is as if it had not been told.

    ``directory``: where something is to be made.
    """
    told: dict[str, list[str]] = {}
    for line in text[:_MOST_CHARS].split("\n"):
        mark, _, rest = line.strip().partition(" ")
        key, _, value = rest.partition(" ")
        if mark == "virtoll":
            told.setdefault(key, []).append(value.strip()[:_MOST_VALUE_CHARS])
    if "end" not in told:
        return None
    steps = [_Step.parse(line, directory) for line in told.get("step", [])]
    return Machine(
        uid=_least(told, "uid"),
        system=_word(told, "system"),
        machine=_word(told, "machine"),
        kernel=_word(told, "kernel"),
        lacks=tuple(name for name in PROGRAMS if name in told.get("lacks", [])),
        place=told.get("place", [""])[0],
        open_to=next((step.flaw for step in steps if step.flaw), "" if steps else "nobody told who else may write"),
        sticky=next((step.path for step in steps if step.is_sticky), ""),
        seen_from=_address(_word(told, "seen_from")),
        cpus=_least(told, "cpus"),
        memory_bytes=_least(told, "memory_kib", 1024),
        processes=_least(told, "processes"),
        disk_free_bytes=_least(told, "disk_kib", 1024),
    )


def _word(told: Mapping[str, list[str]], key: str) -> str:
    word = told.get(key, [""])[0]
    return word if re.fullmatch(r"[A-Za-z0-9_.:+~#-]{1,100}", word) else ""


def _least(told: Mapping[str, list[str]], key: str, unit: int = 1) -> int | None:
    numbers = [int(word) for word in told.get(key, []) if re.fullmatch(r"[0-9]{1,15}", word)]
    return min(numbers) * unit if numbers else None


def _address(word: str) -> str:
    try:
        return str(ipaddress.IPv4Address(word.removeprefix("::ffff:")))
    except ValueError:
        return ""
