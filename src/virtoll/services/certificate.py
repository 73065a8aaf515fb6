"""A certificate of a server's own, made anew for each deployment: nobody trusts it but the client that was told."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from dataclasses import dataclass

from virtoll.errors import HostError

DAYS = 36_500  # a guest's clock that is years off changes nothing


@dataclass(frozen=True)
class Certificate:
    """An ECDSA key on P-256 and its own certificate, both PEM; ``sha256`` is the digest of the certificate's DER."""

    key: bytes
    certificate: bytes
    sha256: str


def made(name: str) -> Certificate:
    """A new one for ``name``. HostError where openssl is missing or fails."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-sha256"]
    argv += ["-days", str(DAYS), "-subj", f"/CN={name}", "-keyout", "-", "-out", "-"]
    try:
        done = subprocess.run(argv, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"no certificate could be made: {error}", remedy="apt-get install openssl") from error
    key, begin, rest = done.stdout.partition(b"-----BEGIN CERTIFICATE-----")
    if not begin:
        raise HostError("openssl printed no certificate", remedy="apt-get install --reinstall openssl")
    der = base64.b64decode(rest.partition(b"-----END")[0])
    return Certificate(key, begin + rest, hashlib.sha256(der).hexdigest())
