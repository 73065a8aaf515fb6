"""What both of the stand-in's guests have of Proxmox's (`proxmox_double`): a number, a file, a volume, a lock."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

YES_OR_NO, NUMBER = r"[01]", r"\d{1,9}"
TAGS = r"[a-z0-9_][a-z0-9_.+-]*(;[a-z0-9_][a-z0-9_.+-]*)*"


def read(path: Path) -> dict[str, Any]:
    """A file of ours."""
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def end(code: int, message: str) -> NoReturn:
    """Fail as the program does."""
    print(message, file=sys.stderr)
    raise SystemExit(code)


def options_of(words: Sequence[str], known: dict[str, str]) -> dict[str, str]:
    """As Proxmox has them: each ``--name value``; all others are refused."""
    found = {}
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name.removeprefix("--") not in known or not name.startswith("--"):
            end(255, f"Unknown option: {name.lstrip('-')}\n400 unable to parse option")
        if not re.fullmatch(known[name[2:]], value):
            end(255, f"400 Parameter verification failed.\n{name[2:]}: value '{value}' does not have the right form")
        found[name[2:]] = value
    if len(words) % 2:
        end(255, f"400 too many arguments: {words[-1]}")
    return found


def all_stores_answer(state: Path) -> None:
    """Fail as Proxmox does where it is to look at all stores, and cannot reach one (PVE::Storage, activate_storage)."""
    for name, store in read(state / "settings.json")["stores"].items():
        if not store.get("active", True):
            end(255, f"storage '{name}' is not online")


def purge(state: Path) -> None:
    """Write the jobs anew, without what Proxmox's parser passes over (PVE::VZDump::Plugin, PVE::SectionConfig)."""
    jobs = state / "pve/jobs.cfg"
    lines = jobs.read_text().splitlines() if jobs.exists() else []
    jobs.write_text("".join(f"{line}\n" for line in lines if not line.startswith("#")))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Guest:
    """What pct and qm do alike, to one guest."""

    kind: ClassVar[str]  # "CT", "VM"
    directory: ClassVar[str]  # of configurations, below a node's
    first: ClassVar[str]  # what its first process is called in ``runs``

    def __init__(self, state: Path, node: str, number: str) -> None:
        self.state, self.number = state, number
        self.told = f"nodes/{node}/{self.directory}/{number}.conf"
        self.configuration = state / "pve" / self.told
        self.runs = state / "run" / f"{number}.json"
        self.volume = state / "volumes" / f"vm-{number}-disk-0"

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        return self.runs.exists() and lives(read(self.runs)[self.first])

    def known(self, *, unlocked: bool = True) -> dict[str, str]:
        """Its configuration."""
        if not self.configuration.exists():
            end(2, f"Configuration file '{self.told}' does not exist")
        found = dict(line.split(": ", 1) for line in self.configuration.read_text().splitlines() if line[0] != "#")
        if unlocked and "lock" in found:
            end(255, f"{self.kind} is locked ({found['lock']})")
        return found

    def expect_free(self) -> None:
        """Fail where anybody in the cluster has its number."""
        for kind, directory in (("CT", "lxc"), ("VM", "qemu-server")):
            for other in self.state.glob(f"pve/nodes/*/{directory}/{self.number}.conf"):
                there = f"{kind} {self.number} already exists on node '{other.parent.parent.name}'"
                end(255, f"unable to create {self.kind} {self.number} - {there}")

    def write(self, options: dict[str, str]) -> None:
        """Its file, with the description as Proxmox has it there."""
        lines = [f"#{options.pop('description', '')}", *(f"{name}: {options[name]}" for name in sorted(options))]
        self.configuration.write_text("".join(f"{line}\n" for line in lines))

    def unlock(self, _words: Sequence[str]) -> None:
        """Take its lock away, and leave all else."""
        meanwhile = read(self.state / "settings.json")["meanwhile"]
        if meanwhile is not None:  # whoever made it has come to its end while this waited for it
            self._made(meanwhile)
        if "lock" not in self.known(unlocked=False):
            end(255, "no lock found trying to remove anylock")
        lines = [line for line in self.configuration.read_text().splitlines() if not line.startswith("lock:")]
        self.configuration.write_text("".join(f"{line}\n" for line in lines))

    def _made(self, configuration: str) -> None:
        if configuration:
            self.configuration.write_text(configuration)
        else:
            shutil.rmtree(self.volume, ignore_errors=True)
            self.configuration.unlink()
