"""A double of Firecracker for the tests, as its docs/ and its API's description (1.16) have it: see `vmm_double`.

As a program: firecracker_double.py STORE ARGUMENTS.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vmm_double import BOOTED, KERNEL_SAYS, PANIC, Monitor, complain, guest, kernel_file, log, serve, vcpu
from vmm_schemas import FIRECRACKER, RefusalError

FLOOD = b"[    0.1] what a kernel says at length\r\n" * 6000 + b"[    0.2] the last of it\r\n"


def say(data: bytes) -> None:
    """By the serial line: what its standard output does not take is lost (its stdout does not block)."""
    with suppress(BlockingIOError):
        while data:
            data = data[os.write(1, data[:64]) :]


class Firecracker(Monitor):
    """One guest, told before it is started."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.parts: dict[str, Any] = {}
        self.machine = {"vcpu_count": 1, "mem_size_mib": 128, "smt": False, "track_dirty_pages": False}
        self.is_running = False

    def refusal(self, what: str) -> Any:
        return {"fault_message": what}

    def answer(self, method: str, target: str, body: Any) -> Any:
        if method == "GET":
            if body is not None:
                raise RefusalError(400, "GET request cannot have a body.")
            return self._told(target)
        if body is None:
            raise RefusalError(400, "Empty PUT request.")
        kind, _, rest = target[1:].partition("/")
        schema = FIRECRACKER.get(f"/{kind}")
        if schema is None or bool(rest) != (kind in ("drives", "network-interfaces")):
            raise RefusalError(400, f"Invalid request method and/or path: PUT {target}.")
        schema.hold(body)
        if rest and rest != body["drive_id" if kind == "drives" else "iface_id"]:
            raise RefusalError(400, "The id from the path does not match the id from the body!")
        if kind == "actions" and body["action_type"] == "SendCtrlAltDel" and not self.is_running:
            raise RefusalError(400, "The requested operation is not supported before starting the microVM.")
        if self.is_running and (kind != "actions" or body["action_type"] == "InstanceStart"):
            raise RefusalError(400, "The requested operation is not supported after starting the microVM.")
        getattr(self, f"_put_{kind.replace('-', '_')}")(body)
        return None

    def _told(self, target: str) -> Any:
        state = "Running" if self.is_running else "Not started"
        answers = {
            "/": {"id": "instance", "state": state, "vmm_version": "1.16.1", "app_name": "Firecracker"},
            "/version": {"firecracker_version": "1.16.1"},
            "/machine-config": {**self.machine, **({"vcpu_count": 7} if self.mode() == "other vCPUs" else {})},
        }
        if target not in answers:
            raise RefusalError(400, f"Invalid request method and/or path: GET {target}.")
        return answers[target]

    def _put_machine_config(self, body: dict[str, Any]) -> None:
        self.machine.update(body)

    def _put_boot_source(self, body: dict[str, Any]) -> None:
        for key in ("kernel_image_path", "initrd_path"):
            if key in body and not Path(body[key]).exists():
                raise RefusalError(400, f"Boot source error: {key}: No such file or directory (os error 2)")
        self.parts["boot"] = body

    def _put_drives(self, body: dict[str, Any]) -> None:
        if "path_on_host" not in body or "is_read_only" not in body:
            raise RefusalError(400, "Unable to create the virtio block device: invalid configuration")
        try:
            os.close(os.open(body["path_on_host"], os.O_RDONLY if body["is_read_only"] else os.O_RDWR))
        except OSError as error:
            raise RefusalError(400, f"Error manipulating the backing file: {error.strerror}") from error
        if body["is_root_device"] and "initrd_path" in self.parts.get("boot", {}):
            raise RefusalError(400, "a root device does not go with an initrd (docs/initrd.md)")
        self.parts["drive"] = body

    def _put_network_interfaces(self, body: dict[str, Any]) -> None:
        if not re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", body.get("guest_mac", "02:00:00:00:00:00")):
            raise RefusalError(400, "guest_mac: invalid MAC address")
        self.take_tap(body["host_dev_name"], "Open tap device failed")
        self.parts["net"] = body

    def _put_actions(self, body: dict[str, Any]) -> None:
        if body["action_type"] == "InstanceStart":
            self.start()

    def start(self) -> None:
        """Load the kernel and let it run: what fails here ends nothing, and is told."""
        if "boot" not in self.parts:
            raise RefusalError(400, "Start microvm error: Cannot start microvm without kernel configuration.")
        kernel_file(self.parts["boot"]["kernel_image_path"], b"\x7fELF\x02")  # a bzImage from 1.17 on alone
        kernel_file(self.parts["boot"]["initrd_path"], b"070701")
        self.is_running = True
        os.set_blocking(1, False)
        if self.mode() == "floods":  # before its start is answered: nobody reads yet
            say(FLOOD)
        for number in range(self.machine["vcpu_count"]):
            vcpu("a thread" if self.mode() == "other threads" else f"fc_vcpu {number}")
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        arguments = self.parts["boot"].get("boot_args", "").split()
        # its stand-in for "the devices need ACPI and modules": what would keep the initramfs from loading them
        if {"nomodule", "acpi=off", "8250.nr_uarts=0"} & set(arguments):
            return
        if "console=ttyS0" in arguments:
            say(KERNEL_SAYS)
        if "virtoll.probe" in arguments:
            say(BOOTED)
            self._reset()
        if self.mode() == "panics":
            self._panic()
        if self.mode() != "is silent" and stat.S_ISFIFO(os.fstat(0).st_mode):
            guest(0, say, self._panic)

    def _panic(self) -> None:
        say(PANIC)
        self._reset()

    def _reset(self) -> None:
        """By the keyboard's controller it ends the monitor; a guest that knows no other way stands still."""
        if "reboot=k" in self.parts["boot"].get("boot_args", "").split():
            os._exit(0)
        threading.Event().wait()


