"""A machine that is reached by ssh: OpenSSH's own client, as the user's ssh_config has it.

Nobody is there to be asked, and no host is believed: no passwords (BatchMode), and a host key that known_hosts does not
have is refused. A connection that is lost is noticed within half a minute. What the other machine says is a stranger's:
bounded, and never trusted.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtoll.errors import CommandError, HostError, Problem
from virtoll.hosts.base import Completed, Host
from virtoll.hosts.local import end_session

LOST = 255  # OpenSSH's exit where the connection, and not the command, failed (ssh(1), EXIT STATUS)
_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",  # known_hosts is the user's
    "ConnectTimeout": "10",  # seconds
    "ConnectionAttempts": "1",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RequestTTY": "no",
    "RemoteCommand": "none",
    "ControlPersist": "no",
    "LogLevel": "ERROR",
}
_CONNECT_S = 60.0  # for a name, a way through other hosts, keys and a login, each bounded by OpenSSH itself
_MOST_SOCKET_CHARS = 108 - 1 - 17  # of sockaddr_un, less its 0 and what OpenSSH appends while it makes the socket
_MOST_SAID_CHARS = 600
_SILENT = "ssh said nothing"  # as where the process that holds a shared connection is killed
# What OpenSSH's client says when it gives up (ssh.c, sshconnect.c, sshconnect2.c, clientloop.c, packet.c), and what it
# means. The first that fits. Keys, known_hosts and configuration are those of whoever runs virtoll (`_OURS`).
_MEANINGS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Hh]ost key for .* has changed",
        "its host key has changed: it is another machine, or somebody is in between",
        "if it was set up anew, `ssh-keygen -R HOST`, then compare and accept the new key{by_hand}: ssh {to}",
    ),
    (
        r"Host key verification failed|host key is known",
        "its host key is not known here",
        "log in once by hand{by_hand}, compare the key, and accept it: ssh {to}",
    ),
    (
        r"Permission denied",
        "it accepts none of our keys",
        "no password is asked for: put a key of {whose} there (`ssh-copy-id {to}`), or name one in {config}",
    ),
    (r"Could not resolve hostname", "its name is not known", "see the destination, and Host in {config}"),
    (
        r"[Cc]onnection timed out|Operation timed out|Connection refused|No route to host|Network is unreachable"
        r"|port \S+: ",
        "it cannot be reached",
        "see that it is up and that its sshd listens: ssh {to} true",
    ),
    (
        r"not responding|[Bb]roken pipe|Connection (closed|reset)|closed by remote host|kex_exchange_identification"
        rf"|[Mm]aster|mux|{_SILENT}",
        "the connection was lost",
        "see that it is up, and what is between: ssh {to} true",
    ),
    (r"[Bb]ad (configuration option|owner or permissions)", "OpenSSH's client refuses its configuration", "mend it"),
)

_OURS = {"by_hand": "", "whose": "yours", "config": "~/.ssh/config"}
_ROOTS = {"by_hand": ", as root (virtoll runs as root)", "whose": "root's", "config": "~root/.ssh/config"}


def flaw(destination: str) -> str:
    """Why ``destination`` ("user@host", "ssh://user@host:port", a Host of ssh_config) is none; "" where it is one."""
    if not destination:
        return "no machine is named"
    if destination.startswith("-") or not re.fullmatch(r"[A-Za-z0-9_.:@/%\[\]+=,~-]{1,255}", destination):
        return f"{destination[:60]!r} is no machine that ssh could reach"
    return ""


def meaning(destination: str, said: str) -> Problem:
    """What OpenSSH's client means that has given up, in a sentence, with its own words and a remedy."""
    words = " ".join(said.split())[-_MOST_SAID_CHARS:] or _SILENT
    user = _ROOTS if os.geteuid() == 0 else _OURS  # where another server measures (`--host`), nobody need be root here
    for pattern, what, remedy in _MEANINGS:
        if re.search(pattern, said.strip() or _SILENT):
            return Problem(f"{what} ({words})", f"ssh {destination}", remedy.format(to=destination, **user))
    remedy = f"try it by hand{user['by_hand']}: ssh -v {destination} true"
    return Problem(f"ssh gave up: {words}", f"ssh {destination}", remedy)


