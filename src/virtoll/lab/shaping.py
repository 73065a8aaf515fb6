"""A slower, longer or lossier line between generator and SUT, where the study asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import Lab
from virtoll.units import within

_QUEUE_MS = 50  # of a rate-limited link: what would wait longer is dropped (about what home routers are built for)
# Below netem no packet may be cut into segments: kernels before December 2024 count each as one that never leaves it
# ("netem: fix qlen" of Linux 6.13, 6.12.6, 6.6.67, 6.1.121), until it drops all. The queue must hold one whole.
_LARGEST_PACKET_BYTES = 65_536
_LEAST_BYTES = 2 * 1514  # two frames: a line sends one at a time, and a bucket must hold one while it fills


@dataclass(frozen=True)
class LinkShape:
    """The line between generator and SUT, each direction by itself; None leaves the veth as it is. Of several
    generators each has such a line of its own.

    ``delay_ns`` is one way: a round trip takes twice as long. ``loss_percent`` of the packets vanish at random; what a
    sender leaves to be cut into segments later (TCP's up to 64 KiB, where it does) is one packet here, lost as a whole.
    """

    rate_bit_per_s: int | None = within(None, least=1)
    delay_ns: int | None = None
    loss_percent: float = within(0.0, least=0, most=100)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked for."""
        return self.rate_bit_per_s is None and self.delay_ns is None and self.loss_percent == 0


def qdisc_commands(shape: LinkShape, device: str) -> list[str]:
    """The `tc` commands that put the shape on what leaves ``device``: netem at the root, tbf below it or alone.

    The queue's length is told in bytes: by tbf's ``latency`` it would hold as much as passes at once besides.
    """
    commands = []
    place = "root handle 1:"
    if shape.delay_ns is not None or shape.loss_percent:
        delay_us = (shape.delay_ns or 0) / 1000
        commands.append(
            f"qdisc add dev {device} {place} netem limit 100000 delay {delay_us:g}us loss {shape.loss_percent:g}%"
        )
        place = "parent 1:1 handle 2:"
    if shape.rate_bit_per_s is not None:
        burst, queue = burst_bytes(shape.rate_bit_per_s), _carried_bytes(shape.rate_bit_per_s, _QUEUE_MS)
        if commands:
            burst, queue = max(burst, _LARGEST_PACKET_BYTES), max(queue, 2 * _LARGEST_PACKET_BYTES)
        commands.append(
            f"qdisc add dev {device} {place} tbf rate {shape.rate_bit_per_s}bit burst {burst} limit {queue}"
        )
    return commands


def burst_bytes(rate_bit_per_s: int) -> int:
    """What a rate-limited link lets pass at once after a pause: what it carries in 4 ms, a timer tick at 250 Hz. A
    larger packet is cut into its segments first.
    """
    return _carried_bytes(rate_bit_per_s, 4)


def _carried_bytes(rate_bit_per_s: int, within_ms: int) -> int:
    return max(_LEAST_BYTES, rate_bit_per_s * within_ms // 8000)


@contextmanager
def shaped(lab: Lab, shape: LinkShape) -> Iterator[None]:
    """Shape the line in both directions for the length of the block. HostError where the kernel cannot."""
    if shape.is_plain:
        yield
        return
    ends = [(site.netns, "eth0") for site in lab.generators]
    ends += [(lab.sut.netns, device) for device in lab.generator_devices]
    try:
        for netns, device in ends:
            _tc(lab.host, netns, qdisc_commands(shape, device))
        yield
    finally:
        for netns, device in ends:
            # Fails where the qdisc was never put: then there is nothing to take away.
            lab.host.run(["tc", "-n", netns, "qdisc", "del", "dev", device, "root"], check=False)


def check(host: Host, shape: LinkShape) -> list[Problem]:
    """Whether this kernel can shape a line so: tried on the loopback device of a namespace that ends with the trial."""
    if shape.is_plain:
        return []
    script = "\n".join(f"tc {command} || exit 1" for command in qdisc_commands(shape, "lo"))
    done = host.run(["unshare", "--net", "sh", "-c", script], check=False)
    if done.returncode == 0:
        return []
    wants = "delay and loss need netem (CONFIG_NET_SCH_NETEM)" if "netem" in script else ""
    wants = wants or "a rate needs tbf (CONFIG_NET_SCH_TBF)"
    return [
        Problem(
            f"the kernel cannot shape the link: {done.stderr.decode(errors='replace').strip()}",
            where=host.where,
            remedy=f"{wants}: modprobe sch_netem sch_tbf, or take [link] out of the study",
        )
    ]


def _tc(host: Host, netns: str, commands: list[str]) -> None:
    try:
        host.run(["tc", "-n", netns, "-batch", "-"], stdin="\n".join(commands).encode())
    except HostError as error:
        raise HostError(
            f"cannot shape the link: {error.problem.what}",
            where=netns,
            remedy="`virtoll doctor` shows whether this kernel has netem and tbf",
        ) from error