def main(store: Path, words: list[str]) -> int:
    if words == ["--version"]:
        print(f"Firecracker {(store / 'version').read_text() if (store / 'version').exists() else 'v1.16.1'}\n")
        # its log, on its standard output as long as nobody has said otherwise
        print(f"{time.time_ns()} [anonymous-instance:main] Firecracker exiting successfully. exit_code=0")
        return 0
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--api-sock", default="/run/firecracker.socket")
    parser.add_argument("--id", default="anonymous-instance")
    parser.add_argument("--log-path", default="/proc/self/fd/1")
    parser.add_argument("--no-api", action="store_true")
    parser.add_argument("--config-file")
    told = parser.parse_args(words)
    log(store, "firecracker", *words)
    logger = os.open(told.log_path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
    os.write(logger, b"2026-01-01T00:00:00.000000000 [instance:main] Running Firecracker v1.16.1\n")
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", told.id):
        return complain("Invalid instance ID", 153)
    monitor = Firecracker(store)
    if told.config_file:
        try:
            of_file(monitor, json.loads(Path(told.config_file).read_text()))
        except RefusalError as error:
            return complain(f"RunWithoutApiError error: {error}")
    if told.no_api:
        threading.Event().wait()
    if (store / "cannot-start").exists():
        return complain("Error: RunWithApi(FailedToBindSocket)")
    serve(monitor, told.api_sock, "fc_api")
    return 0


def of_file(monitor: Firecracker, told: dict[str, Any]) -> None:
    """The configuration file: the API's bodies by their names. It starts the guest."""
    if not {"boot-source", "drives"} <= told.keys():
        raise RefusalError(400, "Configuration for VMM from one single json failed: missing field")
    for part in ("machine-config", "boot-source"):
        monitor.answer("PUT", f"/{part}", told[part])
    for drive in told["drives"]:
        monitor.answer("PUT", f"/drives/{drive['drive_id']}", drive)
    monitor.start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