def as_error(problem: Problem) -> HostError:
    """The same, to be raised."""
    return HostError(problem.what, where=problem.where, remedy=problem.remedy)


@dataclass(frozen=True)
class Ssh:
    """The client on ``host``. ``control``: the socket of a connection that commands share; None: each has its own."""

    host: Host
    destination: str
    control: Path | None = None

    def argv(self, command: Sequence[str]) -> list[str]:
        """What runs ``command`` there: the login shell is given one line, in which every word is quoted."""
        return [*self._client("ControlMaster=no"), "--", self.destination, shlex.join(command)]

    def _client(self, master: str) -> list[str]:
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        socket = "none" if self.control is None else str(self.control).replace("%", "%%")
        return ["ssh", "-T", *options, "-o", master, "-S", socket]

    def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True
    ) -> Completed:
        """Run a command there to its end. HostError says why it could not be, or with ``check`` how it failed."""
        try:
            done = self.host.run(self.argv(command), stdin=stdin, timeout_s=timeout_s, check=False)
        except CommandError as error:
            what = error.problem.what.partition(":")[0] if "no end within" in error.problem.what else error.problem.what
            raise HostError(what, where=f"ssh {self.destination}", remedy=error.problem.remedy) from error
        said = done.stderr.decode(errors="replace")
        if done.returncode == LOST:
            raise as_error(meaning(self.destination, said))
        if check and done.returncode != 0:
            told = " ".join(said.split())[-_MOST_SAID_CHARS:] or f"exit {done.returncode}"
            raise HostError(told, where=f"ssh {self.destination}", remedy="the machine's own words: mend it there")
        return done

    def configured(self, key: str) -> str:
        """What ssh_config has of ``key`` for this destination; "" where it does not say. Asks nobody else."""
        done = self.host.run([*self._client("ControlMaster=no"), "-G", "--", self.destination], check=False)
        found = re.search(rf"^{re.escape(key)} (\S{{1,255}})$", done.text, re.MULTILINE)
        return found[1] if found else ""

    @contextmanager
    def connected(self) -> Iterator[None]:
        """One connection for the length of the block, which all share who are given its socket. HostError."""
        assert self.control is not None
        if len(str(self.control)) > _MOST_SOCKET_CHARS:
            what = f"its path is longer than the {_MOST_SOCKET_CHARS} bytes that a socket's may have here"
            remedy = "let VIRTOLL_STATE name a directory with a shorter path"
            raise HostError(what, where=str(self.control), remedy=remedy)
        self.control.unlink(missing_ok=True)  # an earlier one's, which was killed: it would pass for this one's
        argv = [*self._client("ControlMaster=yes"), "-N", "--", self.destination]
        process = self.host.spawn(argv, stderr=subprocess.PIPE)
        assert process.stderr is not None
        try:
            self._await_socket(process)
            yield
        finally:
            end_session(process)
            process.stderr.close()

    def _await_socket(self, process: subprocess.Popen[bytes]) -> None:
        assert self.control is not None
        assert process.stderr is not None
        deadline = time.monotonic() + _CONNECT_S
        while not self.control.exists():  # OpenSSH puts it there when it has logged in
            if process.poll() is not None:
                raise as_error(meaning(self.destination, _said(process.stderr.fileno())))
            if time.monotonic() > deadline:
                what = f"no connection within {_CONNECT_S:g} s"
                raise HostError(what, where=f"ssh {self.destination}", remedy=f"try it by hand: ssh {self.destination}")
            time.sleep(0.01)


