"""This machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Completed, Confinement

# Joins the cgroups, then the namespace (nsenter, not `ip netns exec`: that mounts a fresh /sys, which hides the
# cgroup mounts), then execs: the command itself is the process that was started.
_JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit 125; shift; n=$((n-1)); done; exec "$@"'

# A short command must not go on, unowned, after a kill -9 of virtoll. (It follows the thread that waits for it.)
_DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


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
    """The machine virtoll runs on; needs no daemon and keeps no state."""

    where = "localhost"

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
        """Run a command to its end; what it left in its session is killed when it does not end in time."""
        self._expect_program(argv[0])
        process = self.spawn(
            [*_DIE_WITH_US, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            confinement=confinement,
        )
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandError(
                f"no end within {timeout_s:g} s: {shlex.join(argv)}\n{_text(error.stderr or error.stdout or b'')}",
                where=self.where,
                remedy="look at the machine's load; if the command hangs by hand too, mend that first",
            ) from None
        finally:
            end_session(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        done = Completed(tuple(argv), process.returncode, stdout, stderr)
        if check and done.returncode != 0:
            raise CommandError(
                f"exit {done.returncode} from: {shlex.join(argv)}\n{_text(stderr or stdout)}",
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
        self._expect_program(argv[0])
        command = confined(argv, confinement)
        try:
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=None if env is None else {**os.environ, **env},
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

    def _expect_program(self, name: str) -> None:
        if shutil.which(name) is None:
            raise CommandError(
                f"cannot start {name}: there is no such program",
                where=self.where,
                remedy="`virtoll doctor` names the package that brings it",
            )

    def put(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        """Write a file whole."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", where=self.where) from error

    def read(self, path: Path) -> bytes:
        """A file's bytes."""
        try:
            return path.read_bytes()
        except OSError as error:
            raise HostError(f"cannot read {path}: {error.strerror}", where=self.where) from error


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all of its session, unless it has been seen to end, and reap it."""
    # Not poll(): as long as the leader is not reaped, nobody else can have got its process (group) id.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _text(output: bytes) -> str:
    return output.decode(errors="replace").strip()
