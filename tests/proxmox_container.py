"""One container of the stand-in for Proxmox's pct (`proxmox_double`): what each of pct's verbs does to it, and says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from proxmox_guest import NUMBER, TAGS, YES_OR_NO, Guest, all_stores_answer, end, lives, options_of, purge, read
from virtoll.hosts.cgroup import Cgroup, hierarchies, make, remove_above
from virtoll.hosts.local import LocalHost

# Of pct(1), as far as any is used here: what its values look like.
_CREATE = {
    "rootfs": r"[a-z][\w.-]*:\d+(\.\d+)?",
    "arch": "amd64|i386|arm64|armhf|riscv32|riscv64",
    "ostype": "debian|devuan|ubuntu|centos|fedora|opensuse|archlinux|alpine|gentoo|nixos|unmanaged",
    "hostname": r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?",
    "unprivileged": YES_OR_NO,
    "cores": NUMBER,
    "cpulimit": r"\d+(\.\d+)?",
    "cpuunits": NUMBER,
    "memory": NUMBER,
    "swap": NUMBER,
    "onboot": YES_OR_NO,
    "console": YES_OR_NO,
    "tty": "[0-6]",
    "tags": TAGS,
    "description": ".*",
}
_DESTROY = {"force": YES_OR_NO, "purge": YES_OR_NO, "destroy-unreferenced-disks": YES_OR_NO}
_MKFS = ("mkfs.ext4", "-q", "-F", "-O", "mmp", "-E", "root_owner=0:0")
_BOOT = """
mount -t proc proc "$0/proc"
mount -t sysfs -o ro sysfs "$0/sys"
mount -t tmpfs -o mode=755 dev "$0/dev"
for name in null zero full random urandom tty; do touch "$0/dev/$name"; mount --bind "/dev/$name" "$0/dev/$name"; done
mkdir -m 1777 "$0/dev/shm"
mount -t tmpfs -o "mode=1777,size=$2" shm "$0/dev/shm"
cd "$0"
mount --move . /
echo up
exec >/dev/null
exec chroot . "$1"
"""


def group_of(number: str) -> Cgroup:
    """Where LXC puts it, as Proxmox tells it."""
    return Cgroup(f"lxc/{number}", hierarchies())


class Pct(Guest):
    """pct(1), for one container."""

    kind, directory, first = "CT", "lxc", "init"

    def __init__(self, state: Path, node: str, number: str) -> None:
        super().__init__(state, node, number)
        self.mounted = state / "lxc" / number / "rootfs"
        self.namespaces = bool(read(state / "settings.json")["namespaces"])

    def status(self, words: Sequence[str]) -> None:
        """Of one that is there, locked or not."""
        known = self.known(unlocked=False)
        status = "running" if self.is_running else "stopped"
        if list(words) != ["--verbose"]:
            print(f"status: {status}")
            return
        told: dict[str, object] = {
            "cpus": known.get("cores", "2"),
            "maxmem": int(known.get("memory", "512")) * 1024**2,
            "name": known.get("hostname", f"CT{self.number}"),
            "status": status,
            "tags": known.get("tags", ""),
            "type": "lxc",
            "vmid": self.number,
            **({"pid": read(self.runs)["init"]} if self.is_running else {}),
        }
        for name in sorted(told):
            print(f"{name}: {told[name]}")

    def create(self, words: Sequence[str]) -> None:
        """A lock first, then the volume, and at last what it is to be: who is killed between has left just that."""
        archive, options = Path(words[0]), options_of(words[1:], _CREATE)
        self.expect_free()
        store, _, size_gib = options["rootfs"].partition(":")
        if "rootdir" not in read(self.state / "settings.json")["stores"].get(store, {"content": ()})["content"]:
            end(255, f"400 Parameter verification failed.\nstorage: '{store}' does not support container directories")
        if not archive.is_file() or len(words[0]) > 255:
            end(255, f"can't find file '{archive}'")
        if archive.suffix != ".tar":
            end(255, f"file does not look like a template archive: {archive}")
        self.configuration.write_text("lock: create\n")
        size_mib = int(float(size_gib) * 1024)
        self._make_volume(size_mib)
        if read(self.state / "settings.json")["fails"].get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        self._attach()
        print(f"extracting archive '{archive}'")
        unpack = [
            "tar",
            "xpf",
            str(archive),
            "--skip-old-files",
            "--anchored",
            "--exclude",
            "./dev/*",
            "-C",
            str(self.mounted),
        ]
        done = subprocess.run(unpack, capture_output=True, text=True, check=False)
        self._detach()
        if done.returncode:
            end(255, f"unable to create CT {self.number} - {done.stderr}")
        options["rootfs"] = f"{store}:{self.volume.name},size={size_mib}M"
        self.write(options)

    def start(self, _words: Sequence[str]) -> None:
        """Attach the disk and run what the raw lines name."""
        known = self.known()
        if self.is_running:
            end(255, f"CT {self.number} already running")
        self._attach()
        init = self.mounted / known["lxc.init.cmd"].lstrip("/")
        if not os.access(init, os.X_OK):
            self._detach()
            end(255, f"startup for container '{self.number}' failed")
        pid = self._boot(known) if self.namespaces else self._chroot(known["lxc.init.cmd"])
        self.runs.write_text(json.dumps({"init": pid, "entered": []}))

    def _chroot(self, init: str) -> int:
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return subprocess.Popen(["chroot", str(self.mounted), init], start_new_session=True, **quiet).pid  # type: ignore[call-overload,no-any-return]

    def _boot(self, known: dict[str, str]) -> int:
        """In namespaces and a control group of its own."""
        group = make(
            hierarchies(),
            f"lxc/{self.number}",
            cpus=frozenset(int(cpu) for cpu in known["lxc.cgroup2.cpuset.cpus"].split(",")),
            cpu_quota=float(known["cpulimit"]),
            memory_bytes=int(known["memory"]) * 1024**2,
            pids=int(known["lxc.cgroup2.pids.max"]),
        )
        assert known["lxc.net.0.type"] == "empty"
        (shm,) = re.findall(r"shm dev/shm tmpfs .*size=(\d+)", known["lxc.mount.entry"])
        # Who makes the namespaces stays out of the group, as LXC's monitor does: its root is the machine's.
        spaces = ["unshare", "--mount", "--propagation", "private", "--pid", "--net", "--ipc", "--uts", "--fork"]
        boot = f"{_joining(group, '0')}\n{_BOOT}"  # 0: whoever writes it
        command = [*spaces, "sh", "-e", "-c", boot, str(self.mounted), known["lxc.init.cmd"], shm]
        log = self.state / f"{self.number}.log"
        with log.open("wb") as errors:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            process = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
        if process.stdout.readline() != b"up\n":
            end(255, log.read_text())
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    def exec(self, words: Sequence[str]) -> int:
        """As lxc-attach does it, with the caller's environment and ``container``."""
        self.known(unlocked=False)
        if not self.is_running:
            end(255, f"container '{self.number}' not running!")
        if words[:1] != ["--"] or len(words) < 2:
            end(255, "missing command")
        inside, runs = list(words[1:]), read(self.runs)
        if self.namespaces:
            flags = ["--mount", "--pid", "--net", "--ipc", "--uts", "--root", "--wd"]
            inside = ["nsenter", "--target", str(runs["init"]), *flags, "--", *inside]
            inside = ["sh", "-e", "-c", f'{_joining(group_of(self.number))} exec "$@"', "sh", *inside]
        else:
            inside = ["chroot", str(self.mounted), *inside]
        with subprocess.Popen(inside, env={**os.environ, "container": "lxc"}, start_new_session=True) as process:
            self.runs.write_text(json.dumps({**runs, "entered": [*runs["entered"], process.pid]}))
            return process.wait()

    def stop(self, _words: Sequence[str]) -> None:
        """All of it is killed."""
        self.known()
        if not self.is_running:
            end(255, f"CT {self.number} not running")
        self.kill()

    def kill(self) -> None:
        """The same, whoever asks."""
        runs = read(self.runs)
        pids = [runs["init"], *runs["entered"]]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.namespaces:
            group_of(self.number).remove()
            remove_above(LocalHost(), "lxc")
        while any(map(lives, pids)):
            time.sleep(0.001)
        self.runs.unlink()
        self._detach()

    def destroy(self, words: Sequence[str]) -> None:
        """With its disk, and with any that no configuration names, if it is told so."""
        options = options_of(words, _DESTROY)
        known = self.known()
        if self.is_running:
            end(255, f"unable to destroy CT {self.number} - container is running")
        if self.runs.exists():  # it ended by itself: Proxmox's hook has unmounted it
            self.kill()
        if _is_mount(self.mounted):
            end(255, f"lvremove: Logical volume {self.volume.name} contains a filesystem in use.")
        if self.volume.name in known.get("rootfs", ""):
            shutil.rmtree(self.volume, ignore_errors=True)
        if options.get("destroy-unreferenced-disks") == "1":
            all_stores_answer(self.state)
            shutil.rmtree(self.volume, ignore_errors=True)
        if self.mounted.exists():
            self.mounted.rmdir()
            self.mounted.parent.rmdir()
        if options.get("purge") == "1":
            purge(self.state)
        self.configuration.unlink()

    def _make_volume(self, size_mib: int) -> None:
        self.volume.mkdir()
        if self.namespaces:
            subprocess.run(["truncate", "--size", f"{size_mib}M", str(self.volume / "ext4")], check=True)
            subprocess.run([*_MKFS, str(self.volume / "ext4")], check=True)

    def _attach(self) -> None:
        """What it holds, where Proxmox mounts it; where nothing may be mounted, a link in its place."""
        self.mounted.parent.mkdir(exist_ok=True)
        if self.namespaces:
            self.mounted.mkdir(exist_ok=True)
            subprocess.run(
                ["mount", "-t", "ext4", "-o", "loop", str(self.volume / "ext4"), str(self.mounted)], check=True
            )
        else:
            if self.mounted.is_dir():
                self.mounted.rmdir()
            self.mounted.symlink_to(self.volume)

    def _detach(self) -> None:
        if self.namespaces:
            if self.mounted.is_mount():
                subprocess.run(["sync", "--file-system", str(self.mounted)], check=True)
                subprocess.run(["umount", str(self.mounted)], check=True)
        else:
            self.mounted.unlink()
            self.mounted.mkdir()


def _is_mount(path: Path) -> bool:
    return path.is_mount() or path.is_symlink()


def _joining(group: Cgroup, whom: str = "$$") -> str:
    """What a shell does to be in a group."""
    return "".join(f'echo {whom} >"{path}"; ' for path in group.procs)
