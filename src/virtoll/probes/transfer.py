"""How long a file takes from a real FTP server to a real client, over a slice's own channel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from virtoll import strict_json
from virtoll.agent import ExecResult
from virtoll.errors import AgentError, Problem
from virtoll.lab.shaping import burst_bytes
from virtoll.platforms.base import Instance
from virtoll.probes import peers
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult, Slice
from virtoll.record.model import Check, Quantity, Window
from virtoll.services import daemon
from virtoll.study.limits import Limits
from virtoll.units import format_bit_rate, format_bytes, within

_PORT = 21
_DIRECTORY = "/srv/ftp"
_CONFIGURATION = f"{daemon.DIRECTORY}/vsftpd.conf"
_CHROOT = f"{daemon.DIRECTORY}/vsftpd"
_RECEIVED = "/var/tmp/received"
_DISK_SHARE = 0.95  # of an instance's disk that the file may take
_CLOCK_SHARE = 0.01  # an instance's clock may run so much faster than the host's, as of a flow
_MOST_BYTES = 2**63 - 1  # that curl can count
_FILE_S = 3600.0  # to make the file or its digest: an emulated machine is slow at both

# Random, so that nothing on the way can gain by its contents.
_MAKE = f"""
set -e
mkdir -p {_CHROOT}
head --bytes="$1" /dev/urandom >{_DIRECTORY}/file
chmod 644 {_DIRECTORY}/file
sha256sum <{_DIRECTORY}/file
"""


@dataclass(frozen=True)
class TransferSettings:
    """``rate``: of the channel while the ``file`` is fetched (none: the study's own). ``windows``: how often it is.
    ``deadline``: how long that may take each time.

    Less than a megabyte is over before TCP has come to the channel's rate.
    """

    file_bytes: int = within(10**9, least=10**6)
    rate_bit_per_s: int | None = within(None, least=1)
    windows: int = within(3, least=1, most=1000)
    deadline_ns: int = within(3600 * 10**9, least=10**9)

    @property
    def expected_s(self) -> float:
        """About how long it takes over a channel of its ``rate``, or of the papers' 36 Mbit/s."""
        return self.windows * (self.file_bytes * 8 / (self.rate_bit_per_s or 36e6) + 0.5) + 2


class Transfer(Probe):
    """vsftpd in the first slice's far instance, curl in its near one; each fetch is a session of its own."""

    name: ClassVar[str] = "transfer"
    summary: ClassVar[str] = "a tenant's download beside another's: an FTP transfer over a slice's channel"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "transfer_s": Quantity("FTP transfer time", "s", "less"),
        "throughput_mbit_per_s": Quantity("FTP throughput", "Mbit/s", "more"),
        "session_s": Quantity("FTP session, log-in included", "s", "less"),
    }
    headline: ClassVar[str] = "transfer_s"
    packages: ClassVar[tuple[str, ...]] = ("curl", "vsftpd")
    slices: ClassVar[int] = 1
    Settings: ClassVar[type[TransferSettings]] = TransferSettings
    settings: TransferSettings

    def check(self, limits: Limits) -> list[Problem]:
        """The file must fit the disk, at either end."""
        most_bytes = int(limits.disk_bytes * _DISK_SHARE)
        if self.settings.file_bytes <= most_bytes:
            return []
        what = f"{format_bytes(self.settings.file_bytes)} do not fit a disk of {format_bytes(limits.disk_bytes)}"
        return [Problem(what, f"probe {self.name}, file", f"choose {most_bytes} B or less, or more [limits] disk")]

    def run(self, place: Place) -> ProbeResult:
        """Make the file, serve it, fetch it; what came is compared with what was sent after each fetch."""
        one, channel = _at_rate(place.slices[0], self.settings.rate_bit_per_s)
        with channel:
            return self._over(one)

    def _over(self, one: Slice) -> ProbeResult:
        try:
            digest = _text(_run(one.far, _MAKE, str(self.settings.file_bytes))).split()[0]
            with _serving(one.far, one.far_address) as server:
                fetched = [self._fetched(one, digest) for _ in range(self.settings.windows)]
        finally:
            with suppress(AgentError):  # either may have died, and that is not what is to be told
                one.far.agent.run(["rm", "--force", f"{_DIRECTORY}/file"])
                one.near.agent.run(["rm", "--force", _RECEIVED])
        windows = [window for window, _ in fetched]
        wrong = [f"fetch {at}: {what}" for at, (_, what) in enumerate(fetched, 1) if what]
        told = "; ".join(wrong) or f"{len(windows)} times {self.settings.file_bytes} B with SHA-256 {digest}"
        versions = {
            package: _version(instance, package) for package, instance in (("vsftpd", one.far), ("curl", one.near))
        }
        return ProbeResult(
            instrument=" and ".join(f"{name} {version}" for name, version in versions.items()),
            windows=windows,
            facts={"sha256": digest, "rate_bit_per_s": one.rate_bit_per_s, "server": server},
            checks=[Check(name="the file came whole", passed=not wrong, detail=told), *_rate_check(one, windows)],
        )

    def _fetched(self, one: Slice, digest: str) -> tuple[Window, str]:
        """One fetch, and what is wrong with what came ("" for nothing). ProbeError where nothing comes."""
        seconds = self.settings.deadline_ns / 1e9
        words = ["curl", "--silent", "--show-error", "--max-time", f"{seconds:.3f}", "--output", _RECEIVED]
        words += ["--write-out", "%{json}", f"ftp://{one.far_address}/file"]
        start_ns = time.monotonic_ns()
        done = one.near.agent.run(words, timeout_s=seconds + 60)
        took_s = (time.monotonic_ns() - start_ns) / 1e9
        if done.returncode != 0:
            raise _refused(one, done)
        begun_s, session_s, received_bytes = _account(one, done.stdout, took_s)
        transfer_s = session_s - begun_s
        values = {
            "transfer_s": transfer_s,
            "throughput_mbit_per_s": received_bytes * 8 / transfer_s / 1e6,
            "session_s": session_s,
        }
        return Window(
            start_ns=start_ns, duration_ns=round(session_s * 1e9), work=received_bytes, values=values
        ), self._difference(one, received_bytes, digest)

    def _difference(self, one: Slice, received_bytes: int, digest: str) -> str:
        if received_bytes != self.settings.file_bytes:
            return f"{received_bytes} B came"
        found = _text(_run(one.near, f"sha256sum <{_RECEIVED} && rm {_RECEIVED}")).split()[0]
        return "" if found == digest else f"SHA-256 {found}"


