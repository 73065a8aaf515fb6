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

import struct
from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.films import DIRECTORY as FILMS
from virtoll.films import Form
from virtoll.images.base import Wanted
from virtoll.images.jars import locked
from virtoll.offers import Content, Film, Offer, Rtmp
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor
from virtoll.study.limits import Limits

_HERE = files("virtoll.services")
_HOME = f"{daemon.DIRECTORY}/red5"
_LISTENS_S = 300.0  # it takes 2 s of a CPU, and an emulated one is slower by an order of magnitude or two
_READY_S = 120.0
_HANDSHAKE_BYTES = 1536  # of C1, S1, C2 and S2 (Adobe's RTMP specification, 5.2.3 and 5.2.4)
_SUCCESS = b"NetConnection.Connect.Success"
_ANSWER_BYTES = 384  # of what follows the handshake: the success is within, and Red5 sends more


@dataclass(frozen=True)
class Red5Settings:
    """Settings of Red5: what it ``serves``, films from their start or what somebody publishes."""

    serves: Literal["vod", "live"] = "vod"


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
        instance.agent.run(["ln", "-sfn", FILMS, f"{_HOME}/streams"])
        words = command(instance.limits, [jar.inside for jar in self.image.jars])
        daemon.start(instance, self.name, words, self.port, deadline_s=_LISTENS_S, cwd=_HOME)
        serves = self.settings.serves
        stream = "flv:{film}" if serves == "vod" else "{film}"
        return Rtmp(instance.attachment.endpoint_address, self.port, serves, stream, is_live=serves == "live")

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until its application takes users."""
        daemon.await_ready(instance, self.name, _READY_S, lambda: _missing(offer, visitor))

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """It shakes hands, and its application takes a user. That films play, the load looks at."""
        return [Problem(missing, f"red5, {offer.address}")] if (missing := _missing(offer, visitor)) else []


def command(limits: Limits, jars: list[str]) -> list[str]:
    """The Java virtual machine's. What it would choose by what it sees of the machine is set by the limits, the same on
    every platform: the heap is half of the memory (the rest is for threads, code, sockets and the page cache), and the
    collector the one that it takes for so many CPUs.
    """
    return [
        "java",
        f"-Xmx{limits.memory_bytes // 2 // 1024}k",
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


def _missing(offer: Offer, visitor: Visitor) -> str:
    """What is wrong with how it takes a user, in words; "" where nothing is."""
    assert isinstance(offer, Rtmp)
    c1 = bytes(8) + bytes(index % 251 for index in range(_HANDSHAKE_BYTES - 8))
    # C2 should echo S1, for which nobody waits here: Red5 does not look at it.
    sent = b"\3" + c1 + c1 + connect(offer)
    said = visitor.exchange(offer, sent, 1 + 2 * _HANDSHAKE_BYTES + _ANSWER_BYTES)
    if said[:1] != b"\3":
        return f"it answers a handshake with version {said[:1]!r}, not 3"
    if said[1 + _HANDSHAKE_BYTES :][:_HANDSHAKE_BYTES] != c1:
        return "it does not give the handshake's bytes back"
    if _SUCCESS not in said[1 + 2 * _HANDSHAKE_BYTES :]:
        return f"its application {offer.application!r} takes no user"
    return ""


def connect(offer: Rtmp) -> bytes:
    """The command "connect" as a message in one chunk (Adobe's RTMP specification, 5.3.1 and 7.2.1.1; AMF 0)."""
    pairs = {"app": offer.application, "tcUrl": f"rtmp://{offer.address}:{offer.port}/{offer.application}"}
    body = b"\2" + _text("connect") + b"\0" + struct.pack(">d", 1) + b"\3"
    body += b"".join(_text(key) + b"\2" + _text(value) for key, value in pairs.items()) + b"\0\0\11"
    return struct.pack(">B3xI4x", 3, len(body) << 8 | 20) + body


def _text(words: str) -> bytes:
    return struct.pack(">H", len(words)) + words.encode()
