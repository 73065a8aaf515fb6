"""Red5, a Java server of RTMP: live, and films on demand.

It is put together from its parts on Maven's central repository (``red5.lock``), with a configuration of our own
(``red5_conf``) and no Tomcat, so that RTMP is all that it speaks. That is version 1.2.12, of January 2022. The one that
is newer there, 1.3.17, cannot play films: its scheduler forgets what a repeated job is after the job's first run (a map
that is cleared in JDKSchedulingServiceJob), so that a viewer gets what fits into one turn, some hundreds of kilobytes,
and then nothing. Red5 mended that in 1.3.26, of which that repository has no server.

Films on demand go out one message (a frame, or a packet of audio) every 10 ms at most, until the viewer has twice the
buffer that it asks for: films of more than 100 messages a second would stall, and `virtoll.films` makes 72.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar

from virtoll import films
from virtoll.errors import Problem
from virtoll.films import Form
from virtoll.images.base import Wanted
from virtoll.images.jars import locked
from virtoll.offers import Content, Film, Offer, Rtmp
from virtoll.platforms.base import Instance
from virtoll.services import daemon, rtmp
from virtoll.services.base import Service, Visitor
from virtoll.study.limits import Limits

_HERE = files("virtoll.services")
_HOME = f"{daemon.DIRECTORY}/red5"
_LISTENS_S = 300.0  # it takes 2 s of a CPU, and an emulated one is slower by an order of magnitude or two
_READY_S = 120.0
# Within so much of what it says after the handshake a client is let in, and a film's beginning is to be seen. It sends
# chunks of 128 bytes, and of each frame the first is in one piece.
_ADMITTED_BYTES, _SEEN_BYTES, _FRAME_BYTES = 384, 4096, 100
_ADMITTED = {"that it lets a client in": b"NetConnection.Connect.Success"}


@dataclass(frozen=True)
class Red5Settings:
    """Settings of Red5. ``live``: streams are there while somebody publishes them; else films are played from files."""

    live: bool = False


class Red5(Service):
    """Red5 on Debian's OpenJDK 17."""

    name: ClassVar[str] = "red5"
    summary: ClassVar[str] = "Red5: RTMP on demand or live from a Java virtual machine"
    packages: ClassVar[tuple[str, ...]] = ("openjdk-17-jre-headless",)
    port: ClassVar[int] = 1935
    offered: ClassVar[tuple[type[Offer], ...]] = (Rtmp,)
    holds: ClassVar[tuple[type[Content], ...]] = (Film,)
    films: ClassVar[tuple[Form, ...]] = ("flv",)
    Settings: ClassVar[type[Red5Settings]] = Red5Settings
    settings: Red5Settings

    @property
    def image(self) -> Wanted:
        """Java, and Red5's jars."""
        return Wanted(packages=self.packages, jars=locked((_HERE / "red5.lock").read_text(encoding="utf-8")))

    def start(self, instance: Instance, behind: Offer | None) -> Rtmp:  # noqa: ARG002 - it stands alone
        """Lay its configuration down, and start it beside its films."""
        for file in (_HERE / "red5_conf").iterdir():
            instance.agent.put(f"{_HOME}/{file.name}", file.read_bytes())
        instance.agent.run(["ln", "-sfn", films.DIRECTORY, f"{_HOME}/streams"])
        words = command(instance.limits, [jar.inside for jar in self.image.jars])
        daemon.start(instance, self.name, words, self.port, deadline_s=_LISTENS_S, cwd=_HOME, user="nobody")
        address = instance.attachment.endpoint_address
        if self.settings.live:
            return Rtmp(address, self.port, "live", is_live=True)
        return Rtmp(address, self.port, "vod", "flv:{film}")  # else a name with a dot would be looked for as it is

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until its application takes users."""

        def missing() -> str:
            problems = self.verify(offer, visitor, None)
            return problems[0].what if problems else ""

        daemon.await_ready(instance, self.name, _READY_S, missing)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        """It shakes hands and lets a client in; a film on demand begins to play, and is this film."""
        assert isinstance(offer, Rtmp)
        stream, wanted, most_bytes = "", _ADMITTED, rtmp.GREETED_BYTES + _ADMITTED_BYTES
        if isinstance(content, Film) and not offer.is_live:
            stream, most_bytes = offer.stream_of(content), rtmp.GREETED_BYTES + _SEEN_BYTES
            with films.file(content, "flv").open("rb") as flv:
                setup, picture = rtmp.first_frames(flv, _FRAME_BYTES)
            wanted = {**_ADMITTED, "the decoder's set-up": setup, "the film's first picture": picture}
        where = f"{self.name}, rtmp://{offer.address}:{offer.port}/{offer.application}/{stream}"
        return list(rtmp.problems_of(where, visitor.exchange(offer, rtmp.asking(offer, stream), most_bytes), wanted))


def command(limits: Limits, jars: list[str]) -> list[str]:
    """The Java virtual machine's. What it would choose by what it sees of the machine is set by the limits, the same on
    every platform: the heap is half of the memory (the rest is for threads, code, sockets and the page cache) from the
    start, and the collector the one that it takes for so many CPUs. Left to itself it begins with a 64th of the memory
    that it sees, so that a small virtual machine would collect far more often than a process of a large host.
    """
    heap = f"{limits.memory_bytes // 2 // 1024}k"
    return [
        "java",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        f"-XX:ActiveProcessorCount={limits.vcpus}",
        "-XX:+UseSerialGC" if limits.vcpus == 1 else "-XX:+UseG1GC",
        f"-Dred5.root={_HOME}",
        f"-Dred5.config_root={_HOME}",
        "-Dred5.deployment.type=bootstrap",
        "-Djava.security.policy=none",  # else the bootstrap asks for all that is known of one to be logged
        "-cp",
        ":".join([_HOME, *jars]),
        "org.red5.server.Bootstrap",
    ]
