"""One virtual machine of the stand-in for Proxmox's qm (`proxmox_double`): what qm's verbs do to it, and say.

Its QEMU is a process that holds its arguments to what it knows of them, prints on its console, and lets the real agent
answer behind the socket once it has been let go; what a guest's kernel alone can do is answered in its place.

As a program: proxmox_machine.py STATE NUMBER is that QEMU.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from proxmox_guest import NUMBER, TAGS, YES_OR_NO, Guest, all_stores_answer, end, lives, options_of, purge, read
from xen_double import _guests_answer

PRINTS = b"[    0.5] a kernel's message\r\n"
# Of qm(1), as far as any is used here: what its values look like.
_CREATE = {
    "name": r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?",
    "ostype": "other|wxp|w2k|w2k3|w2k8|wvista|win7|win8|win10|win11|l24|l26|solaris",
    "kvm": YES_OR_NO,
    "cpu": r"[\w.,+-]+",
    "sockets": NUMBER,
    "cores": NUMBER,
    "numa": YES_OR_NO,
    "affinity": r"\d+(-\d+)?(,\d+(-\d+)?)*",
    "cpulimit": r"\d+(\.\d+)?",
    "memory": NUMBER,
    "balloon": NUMBER,
    "virtio0": r"[a-z][\w.-]*:0,import-from=[^,]+(,(cache|aio)=\w+)*",
    "vga": "none|std|serial0|qxl|virtio",
    "tablet": YES_OR_NO,
    "agent": YES_OR_NO,
    "reboot": YES_OR_NO,
    "onboot": YES_OR_NO,
    "args": ".+",
    "tags": TAGS,
    "description": ".*",
}
_DESTROY = {"purge": YES_OR_NO, "destroy-unreferenced-disks": YES_OR_NO, "skiplock": YES_OR_NO}
_PATIENCE_S = 600.0  # against one that nobody lets go nor ends


class Qm(Guest):
    """qm(1), for one virtual machine."""

    kind, directory, first = "VM", "qemu-server", "pid"

    def status(self, words: Sequence[str]) -> None:
        """Of one that is there, locked or not."""
        known = self.known(unlocked=False)
        status = "running" if self.is_running else "stopped"
        if list(words) != ["--verbose"]:
            print(f"status: {status}")
            return
        let_go = self.is_running and (self.state / "run" / f"{self.number}.go").exists()
        told: dict[str, object] = {
            "cpus": known.get("cores", "1"),
            "maxmem": int(known.get("memory", "512")) * 1024**2,
            "name": known.get("name", f"VM {self.number}"),
            "status": status,
            "qmpstatus": ("running" if let_go else "prelaunch") if self.is_running else "stopped",
            "vmid": self.number,
            **({"pid": read(self.runs)["pid"], "running-qemu": "9.2.0"} if self.is_running else {}),
            **({"running-machine": "pc-i440fx-9.2+pve1"} if self.is_running else {}),
        }
        for name in sorted(told):
            print(f"{name}: {told[name]}")
        print("nics:\n\ttap105i0:\n\t\tnetin: 5")

    def create(self, words: Sequence[str]) -> None:
        """A lock first, then the volume, and at last what it is to be."""
        options = options_of(words, _CREATE)
        self.expect_free()
        store, _, rest = options["virtio0"].partition(":")
        if "images" not in read(self.state / "settings.json")["stores"].get(store, {"content": ()})["content"]:
            end(255, f"400 Parameter verification failed.\nstorage: storage '{store}' does not support vm images")
        (source,) = re.findall("import-from=([^,]+)", rest)
        if not Path(source).is_file():
            end(255, f"virtio0: can't find file '{source}'")
        self.configuration.write_text("lock: create\n")
        self.volume.mkdir()
        if read(self.state / "settings.json")["fails"].get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        (self.volume / "raw").write_bytes(Path(source).read_bytes())
        options["virtio0"] = f"{store}:{self.volume.name},{rest.partition(',')[2].partition(',')[2]},size=1M"
        self.write(options)

    def start(self, _words: Sequence[str]) -> None:
        """A QEMU that has nothing to do with qm once it runs; its first words are qm's where it does not."""
        self.known()
        if self.is_running:
            end(255, f"VM {self.number} already running")
        log = self.state / f"{self.number}.log"
        with log.open("wb") as errors:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            command = [sys.executable, __file__, str(self.state), self.number, "-machine", "hpet=off,type=pc+pve1"]
            process = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
        if process.stdout.readline() != b"up\n":
            end(255, f"{log.read_text()}\nstart failed: QEMU exited with code 1")
        self.runs.write_text(json.dumps({"pid": process.pid}))
        self.runs.with_suffix(".pid").write_text(f"{process.pid}\n")

    def resume(self, _words: Sequence[str]) -> None:
        """Let it go."""
        self.known()
        if not self.is_running:
            end(255, f"VM {self.number} not running")
        (self.state / "run" / f"{self.number}.go").touch()

    def stop(self, _words: Sequence[str]) -> None:
        """At once; one that does not run is no error."""
        self.known()
        if self.runs.exists():
            pid = read(self.runs)["pid"]
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
            while lives(pid):
                time.sleep(0.001)
            self._forget()

    def _forget(self) -> None:
        for suffix in (".json", ".pid", ".go"):
            self.runs.with_suffix(suffix).unlink(missing_ok=True)

    def destroy(self, words: Sequence[str]) -> None:
        """With its disk, and with any that no configuration names, if it is told so."""
        options = options_of(words, _DESTROY)
        known = self.known()
        if self.is_running:
            end(255, f"VM {self.number} is running - destroy failed")
        if self.volume.name in known.get("virtio0", ""):
            if said := read(self.state / "settings.json")["fails"].get("free"):
                print(f"Could not remove disk 'local-lvm:{self.volume.name}', check manually: {said[1]}")
            else:
                shutil.rmtree(self.volume, ignore_errors=True)
        if options.get("destroy-unreferenced-disks") == "1":
            all_stores_answer(self.state)
            shutil.rmtree(self.volume, ignore_errors=True)
        self._forget()
        if options.get("purge") == "1":
            purge(self.state)
        self.configuration.unlink()


