"""What an image asks for: the command it runs, as whom, where, with which environment, on which ports.

Words and rules are Docker's (opencontainers/image-spec v1.0, config.md; moby, daemon/oci_linux.go and user):
the process is the entrypoint with the command as its arguments; a study's command takes the place of the image's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtoll.errors import HostError
from virtoll.images import inside
from virtoll.offers import Port

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_ACCOUNTS_BYTES = 4 * 1024**2  # of /etc/passwd, and of /etc/group
_MOST_ID = 2**31 - 1  # as Docker has it


@dataclass(frozen=True)
class ImageConfig:
    """An image's configuration. Labels, health checks and build steps are not kept."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # in the image's order
    working_dir: str = "/"
    user: str = ""  # "", "name", "1000", "name:group", "1000:1000"
    volumes: tuple[str, ...] = ()  # plain directories of the root: every instance has a writable layer of its own
    ports: tuple[Port, ...] = ()  # those of tcp and udp; what the image says it listens on, no proof of it
    stop_signal: str = "SIGTERM"

    def argv(self, command: Sequence[str] | None = None) -> tuple[str, ...]:
        """The command line; ``command`` replaces the image's. Empty where neither says anything."""
        return (*self.entrypoint, *(self.command if command is None else command))

    @property
    def runs_as(self) -> str:
        """``user`` for the agent, which takes no empty word: to Docker ":GROUP" is root's, "USER:" has USER's own."""
        name, _, group = self.user.partition(":")
        return ":".join(word for word in (name or "0", group) if word)

    def plain(self) -> dict[str, Any]:
        """For a JSON document; `stored` reads it back."""
        return {**vars(self), "ports": [str(port) for port in self.ports]}

    @classmethod
    def stored(cls, plain: Mapping[str, Any]) -> ImageConfig:
        """What `plain` gave, from JSON."""
        return cls(
            entrypoint=tuple(plain["entrypoint"]),
            command=tuple(plain["command"]),
            env=tuple((name, value) for name, value in plain["env"]),
            working_dir=plain["working_dir"],
            user=plain["user"],
            volumes=tuple(plain["volumes"]),
            ports=tuple(Port.parse(port) for port in plain["ports"]),
            stop_signal=plain["stop_signal"],
        )


@dataclass(frozen=True)
class Process:
    """How a command is started inside: all that execve, setresuid and chdir need."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    working_dir: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()  # besides gid


def parse(document: Mapping[str, Any], where: str) -> ImageConfig:
    """The configuration of an image's own document. HostError says which of its entries is wrong."""
    said = document.get("config") or {}
    if not isinstance(said, dict):
        raise _wrong("config", said, where)
    env = [entry.partition("=") for entry in _strings(said, "Env", where)]
    exposed = [_port(key, where) for key in _keys(said, "ExposedPorts", where)]
    return ImageConfig(
        entrypoint=_strings(said, "Entrypoint", where),
        command=_strings(said, "Cmd", where),
        env=tuple((name, value) for name, equals, value in env if name and equals),
        working_dir=_absolute(_string(said, "WorkingDir", where)),
        user=_string(said, "User", where),
        volumes=tuple(_absolute(path) for path in _keys(said, "Volumes", where)),
        ports=tuple(sorted(port for port in exposed if port is not None)),
        stop_signal=_string(said, "StopSignal", where) or "SIGTERM",
    )


def process(
    config: ImageConfig, rootfs: Path, command: Sequence[str] | None = None, env: Iterable[tuple[str, str]] = ()
) -> Process:
    """What is started for ``config`` in an instance of ``rootfs``; ``command`` and ``env`` are the study's.

    As Docker does, PATH and HOSTNAME come first where the image says nothing of them, and HOME is the user's.
    HostError: there is no command, or no such user.
    """
    argv = config.argv(command)
    if not argv:
        raise HostError(
            "the image has no entrypoint and no command",
            where=str(rootfs),
            remedy="set command = [...] in the study file",
        )
    uid, gid, groups, home = _account(config.user, rootfs)
    variables = {"PATH": DEFAULT_PATH, "HOSTNAME": "instance", **dict(config.env), **dict(env)}
    return Process(
        argv, tuple({**variables, "HOME": variables.get("HOME", home)}.items()), config.working_dir, uid, gid, groups
    )


