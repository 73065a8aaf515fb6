"""What an OCI runtime is told of an instance (the configuration of its bundle), and how the instance is ended.

Reference: the OCI runtime specification 1.0.2, config.md and config-linux.md. A container gets what Docker gives one by
default (capabilities, mounts, masked and read-only paths), less its filter of system calls: a bundle has none unless
it brings one, and `runc spec` writes none.
"""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from virtoll.hosts.base import Host
from virtoll.hosts.programs import Stamp, stamp
from virtoll.images import shifted
from virtoll.platforms import inside, mounts
from virtoll.platforms.groups import Groups
from virtoll.platforms.stdio import PATH, SERVE
from virtoll.study.limits import Limits

_CAPABILITIES = [f"CAP_{name.upper()}" for name in inside.CAPABILITIES.split()]
_READ_ONLY = [f"/proc/{name}" for name in (*inside.PROC_READ_ONLY, "sys", "sysrq-trigger")]
_DEVICES = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None)]  # null ... tty, ptmx, pts
_MAPPING = {"containerID": 0, "hostID": shifted.FIRST, "size": shifted.COUNT}
_STOP_S = 5.0


def write(host: Host, directory: Path, told: dict[str, Any]) -> None:
    """Make ``directory`` a bundle: the configuration ``told`` in it. Its root lies elsewhere."""
    host.put(directory / "config.json", json.dumps(told, indent=1).encode())


def configuration(
    root: Path, groups: Groups, limits: Limits, netns: Path | None, *, user_namespace: bool = False
) -> dict[str, Any]:
    """The bundle of an instance whose root is ``root``; ``netns``: its network, or None for an empty one of its own.

    The CPU quota is the group's, as on every platform. ``user_namespace``: with users of its own (`shifted`).
    Of open files it has this process's own limits: a runtime in Go raises those that it inherits (Go 1.19).
    """
    version = groups.payload.hierarchies.version
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    namespaces.append({"type": "network"} if netns is None else {"type": "network", "path": str(netns)})
    if version == 2:
        namespaces.append({"type": "cgroup"})  # as `runc spec` and Docker have it on either version
    users: dict[str, Any] = {}
    if user_namespace:
        namespaces.append({"type": "user"})
        users = {key: [_MAPPING] for key in ("uidMappings", "gidMappings")}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [*SERVE],
            "env": [PATH],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": soft, "hard": hard}],
            "noNewPrivileges": False,
        },
        "root": {"path": str(root), "readonly": False},
        "hostname": "instance",
        "mounts": _mounts(limits.memory_bytes),
        "linux": {
            "cgroupsPath": f"/{groups.payload.name}/container",
            "namespaces": namespaces,
            **users,
            "maskedPaths": [*inside.MASKED],
            "readonlyPaths": _READ_ONLY,
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}, *_devices()],
                "cpu": {"cpus": ",".join(str(cpu) for cpu in sorted(groups.cpus))},
                "memory": {"limit": limits.memory_bytes},
                "pids": {"limit": limits.pids},
            },
        },
    }


def _mounts(memory_bytes: int) -> list[dict[str, Any]]:
    shared = ["nosuid", "noexec", "nodev"]
    lines: tuple[tuple[str, str, list[str]], ...] = (
        ("/proc", "proc", shared),
        ("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        ("/dev/shm", "tmpfs", ["nosuid", "nodev", "mode=1777", f"size={memory_bytes}"]),
        ("/dev/mqueue", "mqueue", shared),
        ("/sys", "sysfs", [*shared, "ro"]),
        ("/sys/fs/cgroup", "cgroup", [*shared, "relatime", "ro"]),
    )
    return [{"destination": at, "type": kind, "source": kind, "options": options} for at, kind, options in lines]


def _devices() -> list[dict[str, Any]]:
    """What may be used; nodes of all kinds may be made, as in Docker's containers (mknod alone opens nothing)."""
    used: list[dict[str, Any]] = [{"allow": True, "type": kind, "access": "m"} for kind in ("b", "c")]
    for major, minor in _DEVICES:
        rule = {"allow": True, "type": "c", "major": major, "access": "rwm"}
        used.append(rule if minor is None else {**rule, "minor": minor})
    return used


_versions: dict[tuple[str, Stamp | None], str] = {}  # by host and program


def version(host: Host, program: str, *options: str, env: Mapping[str, str] | None = None) -> str:
    """What a program says of itself, asked once: deployments are timed, and an answer takes as long as some of them. A
    worker lives for weeks, so one that was replaced meanwhile is asked again.
    """
    key = (f"{host.where} {program}", stamp(program))
    if key not in _versions:
        _versions[key] = host.run([program, *options, "--version"], env=env).text.partition("\n")[0]
    return _versions[key]


def runtime_version(host: Host, runtime: str) -> str:
    """That of an OCI runtime: without a root crun would make a directory /run/crun and leave it."""
    return version(host, runtime, "--root=/run")


def end(groups: Groups, runtime: subprocess.Popen[bytes]) -> None:
    """Kill the instance and let its runtime, which has waited for that, take away what it has made."""
    groups.payload.kill()
    deadline = time.monotonic() + _STOP_S
    while runtime.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)


_APART = f"""
{mounts.FORGET}{mounts.HIDE}
forget_others "$1" "$2"; hide "$4"; covered=$3 root=$5 shown=$6; shift 6
for path in $covered; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
[ -z "$shown" ] || {{ mkdir "$shown"; mount --bind "$root" "$shown"; }}
exec "$@"
"""


def apart(
    root: Path, argv: list[str], *, covered: Sequence[str | Path] = (), without: str = "", shown: Path | None = None
) -> list[str]:
    """``argv`` in a mount namespace of its own, which ends with it: of all instances' roots only ``root`` is there.

    ``covered``: the host's directories in whose place it writes to memory; ``without``: a kind of file system that it
    is not to see; ``shown``: where the root is to be besides, below one of those that are covered.
    """
    own = ["unshare", "--mount", "--propagation=private", "sh", "-e", "-c", _APART, "sh"]
    return [*own, *mounts.kept(root), " ".join(map(str, covered)), without, str(root), str(shown or ""), *argv]


def hidden_from(runtime: str, version: int) -> str:
    """The kind of file system that this runtime is not to see, if any, for `apart`.

    crun refuses a machine of control groups' version 1 if a controller, though nobody limits with it, is at version 2.
    """
    return "cgroup2" if runtime == "crun" and version == 1 else ""
