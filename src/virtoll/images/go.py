"""Go programs that Debian does not have: built from modules of locked versions and digests, once, and cached.

    CACHE/programs/livekit-server-<digest12>/livekit-server

Debian's Go is older than they ask for: it fetches the one that they are built with, which is a module as any other.
Both know by themselves where modules are to be had (GOPROXY says otherwise). A program is taken if it has the lock's
digest, which the same Go makes of the same modules on whatever machine (no path, no time and no C is in it); and looked
at again each time that it is laid into an image.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.images import rootfs
from virtoll.images.base import GoProgram
from virtoll.images.cached import cached
from virtoll.images.workshop import Workshop, expect_locked

PACKAGES = ("ca-certificates", "golang-go")

_BUILD_S = 3600.0
# Modules' digests are those of go.sum; Go's own is compared before it runs, as Debian's Go computes it.
_SCRIPT = """
export HOME=/mnt GOPATH=/mnt/go GOCACHE=/mnt/cache GOSUMDB=off GOENV=off GOTOOLCHAIN=local
toolchain=golang.org/toolchain@v0.0.1-go{go}.linux-amd64
mkdir empty
(cd empty && go mod download -json $toolchain) >toolchain.json || {{ cat toolchain.json; exit 1; }}
grep -qF '"Sum": "{go_sum}"' toolchain.json || {{ cat toolchain.json; echo 'this Go is not what was locked'; exit 1; }}
chmod -R u+x go/pkg/mod/$toolchain/bin go/pkg/mod/$toolchain/pkg/tool
cd program
export GOOS=linux GOARCH=amd64 GOAMD64=v1 CGO_ENABLED=0
exec ../go/pkg/mod/$toolchain/bin/go build -mod=readonly -trimpath -buildvcs=false -ldflags='-s -w -buildid=' \\
    -o /mnt/program/{name} {package}
"""


def laid(host: Host, programs: Sequence[GoProgram], progress: Callable[[str], None]) -> dict[str, Path]:
    """The programs' files, built where they are missing, by their places inside an image.

    HostError: they cannot be built, or are not what was locked.
    """
    return {program.inside: built(host, program, progress) for program in programs}


def built(host: Host, program: GoProgram, progress: Callable[[str], None]) -> Path:
    """The program's file (`place`), built where it is missing. HostError as `laid`."""
    entry = _entry(program)
    try:
        path = cached(entry, lambda entry: _build(host, program, entry, progress)) / program.name
    except OSError as error:
        raise HostError(
            f"{program.name} cannot be written: {error.strerror}",
            where=error.filename or str(entry),
            remedy="make 3 GB of room there, or name another place (VIRTOLL_CACHE)",
        ) from error
    expect_locked(path, program.sha256, f"find out why; then rm -r {entry}, and the next run builds it anew")
    return path


def place(program: GoProgram) -> Path:
    """Where it lies once it has been built."""
    return _entry(program) / program.name


def _entry(program: GoProgram) -> Path:
    """By all that it is made of, too: where that was changed and what must come of it was not, a build would tell."""
    digest = hashlib.sha256(json.dumps(asdict(program), sort_keys=True).encode()).hexdigest()
    return cache_directory() / "programs" / f"{program.name}-{digest[:12]}"


def _build(host: Host, program: GoProgram, entry: Path, progress: Callable[[str], None]) -> None:
    if platform.machine() != "x86_64":
        raise HostError(f"{program.name} is built for x86-64 only, this is {platform.machine()}", where=host.where)
    tools = rootfs.build(host, "go", PACKAGES, progress)
    progress(f"building {program.name} from Go modules (once; some minutes)")
    workshop = Workshop(entry / "workshop")
    source = workshop.bench / "program"
    source.mkdir()
    (source / "go.mod").write_text(program.modules, encoding="utf-8")
    (source / "go.sum").write_text(program.sums, encoding="utf-8")
    if program.source:
        (source / "main.go").write_text(program.source, encoding="utf-8")
    source.chmod(0o777)  # where nobody makes it
    script = _SCRIPT.format(go=program.go, go_sum=program.go_sum, name=program.name, package=program.package)
    try:
        said = workshop.do(host, tools, script, _BUILD_S)
    except CommandError as error:
        raise _unbuilt(host, program, error.problem.what) from error
    kept = entry / program.name
    if not workshop.take(f"program/{program.name}", kept, 0o755):
        raise _unbuilt(host, program, said)
    told = "nothing was kept of it; something between here and there changes modules: a proxy?"
    expect_locked(kept, program.sha256, told)
    workshop.remove()


def _unbuilt(host: Host, program: GoProgram, said: str) -> HostError:
    lines = [line.strip() for line in said.splitlines() if line.strip() and "downloading" not in line]
    return HostError(
        f"{program.name} cannot be built from Go modules:\n" + "\n".join(lines[-6:]),
        where=host.where,
        remedy="check the network; a proxy of yours is told by HTTPS_PROXY, a mirror of modules by GOPROXY",
    )
