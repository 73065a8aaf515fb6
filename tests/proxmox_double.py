"""A stand-in for Proxmox VE's programs (pct, qm, pvesm, pveversion), as far as their documents and public source say.

It keeps the cluster's files and the volumes in a directory, and answers with Proxmox's words and exit codes, so that
the whole of the drivers' way can be gone on a machine without Proxmox. It is no Proxmox: its container is a chroot; or,
where it is told to make real ones (``namespaces``), what unshare(1), a control group of Linux and ext4 on a loop device
make. Its virtual machine is an agent behind a socket (`proxmox_machine`). What it proves is that the drivers ask for
what is documented, in an order that works, and leave nothing; nothing about Proxmox itself.

`install` makes the programs; each is ``python proxmox_double.py STATE PROGRAM ARGUMENT...``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxmox_container import Pct
from proxmox_guest import end, read
from proxmox_machine import Qm

NODE = "pve1"
PROGRAMS = ("pct", "qm", "pvesm", "pveversion", "lxc-start", "kvm")
VERSION = "pve-manager/8.4.1/2a5fa54a8503f96d (running kernel: 6.8.12-10-pve)"
# As Proxmox's installer makes them on LVM (pve.proxmox.com/wiki/Installation): name: kind, what it may hold, KiB left.
STORES: dict[str, Any] = {
    "local": {"kind": "dir", "content": ["iso", "vztmpl", "backup"], "available": 60_000_000},
    "local-lvm": {"kind": "lvmthin", "content": ["images", "rootdir"], "available": 137_498_624},
    "local-zfs": {"kind": "zfspool", "content": ["images", "rootdir"], "available": 137_498_624},
    "btr": {"kind": "btrfs", "content": ["images", "rootdir"], "available": 137_498_624},
}


def install(state: Path, *, namespaces: bool) -> Path:
    """Make the programs, with what they keep in ``state``; the directory that they are in. ``namespaces``: containers
    are real ones, which needs a machine; otherwise a chroot must do.
    """
    programs, cluster = state / "bin", state / "pve"
    for directory in (programs, state / "run", state / "volumes", state / "lxc"):
        directory.mkdir(parents=True)
    for name in ("lxc", "qemu-server"):
        (cluster / "nodes" / NODE / name).mkdir(parents=True)
        (cluster / name).symlink_to(f"nodes/{NODE}/{name}")
    (cluster / ".members").write_text(json.dumps({"nodename": NODE, "version": 0}))
    told = {"fails": {}, "stores": STORES, "version": VERSION, "guest": "", "meanwhile": None}
    settings = {"namespaces": namespaces, **told}
    (state / "settings.json").write_text(json.dumps(settings))
    for name in PROGRAMS:
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {state} {name} "$@"\n')
        path.chmod(0o755)
    return programs


def tell(state: Path, **settings: Any) -> None:
    """From now on it behaves so: ``fails`` are verbs that fail, each with an exit code and a message. ``meanwhile``:
    what a guest's file is once `unlock` has waited for whoever made it; "": that has failed, and there is none.
    """
    known = read(state / "settings.json")
    assert settings.keys() <= known.keys()
    (state / "settings.json").write_text(json.dumps({**known, **settings}))


def calls(state: Path) -> list[list[str]]:
    """What the programs were called with, program first."""
    return [json.loads(line) for line in (state / "calls").read_text().splitlines()]


_VERBS = {
    "pct": ("create", "start", "stop", "status", "unlock", "destroy", "exec"),
    "qm": ("create", "start", "stop", "status", "unlock", "destroy", "resume"),
}


def init_of(state: Path, group: str) -> int:
    """The first process of a container, by the control group that it would be in."""
    return int(read(state / "run" / f"{group.rpartition('/')[2]}.json")["init"])


def _of_a_guest(state: Path, program: str, words: list[str]) -> int:
    if not words:
        end(255, "ERROR: no command specified")
    verb, *rest = words
    if verb in (fails := read(state / "settings.json")["fails"]):
        end(*fails[verb])
    if verb not in _VERBS[program]:
        end(255, f"ERROR: unknown command '{program} {verb}'")
    if not rest or not re.fullmatch(r"[1-9]\d{2,8}", rest[0]):
        end(255, "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
    there = (Pct if program == "pct" else Qm)(state, NODE, rest[0])
    return int(getattr(there, verb)(rest[1:]) or 0)


def _pvesm(state: Path, words: list[str]) -> int:
    if words[:1] != ["status"] or words[1::2] != ["--storage", "--content"]:
        end(255, f"400 unable to parse option: {' '.join(words)}")
    stores: Mapping[str, Any] = read(state / "settings.json")["stores"]
    name, content = words[2], words[4]
    if name not in stores:
        end(2, f"storage '{name}' does not exist")
    store = stores[name]
    sizes = "".join(f" {f'{what} (KiB)':>15}" for what in ("Total", "Used", "Available"))
    print(f"{'Name':<12} {'Type':>10} {'Status':>10}{sizes} {'%':>8}")
    if content in store["content"]:
        active = "active" if store.get("active", True) else "inactive"
        total = store["available"] + 1000
        numbers = f"{total:>15} {1000:>15} {store['available']:>15} {100_000 / total:>7.2f}%"
        print(f"{name:<12} {store['kind']:>10} {active:>10} {numbers}")
    return 0


def main(state: Path, program: str, words: list[str]) -> int:
    """Note the call, and answer it."""
    with (state / "calls").open("a") as calls_made:
        calls_made.write(json.dumps([program, *words]) + "\n")
    match program:
        case "pct" | "qm":
            return _of_a_guest(state, program, words)
        case "pvesm":
            return _pvesm(state, words)
        case "pveversion":
            print(read(state / "settings.json")["version"])
        case "kvm":
            print("QEMU emulator version 9.2.0 (pve-qemu-kvm_9.2.0-5)\nCopyright (c) 2003-2024")
        case _:
            print("6.0.0")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
