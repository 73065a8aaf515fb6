"""Certificates for tests, made by openssl: who signs, and what a host shows."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """Who signs for a fleet. Its keys are of an elliptic curve: those are made in no time."""

    directory: Path

    @classmethod
    def made(cls, directory: Path) -> Authority:
        directory.mkdir(parents=True)
        _openssl(
            directory,
            *("req", "-x509", *_KEY, "-keyout", "ca-key.pem", "-out", "ca.pem", "-days", "30"),
            *("-subj", "/CN=tests", "-addext", "basicConstraints=critical,CA:TRUE"),
        )
        return cls(directory)

    def host(self, name: str, names: str = "IP:127.0.0.1", *, days: int = 30, trusts: Authority | None = None) -> Path:
        """A directory as --tls takes it, of a host with these subject alternative names. ``days`` may lie behind."""
        there = self.directory / name
        there.mkdir()
        (there / "ca.pem").write_bytes(((trusts or self).directory / "ca.pem").read_bytes())
        (there / "names").write_text(f"subjectAltName={names}\n")
        _openssl(there, "req", "-new", *_KEY, "-keyout", "key.pem", "-out", "request.pem", "-subj", f"/CN={name}")
        _openssl(
            there,
            *("x509", "-req", "-in", "request.pem", "-CA", "../ca.pem", "-CAkey", "../ca-key.pem", "-CAcreateserial"),
            *("-out", "cert.pem", "-days", str(days), "-extfile", "names"),
        )
        return there


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)
