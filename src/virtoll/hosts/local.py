"""This machine."""

from __future__ import annotations

import contextlib
import copy
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from virtoll.errors import CommandError, DiskError, HostError
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.exchange import MOST_OUTPUT_BYTES, exchange
from virtoll.hosts.interrupts import held_off
from virtoll.hosts.processes import in_session
from virtoll.hosts.programs import find, search_path

# Joins the cgroups, then the namespace (nsenter, not `ip netns exec`: that mounts a fresh /sys, which hides the
# cgroup mounts), then execs: the command itself is the process that was started.
_JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit 125; shift; n=$((n-1)); done; exec "$@"'

# A short command must not go on, unowned, after a kill -9 of virtoll. (It follows the thread that waits for it.)
_DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_DYING_S = 60.0  # a killed process first comes back from what it asked of a disk


def confined(argv: Sequence[str], confinement: Confinement | None) -> list[str]:
    """The command line that runs ``argv`` inside ``confinement``."""
    command = list(argv)
    if confinement is None:
        return command
    if confinement.netns is not None:
        command = ["nsenter", f"--net=/run/netns/{confinement.netns}", "--", *command]
    if confinement.cpus is not None:
        command = ["taskset", "--cpu-list", ",".join(str(cpu) for cpu in sorted(confinement.cpus)), *command]
    if confinement.cgroup_procs:
        files = [str(path) for path in confinement.cgroup_procs]
        command = ["sh", "-c", _JOIN, "sh", str(len(files)), *files, *command]
    return command


class LocalHost:
    """The machine virtoll runs on; needs no daemon and keeps no state.

    ``group``: the cgroup.procs files that every command joins which is told no cgroup of its own. Where that cgroup is
    in the ledger, what a killed virtoll had under way is ended before what it makes is removed; and a command that
    comes to join when the cgroup is gone does not start.
    """

    where = "localhost"

    def __init__(self, group: tuple[Path, ...] = ()) -> None:
        self._group = group

    def within(self, group: tuple[Path, ...]) -> Self:
        """This machine, with its commands in a cgroup."""
        there = copy.copy(self)
        there._group = group
        return there

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        confinement: Confinement | None = None,
    ) -> Completed:
        """Run a command to its end; what it left in its session is killed when it does not end in time.

        One that writes more than 16 MiB to a stream is a CommandError too, whatever ``check`` says.
        """
        process: subprocess.Popen[bytes] | None = None
        try:
            with held_off():  # no interrupt falls between the fork and the assignment
                process = self.spawn(
                    [*_DIE_WITH_US, *self._known(argv)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=env,
                    confinement=confinement,
                )
            said = exchange(process, stdin, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandError(
                f"no end within {timeout_s:g} s: {shlex.join(argv)}\n{_text(error.stderr or error.stdout or b'')}",
                where=self.where,
                remedy="look at the machine's load; if the command hangs by hand too, mend that first",
            ) from None
        finally:
            with held_off():
                _end(process)
        done = Completed(tuple(argv), process.returncode, said.stdout, said.stderr)
        if said.cut:
            raise CommandError(
                f"more than {MOST_OUTPUT_BYTES} B on {' and '.join(said.cut)} (exit {done.returncode}) from: "
                f"{shlex.join(argv)}\n{_text(said.stderr or said.stdout)[:1000]}",
                where=self.where,
                remedy="run the command by hand, and see what it repeats; nothing of what it said was used",
            )
        if check and done.returncode != 0:
            raise CommandError(
                f"exit {done.returncode} from: {shlex.join(argv)}\n{_text(said.stderr or said.stdout)}",
                where=self.where,
                remedy="`virtoll doctor` shows what this machine lacks; the command can be run by hand",
            )
        return done

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.DEVNULL,
        stderr: int | None = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        confinement: Confinement | None = None,
        pass_fds: Sequence[int] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command; where it must not outlive a killed virtoll, give it a cgroup that is in the ledger."""
        if confinement is None or not confinement.cgroup_procs:
            confinement = replace(confinement or Confinement(), cgroup_procs=self._group)
        process: subprocess.Popen[bytes] | None = None
        try:
            with held_off():
                process = subprocess.Popen(
                    confined(self._known(argv), confinement),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env={**os.environ, "PATH": search_path(), **(env or {})},
                    pass_fds=tuple(pass_fds),
                    cwd=cwd,
                    start_new_session=True,
                )
        except OSError as error:
            raise CommandError(
                f"cannot start {argv[0]}: {error.strerror}",
                where=self.where,
                remedy="look at the machine's limits on processes and memory (ulimit -a, free)",
            ) from error
        except KeyboardInterrupt:  # held off until now, when nobody else knows of the process
            with held_off():
                _end(process)
            raise
        return process

    def _known(self, argv: Sequence[str]) -> Sequence[str]:
        """``argv``; CommandError when its program is not installed."""
        if find(argv[0]) is None:
            raise CommandError(
                f"cannot start {argv[0]}: there is no such program",
                where=self.where,
                remedy="`virtoll doctor` names the package that brings it",
            )
        return argv

    def put(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole. HostError where that cannot be; a DiskError where the disk is full."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)
        except OSError as error:
            refused = HostError(f"cannot write {path}: {error.strerror}", where=self.where)
            raise DiskError.of(error) or refused from error

    def read(self, path: Path) -> bytes:
        """A file's bytes."""
        try:
            return path.read_bytes()
        except OSError as error:
            raise HostError(f"cannot read {path}: {error.strerror}", where=self.where) from error


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all of its session, unless it has been seen to end, and reap it.

    When this returns, nobody of the session is left: a killed one may first have to come back from a mount that it
    was in the middle of. HostError when that takes more than 60 s.
    """
    # Not poll(): as long as the leader is not reaped, nobody else can have got its process (group, session) id.
    if process.returncode is not None:
        return
    deadline = time.monotonic() + _DYING_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # at one instant: nobody in the group can fork away
    while living := in_session(process.pid):
        if time.monotonic() > deadline:
            raise HostError(
                f"processes {[one.pid for one in living]} do not die",
                where=f"session {process.pid}",
                remedy="cat /proc/PID/stack shows what each waits for (a dead disk or network mount?)",
            )
        for one in living:  # also those that made a process group of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        time.sleep(0.001)
    process.wait()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End it, if it was ever started, and close our ends of its pipes."""
    if process is not None:
        end_session(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _text(output: bytes) -> str:
    return output.decode(errors="replace").strip()