def _said(pipe: int) -> str:
    """What is in a pipe now. Its end need not come: a way through other hosts (ProxyCommand) may hold it."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 64 * 1024).decode(errors="replace")
    except BlockingIOError:
        return ""


# -- a directory there --------------------------------------------------------------------------------------------

# Ends who has their root in it, and removes it; $1 is the directory. The kernel tells paths without links: so it is
# looked for as the directory above it is really called. /proc tells of a process in a mount namespace of its own by the
# whole path, too. Mounts are in such namespaces alone, and end with the last process; what else is mounted there is
# nobody's of ours, and is not descended into. (BusyBox' rm cannot be told so.)
EMPTY = """
[ -d "${1%/*}" ] || exit 0
above=$(cd -P -- "${1%/*}" && pwd -P)
at=${above%/}/${1##*/}
working() {
    ls -ld /proc/[0-9]*/root 2>/dev/null | while read -r line; do
        case $line in
            *" -> $at/"*)
                line=${line%% -> *}
                line=${line##*/proc/}
                echo "${line%/root}"
                ;;
        esac
    done
}
tries=0
while left=$(working) && [ -n "$left" ]; do
    tries=$((tries + 1))
    [ $tries -le 100 ] || { echo "processes do not die:" $left >&2; exit 1; }
    kill -9 $left 2>/dev/null || :
    sleep 0.1 2>/dev/null || sleep 1
done
while read -r _ point _; do
    case $point in "$at"/*) echo "$point is mounted there, and not by virtoll" >&2; exit 1 ;; esac
done </proc/mounts
case $(rm --help 2>&1) in *--one-file-system*) stay=--one-file-system ;; *) stay= ;; esac
rm -rf $stay -- "$at"
"""
MADE = "made-by-virtoll"  # lies in a directory that virtoll has made to make others in
# Then the directory above, where it is marked as made by virtoll and nothing else is in it.
_REMOVE = f"""{EMPTY}
if [ "$(ls -A -- "$above")" = {MADE} ]; then
    rm -f -- "$above/{MADE}"
    rmdir -- "$above" 2>/dev/null || (: >"$above/{MADE}") 2>/dev/null || :
fi
"""
_REMOVE_S = 300.0


def script(text: str, *arguments: str) -> list[str]:
    """The command that runs a script of any POSIX shell, which ends at its first error."""
    return ["sh", "-e", "-c", text, "sh", *arguments]


def named(destination: str, directory: str) -> str:
    """How a ledger names a directory there (`virtoll.hosts.resources`, "ssh-directory")."""
    return f"{destination} {directory}"


def directory_is_there(host: Host, name: str) -> bool:
    """Asked before it is made."""
    destination, directory = _parted(name)
    command = script('if [ -e "$1" ] || [ -L "$1" ]; then echo virtoll yes; else echo virtoll no; fi', directory)
    told = Ssh(host, destination).run(command).text
    if not re.search(r"^virtoll (yes|no)$", told, re.MULTILINE):
        raise HostError(f"no answer to be made sense of: {told[:80]!r}", where=f"ssh {destination}")
    return re.search(r"^virtoll yes$", told, re.MULTILINE) is not None


def remove_directory(host: Host, name: str) -> None:
    """With all who work in it. HostError where the machine cannot be reached."""
    destination, directory = _parted(name)
    Ssh(host, destination).run(script(_REMOVE, directory), timeout_s=_REMOVE_S)


def _parted(name: str) -> tuple[str, str]:
    destination, _, directory = name.partition(" ")
    if flaw(destination) or not is_safe(directory):
        raise HostError("is no directory on another machine", where=name)
    return destination, directory


def is_safe(directory: str) -> bool:
    """Whether it is the whole path of a directory that something can be made and removed in."""
    parts = directory.split("/")[1:]
    plain = re.fullmatch(r"(/[A-Za-z0-9_.+-]{1,100}){2,20}", directory) is not None
    return plain and ".." not in parts and "." not in parts
