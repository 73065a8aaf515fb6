"""What an image is: one root filesystem, known by the digest of what it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# In every image, and so in every instance. It is static, and all that is needed: an image may hold no other program.
AGENT = "/virtoll/agent"
JARS = "/virtoll/jars"  # in an image that wants some
PROGRAMS = "/virtoll/programs"  # the same
INSTANCE = "instance"  # the role of what is measured
CONTENTS, MANIFEST = "contents", "manifest.json"  # beside the root filesystem: the list of all paths, and what is in it


@dataclass(frozen=True)
class Image:
    """A built root filesystem in the cache, and the forms derived from it.

    ``rootfs`` is a directory tree, never written to after it was built (platforms lay an overlay or a
    copy-on-write file over it). The agent is in it at `AGENT`. Derived forms (tar, ext4) are files beside
    it, made by `virtoll.images.forms` and found by the same digest.
    """

    name: str  # of the service set, e.g. "proxy"
    digest: str  # sha256 over what it is made from, virtoll's own files, build recipe; 64 hex digits
    directory: Path  # the cache entry: rootfs/, manifest.json, contents, forms

    @property
    def rootfs(self) -> Path:
        """The directory tree."""
        return self.directory / "rootfs"

    @cached_property
    def built(self) -> str:
        """sha256 over what was built: the list of its contents, and its manifest with the versions of its packages.

        Another where the same is built again, of Debian's packages of another day: for who keeps copies elsewhere.
        """
        told = b"".join((self.directory / name).read_bytes() for name in (CONTENTS, MANIFEST))
        return hashlib.sha256(told).hexdigest()


@dataclass(frozen=True)
class Jar:
    """A Java archive by its Maven coordinates, and what it must be (`virtoll.images.jars`)."""

    group: str
    name: str
    version: str
    sha256: str  # 64 hex digits

    @property
    def file(self) -> str:
        """What it is called."""
        return f"{self.name}-{self.version}.jar"

    @property
    def inside(self) -> str:
        """Where it lies in an image."""
        return f"{JARS}/{self.file}"


# The Go that programs are built with: its version, and its digest as a module.
GO = ("1.26.8", "h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=")


@dataclass(frozen=True)
class GoProgram:
    """A program to be built from Go modules, and what it must be (`virtoll.images.go`)."""

    package: str  # "github.com/livekit/livekit-server/cmd/server": the command's
    name: str  # what it is called once built
    go: str  # the version of Go that builds it, "1.26.8"
    go_sum: str  # its digest as a module, "h1:...": go.sum has none of it
    modules: str  # the text of go.mod: each module's version
    sums: str  # of go.sum: each module's digest
    sha256: str  # of what comes of it, 64 hex digits
    source: str = ""  # the text of main.go, where the command is in no module but beside go.mod (package ".")

    @property
    def inside(self) -> str:
        """Where it lies in an image."""
        return f"{PROGRAMS}/{self.name}"


@dataclass(frozen=True)
class Wanted:
    """What an image is to be made of."""

    source: str = ""  # the user's own: "oci:PATH", "oci:PATH:TAG" or "dir:PATH"; "" for Debian packages
    packages: tuple[str, ...] = ()  # Debian names, sorted
    jars: tuple[Jar, ...] = ()  # besides the packages
    programs: tuple[GoProgram, ...] = ()  # the same

    @property
    def is_nothing(self) -> bool:
        """Whether nobody needs an image."""
        return not (self.source or self.packages)


def together(wanted: Iterable[Wanted]) -> Wanted | None:
    """One image for all of them: the same for all, or one of packages, jars and programs with what any of them
    needs. None where
    there is no such image.
    """
    apart = list(dict.fromkeys(wanted))
    if len(apart) == 1:
        return apart[0]
    if any(each.source for each in apart):
        return None
    packages = sorted({package for each in apart for package in each.packages})
    jars = dict.fromkeys(jar for each in apart for jar in each.jars)
    programs = dict.fromkeys(program for each in apart for program in each.programs)
    return Wanted(packages=tuple(packages), jars=tuple(jars), programs=tuple(programs))


@dataclass(frozen=True)
class Images:
    """A root filesystem for each role: what is measured, what stands behind it, who uses it.

    ``configured``: what is measured, by the name of a configuration, where a study's two have an image each;
    ``instance`` is then the first's.
    """

    instance: Image
    origin: Image | None = None
    load: Image | None = None
    configured: Mapping[str, Image] = field(default_factory=dict)

    def of(self, configuration: str) -> Image:
        """What is measured under a configuration; "": the study has none."""
        return self.configured.get(configuration, self.instance)

    @property
    def by_role(self) -> dict[str, Image]:
        """Those there are: "instance", or "instance A" and "instance B"."""
        measured = {f"{INSTANCE} {name}": image for name, image in self.configured.items()}
        behind = {"origin": self.origin, "load": self.load}
        roles = {**(measured or {INSTANCE: self.instance}), **behind}
        return {role: image for role, image in roles.items() if image is not None}
