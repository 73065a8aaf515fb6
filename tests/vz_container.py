"""One container of the stand-in for OpenVZ's vzctl (`vz_double`): what each of vzctl's verbs does to it, and says."""

from __future__ import annotations

import getopt
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import vz_disk
from virtoll.hosts.cgroup import Cgroup, hierarchies, make, remove_above
from virtoll.hosts.local import LocalHost

# libvzctl's lib/vzerror.h
EXEC, NO_CONFIGURATION, INVALID_SYNTAX, INVALID, NOT_RUNNING, RUNNING = 8, 14, 20, 21, 31, 32
NOT_MOUNTED, MOUNTED = 40, 41
EXISTS, BAD_TEMPLATE, NO_PACKAGES, ADD_IMAGE = 44, 47, 91, 163

SLICE = "machine.slice"
BEANCOUNTERS = ("physpages", "swappages", "numproc", "kmemsize", "lockedpages", "privvmpages", "shmpages", "numfile")
_PARAMETERS = (*BEANCOUNTERS, "numflock", "numpty", "numsiginfo", "cpus", "cpulimit", "cpumask", "cpuunits", "onboot")
_ENVIRONMENT = {"HOME": "/", "PATH": "/sbin:/usr/sbin:/bin:/usr/bin", "SHELL": "/bin/bash"}  # vzctl exec's
_BOOT = """
mount -t proc proc "$0/proc"
mount -t sysfs -o ro sysfs "$0/sys"
cd "$0"
mount --move . /
echo up
exec >/dev/null
exec chroot . /sbin/init -z
"""


def group_of(container: str) -> Cgroup:
    """Where vzctl puts it."""
    return Cgroup(f"{SLICE}/{container}", hierarchies())


def running(state: Path) -> list[str]:
    """Those whose first process lives."""
    found = [path.stem for path in sorted((state / "run").glob("*.json"))]
    return [container for container in found if _lives(read(state / "run" / f"{container}.json")["init"])]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def read(path: Path) -> dict[str, Any]:
    """A file of ours."""
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def end(code: int, message: str) -> NoReturn:
    """Fail as the program does."""
    print(message, file=sys.stderr)
    raise SystemExit(code)


