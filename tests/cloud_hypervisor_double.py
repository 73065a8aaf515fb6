"""A double of Cloud Hypervisor for the tests, as its docs/ and its API's description (v53) have it: see `vmm_double`.

As a program: cloud_hypervisor_double.py STORE ARGUMENTS.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vmm_double import BOOTED, KERNEL_SAYS, PANIC, Monitor, complain, guest, kernel_file, log, serve, vcpu
from vmm_schemas import VM_CONFIG, RefusalError

_MIB = 1024**2


class Terminal:
    """The monitor's end of a pseudo-terminal (serial_buffer/src/lib.rs): it does not block, and what it does not take
    is kept until the guest says something again.
    """

    def __init__(self, master: int) -> None:
        os.set_blocking(master, False)
        self._master = master
        self._rest = b""
        self._lock = threading.Lock()

    def say(self, data: bytes) -> None:
        with self._lock, suppress(BlockingIOError):
            self._rest += data
            self._rest = self._rest[os.write(self._master, self._rest) :]


class CloudHypervisor(Monitor):
    """A guest that is created, then booted; one that resets is booted anew."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.config: dict[str, Any] | None = None
        self.is_running = False
        self.master = self.slave = -1

    def refusal(self, what: str) -> Any:
        return ["Error from API", what]

    def answer(self, method: str, target: str, body: Any) -> Any:
        path = target.removeprefix("/api/v1")
        asked = (method, path)
        if path == target or asked not in self._requests():
            raise RefusalError(404, "Not Found")
        if (body is not None) != (asked == ("PUT", "/vm.create")):
            raise RefusalError(400, "Bad Request")
        return self._requests()[asked](body)

    def _requests(self) -> dict[tuple[str, str], Callable[[Any], Any]]:
        return {
            ("GET", "/vmm.ping"): lambda _: {"version": "53.0", "build_version": "v53.0", "pid": os.getpid()},
            ("GET", "/vm.info"): lambda _: self._info(),
            ("PUT", "/vm.create"): self._create,
            ("PUT", "/vm.boot"): lambda _: self._boot(),
            ("PUT", "/vmm.shutdown"): lambda _: os._exit(0),
        }

    def _create(self, body: dict[str, Any]) -> None:
        if self.config is not None:
            raise RefusalError(500, "VM is already created")
        VM_CONFIG.hold(body)
        if body.get("cpus", {"boot_vcpus": 1, "max_vcpus": 1})["boot_vcpus"] > body["cpus"]["max_vcpus"]:
            raise RefusalError(400, "Max CPUs lower than boot CPUs")
        self.config = json.loads(json.dumps(body))

    def _info(self) -> Any:
        if self.config is None:
            raise RefusalError(404, "VM is not created")
        config = json.loads(json.dumps(self.config))
        if self.mode() == "other memory":
            config["memory"]["size"] += _MIB
        if self.mode() == "no console":
            config["console"]["file"] = "/etc/passwd"
        return {"config": config, "state": "Running" if self.is_running else "Created"}

    def _boot(self) -> None:
        if self.config is None:
            raise RefusalError(404, "VM is not created")
        if self.is_running:
            raise RefusalError(500, "VM could not boot: InvalidStateTransition(Running, Running)")
        payload = self.config["payload"]
        try:
            kernel_file(payload["kernel"], b"\x7fELF\x02")
            kernel_file(payload["initramfs"], b"070701")
            for disk in self.config.get("disks", []):
                os.close(os.open(disk["path"], os.O_RDWR))
        except OSError as error:
            raise RefusalError(500, f"Cannot open disk path: {error.strerror}") from error
        for net in self.config.get("net", []):
            if net.get("num_queues", 2) != 2:
                raise RefusalError(500, "Tap does not support multiqueue")
            if "ip" in net:
                raise RefusalError(500, "the lab's taps are given no address")
            self.take_tap(net["tap"], "Failed to open tap device")
        self._open_consoles()
        self.is_running = True
        for number in range(self.config["cpus"]["boot_vcpus"]):
            vcpu("a thread" if self.mode() == "other threads" else f"vcpu{number}")
        threading.Thread(target=self._run, daemon=True).start()

    def _open_consoles(self) -> None:
        assert self.config is not None
        self.serial = -1
        if self.config["serial"]["mode"] == "File":
            self.serial = os.open(self.config["serial"]["file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if self.config["serial"]["mode"] == "Tty":
            self.serial = os.dup(1)
        if self.config["console"]["mode"] == "Pty":
            self.master, self.slave = os.openpty()
            tty.setraw(self.slave, termios.TCSANOW)
            self.config["console"]["file"] = os.ttyname(self.slave)

    def _run(self) -> None:
        assert self.config is not None
        arguments = self.config["payload"]["cmdline"].split()
        while True:
            if self.serial >= 0 and "console=ttyS0" in arguments:
                os.write(self.serial, KERNEL_SAYS)
            if "virtoll.probe" in arguments:
                os.write(self.serial, BOOTED)
            elif self.mode() == "panics":
                os.write(self.serial, PANIC)
            elif self.mode() == "is silent":
                threading.Event().wait()
            else:
                guest(self.master, Terminal(self.master).say, self._panic)
            time.sleep(0.05)
            log(self.store, "resets")
            if self.master >= 0:  # its consoles are closed, and others are made
                os.close(self.slave)
                os.close(self.master)
                self._open_consoles()

    def _panic(self) -> None:
        os.write(self.serial, PANIC)


def main(store: Path, words: list[str]) -> int:
    if words == ["--version"]:
        print(f"cloud-hypervisor {(store / 'version').read_text() if (store / 'version').exists() else 'v53.0'}")
        return 0
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--api-socket", "--kernel", "--initramfs", "--cmdline", "--cpus", "--memory", "--serial"):
        parser.add_argument(option)
    parser.add_argument("--console", default="tty")
    told = parser.parse_args(words)
    log(store, "cloud-hypervisor", *words)
    if (store / "cannot-start").exists():
        return complain("Error: Cloud Hypervisor exited with the following error:\n  Cannot open /dev/kvm")
    monitor = CloudHypervisor(store)
    if told.kernel:
        size = re.fullmatch(r"size=(\d+)M", told.memory)
        cpus = re.fullmatch(r"boot=(\d+)", told.cpus)
        assert size, told
        assert cpus, told
        wanted = {
            "payload": {"kernel": told.kernel, "initramfs": told.initramfs, "cmdline": told.cmdline},
            "cpus": {"boot_vcpus": int(cpus[1]), "max_vcpus": int(cpus[1])},
            "memory": {"size": int(size[1]) * _MIB},
            "serial": {"mode": {"tty": "Tty", "off": "Off"}[told.serial]},
            "console": {"mode": {"tty": "Tty", "off": "Off"}[told.console]},
        }
        monitor.answer("PUT", "/api/v1/vm.create", wanted)
        monitor.answer("PUT", "/api/v1/vm.boot", None)
        threading.Event().wait()
    serve(monitor, told.api_socket.removeprefix("path="), "http-server")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