def _account(one: Slice, said: bytes, took_s: float) -> tuple[float, float, int]:
    """By curl's own clock, inside, from its start: when the data began to come, and the end of the session's last
    answer (libcurl: CURLINFO_STARTTRANSFER_TIME, CURLINFO_TOTAL_TIME); and how many bytes came. ProbeError of what
    cannot be, by its form or by how long it ``took_s`` by the host's clock: an instance may say anything.
    """
    where = f"probe transfer, slice {one.index + 1}, {one.near.platform}, inside the near instance"
    remedy = "see which curl the image has, and what else is in it: `curl --write-out %{json}` says otherwise"
    try:
        told = strict_json.loads(said)
        begun_s, session_s = float(told["time_starttransfer"]), float(told["time_total"])
        received_bytes = int(told["size_download"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"curl's account of the fetch cannot be read ({type(error).__name__}: {str(error)[:100]})"
        raise ProbeError(what, kind="system", where=where, remedy=remedy) from error
    may_be = 0 <= begun_s < session_s <= took_s * (1 + _CLOCK_SHARE) and 0 <= received_bytes <= _MOST_BYTES
    if not may_be:
        what = f"curl's account of the fetch cannot be: data from {begun_s:g} s on, its end at {session_s:g} s, "
        what += f"{str(received_bytes)[:20]} B; by the host's clock it took {took_s:.3g} s"
        raise ProbeError(what, kind="system", where=where, remedy=remedy)
    return begun_s, session_s, received_bytes


def _at_rate(one: Slice, rate_bit_per_s: int | None) -> tuple[Slice, AbstractContextManager[None]]:
    """The slice, and what gives its channel this rate, if any is wanted."""
    if rate_bit_per_s is None:
        return one, nullcontext()
    if one.reshaped is None:
        raise ProbeError("this slice has no channel that could be given another rate", kind="refused")
    return replace(one, rate_bit_per_s=rate_bit_per_s), one.reshaped(rate_bit_per_s)


@contextmanager
def _serving(far: Instance, address: str) -> Iterator[list[str]]:
    """vsftpd inside, at ``address`` alone, for the length of the block; yields its configuration."""
    lines = configuration(address)
    far.agent.put(_CONFIGURATION, "".join(f"{line}\n" for line in lines).encode())
    pid = peers.started(far, "vsftpd", ["vsftpd", _CONFIGURATION], _PORT)
    try:
        yield lines
    finally:
        with suppress(AgentError):
            far.agent.kill(pid)


def configuration(address: str) -> list[str]:
    """vsftpd.conf(5). Its own sandboxes are off: containers forbid some of them, and all arms must run the same."""
    return [
        "listen=YES",
        "background=NO",
        f"listen_address={address}",
        f"listen_port={_PORT}",
        "anonymous_enable=YES",
        "no_anon_password=YES",
        f"anon_root={_DIRECTORY}",
        f"secure_chroot_dir={_CHROOT}",
        "seccomp_sandbox=NO",
        "isolate=NO",
        "isolate_network=NO",
    ]


def _rate_check(one: Slice, windows: list[Window]) -> list[Check]:
    """No fetch was faster than the channel; its bucket starts full, and is given on top."""
    if one.rate_bit_per_s is None:
        return []
    given_bytes = burst_bytes(one.rate_bit_per_s)
    fastest = max((window.work - given_bytes) * 8 / window.values["transfer_s"] for window in windows)
    told = f"{format_bit_rate(max(fastest, 0))} at most, of {format_bit_rate(one.rate_bit_per_s)}"
    return [Check(name="the channel held its rate", passed=fastest <= one.rate_bit_per_s, detail=told)]


def _run(instance: Instance, script: str, *words: str) -> ExecResult:
    done = instance.agent.run(["sh", "-c", script, "sh", *words], timeout_s=_FILE_S)
    if done.returncode != 0:
        raise ProbeError(
            f"exit {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
            kind="space",
            where=f"probe transfer, {instance.platform}, inside the instance",
            remedy="a smaller file, or more [limits] disk",
        )
    return done


def _text(done: ExecResult) -> str:
    return done.stdout.decode(errors="replace").strip()


def _version(instance: Instance, package: str) -> str:
    return _text(_run(instance, "dpkg-query --show --showformat='${Version}' \"$1\"", package))


def _refused(one: Slice, done: ExecResult) -> ProbeError:
    said = daemon.log_tail(one.far.agent, daemon.log_path("vsftpd"))
    return ProbeError(
        f"curl could not fetch the file (its exit code {done.returncode}): "
        f"{done.stderr.decode(errors='replace').strip()}; the server's log: {said}",
        kind="peer",
        where=f"probe transfer, slice {one.index + 1}",
        remedy="curl(1) explains its exit codes: 23 is a full disk, 28 the deadline",
    )
