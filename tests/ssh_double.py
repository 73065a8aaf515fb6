"""A double of OpenSSH's client: a program `ssh` on the PATH that runs the command here, and fails as OpenSSH does.

Beside it lie doubles of what only root may do, and what would leave a trace: of mounts and namespaces there are none,
and a chroot is none; the agent it starts is the real one. The machine that it plays is a directory: what it is told to
be lies there as files.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import leaks

# What OpenSSH 9.2 printed on Debian 12, with the addresses of RFC 5737.
SAYS = {
    "unreachable": "ssh: connect to host 192.0.2.7 port 22: Connection timed out",
    "refused": "ssh: connect to host 192.0.2.7 port 22: Connection refused",
    "nameless": "ssh: Could not resolve hostname nowhere: Name or service not known",
    "key": "root@192.0.2.7: Permission denied (publickey).",
    "unknown": "No ED25519 host key is known for 192.0.2.7 and you have requested strict checking.\r\n"
    "Host key verification failed.",
    "changed": "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r\n"
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
    "Host key for 192.0.2.7 has changed and you have requested strict checking.\r\nHost key verification failed.",
    "lost": "client_loop: send disconnect: Broken pipe",
    "silent": "Timeout, server 192.0.2.7 not responding.",
    "closed": "Connection closed by 192.0.2.7 port 22",
    "config": "/root/.ssh/config: line 3: Bad configuration option: hots",
}

_SSH = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path

played, argv, options, control = Path({played!r}), sys.argv[1:], [], None
with (played / "asked").open("a") as asked:
    asked.write(json.dumps(argv) + "\\n")
while (word := argv.pop(0)) != "--":
    if word == "-V":
        sys.exit("OpenSSH_9.2p1 Debian-2+deb12u6, OpenSSL 3.0.16 11 Feb 2025")
    elif word == "-S":
        control = argv.pop(0)
    elif word == "-o":
        argv.pop(0)
    elif word in ("-T", "-N", "-G"):
        options.append(word)
    else:
        sys.exit("no option of this double's: " + word)
destination, *command = argv
if "-G" in options:
    print("host", destination)
    print("hostname 127.0.0.1")
    sys.exit(0)
if (played / "fails").exists():
    print((played / "fails").read_text(), file=sys.stderr)
    sys.exit(255)
if "-N" in options:
    Path(control).touch()
    signal.pause()
(line,) = command
print("welcome to this machine", flush=True)  # as a login shell may
environment = {{
    "PATH": str(played / "bin"),
    "SSH_CONNECTION": "192.0.2.1 50000 192.0.2.7 22",
    {mark!r}: os.environ.get({mark!r}, ""),
}}
there = subprocess.Popen(["/bin/sh", "-c", line], env=environment, process_group=0)
while (code := there.poll()) is None:
    if (played / "loses").exists() and "serve" in line:
        os.killpg(there.pid, signal.SIGKILL)
        print((played / "loses").read_text(), file=sys.stderr)
        sys.exit(255)
    time.sleep(0.005)
sys.exit(code if code >= 0 else 128 - code)
"""

_DOUBLES = {
    # -m -i -p -f COMMAND
    "unshare": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
    # -t overlay -o lowerdir=IMAGE,... virtoll ROOT: a copy of the image is as good
    "mount": 'case $2 in overlay) o=${4#lowerdir=}; for at; do :; done; exec cp -a "${o%%,*}/." "$at" ;; esac',
    "mknod": ': >"$3"',
    # -i NAME=VALUE... COMMAND
    "env": 'while :; do case $1 in -i | *=*) shift ;; *) exec "$@" ;; esac; done',
    # ROOT PROGRAM ARGUMENTS
    "chroot": 'program=$1$2; shift 2; exec "$program" "$@"',
    "id": "cat uid",
    "sync": ":",  # it would wait for all of this machine
    "uname": 'case $1 in -m) cat machine ;; *) exec /usr/bin/uname "$1" ;; esac',
    "df": "cat df",
}
# All of the machine is in its directory, and its root's: what lies above is any machine's.
_LISTING = """#!/bin/sh
case $1 in
    -ldn) case $3 in
        {played}/*) {ls} "$@" | {sed} 's/^\\([^ ]* *[0-9]*\\) {user} /\\1 0 /' ;;
        *) echo "drwxr-xr-x 9 0 0 4096 Jan 1 00:00 $3" ;;
    esac ;;
    *) exec {ls} "$@" ;;
esac
"""
_REAL = ("cat", "cp", "ln", "mkdir", "mv", "nproc", "rm", "rmdir", "sh", "sleep", "tar")


@dataclass(frozen=True)
class Played:
    """The machine that the double plays."""

    directory: Path

    @property
    def place(self) -> str:
        """Where virtoll may make something there."""
        return str(self.directory / "var/virtoll")

    def becomes(self, what: str, text: str) -> None:
        """Its ``uid``, ``machine`` or ``df``; or it ``fails`` to let us in, or ``loses`` the agent's connection."""
        told = self.directory / f"{what}.new"
        told.write_text(text + "\n")
        told.replace(self.directory / what)  # whoever sees that it is there reads all of it

    def recovers(self, what: str) -> None:
        """It does no longer."""
        (self.directory / what).unlink()

    def lacks(self, program: str) -> None:
        """From now on."""
        (self.directory / "bin" / program).unlink()

    @property
    def asked(self) -> list[list[str]]:
        """The words after `ssh`, of each call."""
        path = self.directory / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def left(self) -> list[str]:
        """What lies where something may be made."""
        above = Path(self.place).parent
        return sorted(str(path.relative_to(above)) for path in above.iterdir())


def play(directory: Path, patch: pytest.MonkeyPatch) -> Played:
    """Put the double in front of the PATH."""
    programs, client = directory / "bin", directory / "client"
    for made in (programs, client, directory / "var"):
        made.mkdir(parents=True)
    values = {"python": sys.executable, "played": str(directory), "mark": leaks.MARK}
    _write(client / "ssh", _SSH.format(**values).replace("import os,", "import json, os,"))
    for name, text in _DOUBLES.items():
        looked = f"cd {shlex.quote(str(directory))}\n" if text.startswith(("cat", "case $1 in -m")) else ""
        _write(programs / name, f"#!/bin/sh\n{looked}{text}\n")
    for name in _REAL:
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    real = {"ls": shutil.which("ls"), "sed": shutil.which("sed")}
    _write(programs / "ls", _LISTING.format(played=directory, user=os.geteuid(), **real))
    played = Played(directory)
    for what, text in {"uid": "0", "machine": os.uname().machine, "df": DF.format(free=10 * 1024**2)}.items():
        played.becomes(what, text)
    patch.setenv("PATH", f"{client}:{os.environ['PATH']}")
    return played


DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda1 20000000 1 {free} 1% /"


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
