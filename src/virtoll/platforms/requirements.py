"""What platforms ask of a machine, and say when it is not there."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from virtoll.errors import HostError, PlatformError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.ledger import cache_directory, state_directory
from virtoll.hosts.programs import find, search_path
from virtoll.images import layer
from virtoll.networks.base import Attachment
from virtoll.platforms.base import Platform


def containers_need(host: Host, *commands: tuple[str, str]) -> list[Problem]:
    """What is missing for containers; ``commands`` are pairs of a program and the Debian package that brings it."""
    needed = (*commands, ("mkfs.ext4", "e2fsprogs"))
    problems = [command_missing(host, command, package) for command, package in needed if find(command) is None]
    problems += layer.problems(host)
    if os.geteuid() != 0:
        problems.append(Problem("not root", host.where, "run virtoll with sudo"))
    try:
        filesystems = host.read(Path("/proc/filesystems")).decode().split()
        if "overlay" not in filesystems:
            problems.append(Problem("the kernel has no overlay file system", host.where, "modprobe overlay"))
        missing = {"cpu", "cpuset", "memory", "pids"} - hierarchies().mounts.keys()
        problems += [
            Problem(f"no cgroup controller {name!r}", host.where, f"boot with cgroup_enable={name}")
            for name in sorted(missing)
        ]
    except HostError as error:
        problems.append(error.problem)
    return problems


_OURS = {"VIRTOLL_STATE": state_directory, "VIRTOLL_CACHE": cache_directory}


def out_of_sight(platform: str, covered: Sequence[str], *variables: str) -> list[Problem]:
    """Why it could not find what virtoll keeps for it: ``covered`` are the directories in whose place it writes to
    memory, ``variables`` name those of virtoll's that it looks into.
    """
    problems = []
    for variable in variables:
        try:
            directory = _OURS[variable]()
        except HostError as error:
            problems.append(error.problem)
            continue
        for place in covered:
            if directory.is_relative_to(os.path.realpath(place)):
                what = (
                    f"{directory} lies below {place}, which {platform} covers with memory of its own: it sees nothing"
                )
                problems.append(Problem(what, variable, f"let {variable} name a directory elsewhere, or leave it out"))
    return problems


def other_machine(host: Host) -> list[Problem]:
    """Why no guest boots here, where the processor is none that virtoll has kernels for."""
    if platform.machine() == "x86_64":
        return []
    return [Problem(f"virtoll boots x86-64 guests only, this is {platform.machine()}", host.where)]


def command_missing(host: Host, command: str, package: str) -> Problem:
    """The Problem of a program that is not installed."""
    return Problem(f"{command} is not installed", host.where, f"apt-get install {package}")


def too_old(
    host: Host,
    command: str,
    least: tuple[int, int],
    env: Mapping[str, str] | None = None,
    remedy: str = "install a newer one (Debian 12 has it), or leave the platform out",
) -> list[Problem]:
    """Why a program that is installed lacks options that it is given here; it tells its version as all do."""
    if find(command) is None:
        return []
    told = host.run([command, "--version"], check=False, env=env).text.partition("\n")[0][:80]
    found = re.search(r"(\d{1,4})\.(\d{1,4})", told)
    if found and (int(found[1]), int(found[2])) >= least:
        return []
    what = f"{command} {least[0]}.{least[1]} or later is needed, and this one says {told!r}"
    return [Problem(what, host.where, remedy)]


def bare(argv: Sequence[str], **variables: str) -> list[str]:
    """``argv`` with an environment of PATH and ``variables``: the rest of the caller's is no instance's business."""
    shown = {"PATH": search_path(), **variables}
    return ["env", "-i", *(f"{name}={value}" for name, value in shown.items()), *argv]


def refuse_kind(asked: Platform, attachment: Attachment) -> None:
    """PlatformError when the platform cannot take an attachment of this kind (planning should have refused it)."""
    if attachment.kind not in asked.attached_as:
        raise PlatformError(
            f"cannot take an attachment of kind {attachment.kind!r} (mode {attachment.mode})",
            where=asked.name,
            remedy=f"choose a network mode that offers {' or '.join(asked.attached_as)}",
        )