def options_of(words: Sequence[str], known: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """As getopt_long(3) has it; a name ends in "=" where it has an argument."""
    try:
        found, rest = getopt.gnu_getopt(list(words), "", list(known))
    except getopt.GetoptError as error:
        end(INVALID, f"vzctl: {error.msg}")
    return {name.lstrip("-"): value for name, value in found}, rest


def _joining(group: Cgroup) -> str:
    """What a shell does to be in a group."""
    return "".join(f'echo $$ >"{path}"; ' for path in group.procs)


class Vzctl:
    """vzctl(8), for one container."""

    def __init__(self, state: Path, container: str) -> None:
        self.state, self.container = state, container
        self.configuration = state / "conf" / f"{container}.json"
        self.runs = state / "run" / f"{container}.json"
        self.mounted = state / "run" / f"{container}.mounted"
        self.namespaces = bool(read(state / "settings.json")["namespaces"])

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        return self.container in running(self.state)

    def known(self) -> dict[str, Any]:
        """Its configuration."""
        if not self.configuration.exists():
            end(NO_CONFIGURATION, "Container configuration file does not exist")
        return read(self.configuration)

    def status(self) -> None:
        """One line, whether it exists or not."""
        exists = self.configuration.exists()
        words = ("exist" if exists else "deleted", "mounted" if self.mounted.exists() else "unmounted")
        print("VEID", self.container, *words, "running" if self.is_running else "down")

    def create(self, words: Sequence[str]) -> None:
        """A container without a disk: `--no-hdd` is all that is asked for here."""
        options, _ = options_of(words, ("no-hdd", "layout=", "private=", "root=", "name=", "ostemplate="))
        if self.configuration.exists():
            end(EXISTS, f"Container {self.container} already exists")
        if options.get("layout", "ploop") != "ploop":
            end(INVALID_SYNTAX, f"Bad parameter for --layout: {options['layout']}")
        if "no-hdd" not in options:
            end(NO_PACKAGES, "The cached package set is not found")
        private = Path(options["private"])
        private.mkdir(parents=True)
        kept = {"private": str(private), "root": options["root"], "name": options["name"], "disk": None}
        self.configuration.write_text(json.dumps({**kept, "parameters": {}}))

    def set(self, words: Sequence[str]) -> None:
        """Parameters, or the disk; kept only with --save."""
        known = self.known()
        disk = ("device-add=", "image=", "mnt=", "size=")
        options, _ = options_of(words, ("save", *disk, *(f"{name}=" for name in _PARAMETERS)))
        if "device-add" in options:
            if "save" not in options:
                end(INVALID, "The --save option have to be used with --device-*")
            if not Path(options["image"], "DiskDescriptor.xml").exists():
                end(ADD_IMAGE, "The --size option have to be specified")
            known["disk"] = options["image"]
        for name in options.keys() & {*_PARAMETERS}:
            if not re.fullmatch(r"\d+|unlimited|yes|no" if name != "cpumask" else r"\d+(,\d+)*", options[name]):
                end(INVALID, f"Bad parameter for --{name}: {options[name]}")
            known["parameters"][name] = options[name]
        if "save" in options:
            self.configuration.write_text(json.dumps(known))
            print(f"Saved parameters for Container {self.container}")

    def start(self) -> None:
        """Unpack the disk where it would be mounted, and run /sbin/init there."""
        known = self.known()
        if self.is_running:
            end(RUNNING, "Container is already running")
        if not known["disk"]:
            end(INVALID, "Container root disk is not configured")
        print("Starting Container ...")
        root = Path(known["root"])
        self.mount()
        if not os.path.lexists(root / "sbin/init"):
            end(BAD_TEMPLATE, "Unable to start init, probably incorrect template")
        init = self._boot(root, known["parameters"]) if self.namespaces else self._chroot(root)
        self.runs.write_text(json.dumps({"init": init}))
        print("Container start in progress...")

    def _chroot(self, root: Path) -> int:
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return subprocess.Popen(["chroot", str(root), "/sbin/init", "-z"], start_new_session=True, **quiet).pid  # type: ignore[call-overload,no-any-return]

    def _boot(self, root: Path, parameters: dict[str, str]) -> int:
        """In namespaces and a control group of its own; and a link to its network, as libvzctl leaves one."""
        group = make(
            hierarchies(),
            f"{SLICE}/{self.container}",
            cpus=frozenset(int(cpu) for cpu in parameters["cpumask"].split(",")),
            cpu_quota=min(float(parameters["cpus"]), float(parameters["cpulimit"]) / 100),
            memory_bytes=int(parameters["physpages"]) * 4096,
            pids=int(parameters["numproc"]),
        )
        spaces = "unshare --mount --propagation private --pid --net --ipc --uts --fork"
        command = ["sh", "-e", "-c", f'{_joining(group)} exec {spaces} sh -e -c "$0" "$1"', _BOOT, str(root)]
        log = Path(self.state, f"{self.container}.log")
        with log.open("wb") as errors:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            process = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
        if process.stdout.readline() != b"up\n":
            end(6, log.read_text())
        init = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        Path("/run/netns").mkdir(exist_ok=True)
        Path("/run/netns", self.container).symlink_to(f"/proc/{init}/ns/net")
        return init

    def exec(self, words: Sequence[str]) -> int:
        """By bash, or by sh, with vzctl's own three variables; the words are joined by blanks."""
        self.known()
        if not self.is_running:
            end(NOT_RUNNING, "Container is not running")
        root, init = Path(self.known()["root"]), read(self.runs)["init"]
        shell = "/bin/bash" if os.path.lexists(root / "bin/bash") else "/bin/sh"
        inside = [shell, "-c", " ".join(words)]
        if self.namespaces:
            flags = ["--mount", "--pid", "--net", "--ipc", "--uts", "--root", "--wd"]
            inside = ["nsenter", "--target", str(init), *flags, "--", *inside]
            inside = ["sh", "-e", "-c", f'{_joining(group_of(self.container))} exec "$@"', "sh", *inside]
        else:
            inside = ["chroot", str(root), *inside]
        program = shutil.which(inside[0])
        assert program is not None
        with subprocess.Popen([program, *inside[1:]], env=_ENVIRONMENT, start_new_session=True) as process:
            if not self.namespaces:
                with Path(self.state, "run", f"{self.container}.entered").open("a") as entered:
                    entered.write(f"{process.pid}\n")
            return process.wait()

    def stop(self) -> None:
        """All of it is killed, as by --fast."""
        self.known()
        if not self.is_running:
            print("Container is not running", file=sys.stderr)
            return
        print("Stopping the Container ...")
        entered = Path(self.state, "run", f"{self.container}.entered")
        pids = [read(self.runs)["init"], *map(int, entered.read_text().split() if entered.exists() else ())]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.namespaces:
            Path("/run/netns", self.container).unlink(missing_ok=True)
            group_of(self.container).remove()
            remove_above(LocalHost(), SLICE)
        while any(map(_lives, pids)):
            time.sleep(0.001)
        entered.unlink(missing_ok=True)
        self._unmount()
        print("Container was stopped")

    def mount(self) -> None:
        """Its disk, at its root."""
        known = self.known()
        vz_disk.attach(Path(known["disk"], "root.hds"), Path(known["root"]), real=self.namespaces)
        self.mounted.touch()

    def umount(self) -> None:
        """The same, undone."""
        self.known()
        if self.is_running:
            end(RUNNING, "Container is running -- stop it first")
        if not self.mounted.exists():
            end(NOT_MOUNTED, "Container is not mounted")
        self._unmount()
        print("Container is unmounted")

    def _unmount(self) -> None:
        known = self.known()
        self.runs.unlink(missing_ok=True)
        if self.mounted.exists():
            vz_disk.detach(Path(known["disk"], "root.hds"), Path(known["root"]), real=self.namespaces)
            self.mounted.unlink()

    def destroy(self) -> None:
        """With its disk."""
        known = self.known()
        if self.is_running:
            end(RUNNING, "Container is currently running. Stop it before proceeding.")
        if self.mounted.exists():
            end(MOUNTED, "Container is currently mounted. Unmount it before proceeding.")
        shutil.rmtree(known["private"])
        Path(known["root"]).rmdir()
        self.configuration.unlink()
        print("Container private area was destroyed")
