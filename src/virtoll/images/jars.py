"""Java archives that Debian does not have: by Maven coordinates and digests of a lock file, fetched once, and cached.

    CACHE/jars/<digest12>/    red5-server-1.2.12.jar ...: all of one lock

They come from Maven's central repository, which Debian's Ivy knows by itself (`virtoll.images.workshop`). Nothing that
it brings is believed: a jar is taken if it has the lock's digest, and looked at again each time that it is laid into an
image.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.images import rootfs
from virtoll.images.base import Jar
from virtoll.images.cached import cached
from virtoll.images.workshop import Workshop, expect_locked

PACKAGES = ("ivy", "openjdk-17-jre-headless")

_FETCH_S = 600.0
_LINE = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+) sha256:([0-9a-f]{64})")
_IVY = """
exec java -jar /usr/share/java/ivy.jar -ivy ivy.xml -cache cache \\
    -types jar bundle -retrieve "[artifact]-[revision].[ext]"
"""


def locked(lock: str) -> tuple[Jar, ...]:
    """The archives of a lock file's text: ``group:name:version sha256:HEX`` a line, and comments (#).

    ValueError for a line that is neither.
    """
    jars = []
    for line in lock.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"{line!r} locks no jar: group:name:version sha256:HEX")
        jars.append(Jar(*found.groups()))
    return tuple(jars)


def laid(host: Host, jars: Sequence[Jar], progress: Callable[[str], None]) -> dict[str, Path]:
    """The archives' files, fetched where they are missing, by their places inside an image.

    HostError: they cannot be fetched, or are not what was locked.
    """
    if not jars:
        return {}
    names = "\n".join(f"{jar.group}:{jar.file} {jar.sha256}" for jar in jars)
    entry = cache_directory() / "jars" / hashlib.sha256(names.encode()).hexdigest()[:12]
    try:
        directory = cached(entry, lambda place: _fetch(host, jars, place, progress))
    except OSError as error:
        raise HostError(
            f"jars cannot be written: {error.strerror}",
            where=error.filename or str(entry),
            remedy="make room there, or name another place (VIRTOLL_CACHE)",
        ) from error
    for jar in jars:
        told = f"find out why; then rm -r {directory}, and the next run fetches it anew"
        expect_locked(directory / jar.file, jar.sha256, told)
    return {jar.inside: directory / jar.file for jar in jars}


def _fetch(host: Host, jars: Sequence[Jar], place: Path, progress: Callable[[str], None]) -> None:
    image = rootfs.build(host, "jars", PACKAGES, progress)
    progress(f"fetching {len(jars)} jars from Maven's central repository (once)")
    workshop = Workshop(place / "workshop")
    (workshop.bench / "ivy.xml").write_text(description(jars), encoding="utf-8")
    try:
        said = workshop.do(host, image, _IVY, _FETCH_S)
    except CommandError as error:
        raise _unfetched(host, f"{len(jars)} jars", error.problem.what) from error
    for jar in jars:
        kept = place / jar.file
        if not workshop.take(jar.file, kept, 0o644):  # for services that are not root
            raise _unfetched(host, f"{jar.group}:{jar.name}:{jar.version}", said)
        told = "nothing was kept of it; something between here and there changes it: a proxy?"
        expect_locked(kept, jar.sha256, told)
    workshop.remove()


def description(jars: Sequence[Jar]) -> str:
    """Ivy's description of what is wanted: these archives, and none that they depend on."""
    wanted = "\n".join(
        f'    <dependency org="{escape(jar.group)}" name="{escape(jar.name)}" rev="{escape(jar.version)}"'
        ' transitive="false"/>'
        for jar in jars
    )
    return f"""<ivy-module version="2.0">
  <info organisation="virtoll" module="jars"/>
  <dependencies>
{wanted}
  </dependencies>
</ivy-module>
"""


def _unfetched(host: Host, what: str, said: str) -> HostError:
    """In Ivy's words: first why, and only where that is not told, of what it could not find."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    why = [line for line in lines if re.search(r"\berror\b|exception|^Host .* not found", line, re.IGNORECASE)]
    telling = why or [line for line in lines if re.search(r"not found|fail", line, re.IGNORECASE)] or lines
    return HostError(
        f"{what} cannot be fetched from Maven's central repository:\n" + "\n".join(telling[-6:]),
        where=host.where,
        remedy="check the network; behind a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'",
    )