def _account(user: str, rootfs: Path) -> tuple[int, int, tuple[int, ...], str]:
    """User, group, further groups and home of ``user``, after the image's /etc/passwd and /etc/group.

    A number is never a name, and needs no entry there. Without a group it is the entry's (0 where there is none), and
    the further groups are those that list the name; with a group it is that one alone.
    """
    name, _, group = user.partition(":")
    name = name or "0"
    accounts = [fields for fields in _table(rootfs, "/etc/passwd") if len(fields) >= 4]  # home and shell may be missing
    column = 2 if name.isdecimal() else 0
    entry = next((one for one in accounts if one[column] == name), None)
    if entry is None and not name.isdecimal():
        raise _unknown("user", name, "/etc/passwd", rootfs)
    uid = _id(entry[2] if entry else name, rootfs)
    home = (entry[5] if entry and len(entry) > 5 else "") or "/"
    groups = [fields for fields in _table(rootfs, "/etc/group") if len(fields) >= 4]
    if not group:
        gid = _id(entry[3], rootfs) if entry else 0
        more = {_id(one[2], rootfs) for one in groups if entry and entry[0] in one[3].split(",")}
        return uid, gid, tuple(sorted(more - {gid})), home
    found = group if group.isdecimal() else next((one[2] for one in groups if one[0] == group), None)
    if found is None:
        raise _unknown("group", group, "/etc/group", rootfs)
    return uid, _id(found, rootfs), (), home


def _table(rootfs: Path, path: str) -> list[list[str]]:
    """The lines of a file as passwd(5) has them; empty where there is none, as in images from scratch."""
    data = inside.read(rootfs, path, _MOST_ACCOUNTS_BYTES)
    lines = data.decode(errors="replace").splitlines()
    return [line.split(":") for line in lines if line and not line.startswith("#")]


def _id(digits: str, rootfs: Path) -> int:
    if not re.fullmatch(r"\d{1,10}", digits) or int(digits) > _MOST_ID:
        raise HostError(
            f"{digits[:40]!r} is no user's or group's number", where=str(rootfs), remedy=f"they are 0 to {_MOST_ID}"
        )
    return int(digits)


def _unknown(what: str, name: str, path: str, rootfs: Path) -> HostError:
    return HostError(
        f"the image runs as {what} {name[:100]!r}, whom its {path} does not know",
        where=str(rootfs),
        remedy="add the account to the image, or name a number",
    )


def _port(text: str, where: str) -> Port | None:
    number, _, protocol = text.partition("/")
    if protocol not in ("", "tcp", "udp"):
        return None  # sctp: nothing here speaks it
    try:
        return Port.parse(f"{number}/{protocol or 'tcp'}")
    except ValueError:
        raise _wrong("ExposedPorts", text, where) from None


def _absolute(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return f"/{'/'.join(parts)}"


def _string(said: Mapping[str, Any], key: str, where: str) -> str:
    value = said.get(key) or ""
    if not isinstance(value, str) or "\0" in value:
        raise _wrong(key, value, where)
    return value


def _strings(said: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = said.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, str) and "\0" not in one for one in value):
        raise _wrong(key, value, where)
    return tuple(value)


def _keys(said: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Those of an object, which is how the format writes a set."""
    value = said.get(key) or {}
    if not isinstance(value, dict) or any("\0" in one for one in value):
        raise _wrong(key, value, where)
    return tuple(value)


def _wrong(key: str, value: object, where: str) -> HostError:
    return HostError(
        f"the image's configuration is wrong: {key} = {str(value)[:100]}", where=where, remedy="build the image again"
    )
