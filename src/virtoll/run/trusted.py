"""Who may speak to whom in a fleet, and Dask as it is used here.

Of Dask distributed there is what carries orders and answers, and tells who is gone. What it does beyond that is
switched off: no task is run twice, stolen, or run beside another, and nothing listens but what was named. All is TLS
with certificates on both sides, on one machine too, where any user may connect; other than in Dask itself, a
certificate must name its host. Whoever has one is trusted: what Dask carries may be code (pickle).
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import dask
import distributed
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import connect

from virtoll.errors import HostError, Problem, StudyError

SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,  # it would look at all threads every 10 ms, beside what is measured
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "1s",
}
REACH_S = 10.0  # until a scheduler answers
MARK = "virtoll"  # the resource that our workers have, and nobody else's
KEPT = "virtoll-kept:"  # the key of what a worker holds as long as the one who gave it is there


def settle(directory: Path | None = None) -> None:
    """Dask as it is used here, in this process.

    ``directory``: for what listens, one that nobody else can write to. Dask imports from there; left to itself, from
    /tmp/dask-scratch-space, whoever made that.
    """
    dask.config.set(SETTINGS | {"temporary-directory": None if directory is None else str(directory)})
    for name in ("distributed", "distributed.client", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Named(distributed.Security):
    """Dask's TLS, but that who is called must be named by its certificate: by name or by address, as it is called."""

    def _get_tls_context(self, tls: dict[str, Any], purpose: ssl.Purpose) -> ssl.SSLContext | None:
        context: ssl.SSLContext | None = super()._get_tls_context(tls, purpose)
        if context is not None and purpose == ssl.Purpose.SERVER_AUTH:
            context.check_hostname = True
        return context


def security(address: str, tls: Path | None) -> distributed.Security:
    """What an address asks for. StudyError for one that is none, or without TLS; HostError where certificates are not
    there, or none.

    ``tls``: the directory of ca.pem (who signs for the fleet), cert.pem and key.pem (of this host).
    """
    scheme, found, rest = address.partition("://")
    if scheme == "tcp" and found:
        what = (
            "who may speak to a scheduler is root on its hosts, and tcp:// asks nobody who that is, on loopback neither"
        )
        raise StudyError([Problem(what, address, "use tls:// and --tls DIRECTORY (docs/SCALE.md makes certificates)")])
    if scheme != "tls" or not found:
        raise StudyError([Problem("no address of a scheduler", address, "write tls://HOST:8786")])
    host_and_port(address, rest)
    if tls is None:
        remedy = "name the directory of ca.pem, cert.pem and key.pem: --tls DIRECTORY (docs/SCALE.md makes them)"
        raise StudyError([Problem("tls:// needs certificates", address, remedy)])
    files = [tls / name for name in ("ca.pem", "cert.pem", "key.pem")]
    try:
        missing = [str(path) for path in files if not path.is_file()]
    except OSError as error:
        what, remedy = f"cannot be looked at: {error.strerror}", "it must be readable by whoever runs virtoll here"
        raise HostError(what, where=f"--tls {tls}", remedy=remedy) from None
    if missing:
        raise HostError(f"not there: {', '.join(missing)}", where=f"--tls {tls}", remedy="docs/SCALE.md makes them")
    _expect_secret(files[-1])
    authority, certificate, key = map(str, files)
    each = {f"tls_{role}_{part}": path for role in ("client", "scheduler", "worker") for part, path in
            (("cert", certificate), ("key", key))}  # fmt: skip
    try:
        found_security = _Named(tls_ca_file=authority, require_encryption=True, **each)
        found_security.get_connection_args("client")
        found_security.get_listen_args("worker")
    except (ssl.SSLError, OSError) as error:
        raise HostError(f"unusable certificates: {error}", where=f"--tls {tls}", remedy="make them anew") from None
    return found_security


def _expect_secret(key: Path) -> None:
    """HostError where others may read it: whoever has it is root on all hosts of the fleet."""
    if key.stat().st_mode & 0o077:
        what = "others may read it, and whoever has it is root on all hosts of the fleet"
        raise HostError(what, where=str(key), remedy=f"let who runs virtoll here own it; chmod 600 {key}")


def host_and_port(address: str, rest: str) -> tuple[str, int]:
    """Of an address, without its scheme. StudyError where there are none."""
    try:
        host, port = parse_host_port(rest)
    except ValueError:
        raise StudyError([Problem("no host and port", address, "write tls://HOST:8786")]) from None
    return str(host), int(port)


async def reach(address: str, secure: distributed.Security, role: str) -> None:
    """HostError, in words, where nobody trustworthy answers."""
    try:
        comm = await connect(address, timeout=REACH_S, **secure.get_connection_args(role))
    except (TimeoutError, OSError) as error:
        raise HostError(unreached(error), where=address, remedy=remedy_of(error)) from None
    comm.abort()


def unreached(error: BaseException | None) -> str:
    """The innermost reason: Dask wraps what TLS has to say."""
    while error is not None and (error.__cause__ or error.__context__) is not None:
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    return f"nobody answers as it should: {error}"


def remedy_of(error: BaseException) -> str:
    """What to do about it."""
    if "certificate" in unreached(error):
        return "give it one that the fleet's ca.pem signed, that names its host, and that has not expired"
    return "start it (`virtoll scheduler`), and see that address and port can be reached from here"