def _value(arguments: list[str], option: str, begins: str = "") -> str:
    """What follows an option; the process ends where there is no such, as QEMU does."""
    for name, value in pairwise(arguments):
        if name == option and value.startswith(begins):
            return value
    sys.exit(f"kvm: no {option} {begins}")


def machine(state: Path, number: str) -> None:
    """A QEMU, until it is killed."""
    from virtoll.binaries import binary

    lines = (state / f"pve/qemu-server/{number}.conf").read_text().splitlines()
    arguments = shlex.split(next(line for line in lines if line.startswith("args: ")).removeprefix("args: "))
    for option in ("-kernel", "-initrd"):
        if not Path(_value(arguments, option)).is_file():
            sys.exit(f"kvm: could not open {_value(arguments, option)}")
    if "-S" not in arguments or "script=no,downscript=no" not in _value(arguments, "-netdev", "tap,"):
        sys.exit("kvm: what would a guest do before it is wired?")
    path = _value(arguments, "-chardev", "socket,").partition("path=")[2].partition(",")[0]
    told = _value(arguments, "-chardev", "file,").partition("path=")[2]
    console = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    server = socket.socket(socket.AF_UNIX)
    Path(path).unlink(missing_ok=True)
    server.bind(path)
    server.listen(1)
    print("up", flush=True)
    os.close(1)
    connection, _ = server.accept()
    deadline = time.monotonic() + _PATIENCE_S
    while not (state / f"run/{number}.go").exists():
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)
    os.write(console, PRINTS)
    mode = read(state / "settings.json")["guest"]
    if mode == "panics":
        os.write(console, b"[    1.0] Kernel panic - not syncing: no working init found\r\n")
        return
    agent = subprocess.Popen([str(binary("virtoll-agent")), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    answers = agent.stdout.fileno()

    def pass_on() -> None:
        while data := os.read(answers, 65536):
            connection.sendall(data)

    threading.Thread(target=pass_on, daemon=True).start()
    with connection.makefile("rb") as asked:
        for line in asked:
            answer = _guests_answer(line, "", "")
            if answer is None:
                agent.stdin.write(line)
                agent.stdin.flush()
            else:
                connection.sendall(answer)
    agent.kill()
    threading.Event().wait()  # nobody asks any more; a guest does not end by that


if __name__ == "__main__":
    machine(Path(sys.argv[1]), sys.argv[2])
