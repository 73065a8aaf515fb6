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
case $(cd -P -- "$at" && pwd -P) in *[!A-Za-z0-9_.+/-]*) say place "its real path is not plain letters" ;; esac
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
    seen_from: str  # the IPv4 address that it sees us at, by sshd; ""
    cpus: int | None
    memory_bytes: int | None
    processes: int | None  # the lowest bound that was told
    disk_free_bytes: int | None

    @property
    def found(self) -> dict[str, Any]:
        """For a trial's facts."""
        return asdict(self)

    def problems(self, where: str, directory: str) -> list[Problem]:
        """What keeps an instance from being deployed there."""
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
        if self.place:
            remedy = "move it away there, or let `directory` name another place"
            found.append(Problem(f"{directory} cannot be used: {self.place}", where, remedy))
        return found


def look(ssh: Ssh, directory: str) -> Machine:
    """Look, and leave no trace. HostError where it cannot be reached, or told nothing."""
    done = ssh.run(script(_LOOK, directory, *PROGRAMS), check=False)
    told = parse(done.stdout.decode(errors="replace"))
    if told is None:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[:300]
        what = f"it has no POSIX shell that answers: {said or 'it said nothing'}"
        raise HostError(
            what, where=f"ssh {ssh.destination}", remedy=f"try it by hand: ssh {ssh.destination} sh -c true"
        )
    return told


def parse(text: str) -> Machine | None:
    """What it printed; None where it was cut short. Whatever cannot be read is as if it had not been told."""
    told: dict[str, list[str]] = {}
    for line in text[:_MOST_CHARS].split("\n"):
        mark, _, rest = line.strip().partition(" ")
        key, _, value = rest.partition(" ")
        if mark == "virtoll":
            told.setdefault(key, []).append(value.strip()[:_MOST_VALUE_CHARS])
    if "end" not in told:
        return None
    return Machine(
        uid=_least(told, "uid"),
        system=_word(told, "system"),
        machine=_word(told, "machine"),
        kernel=_word(told, "kernel"),
        lacks=tuple(name for name in PROGRAMS if name in told.get("lacks", [])),
        place=told.get("place", [""])[0],
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
