"""Wires the lab: three namespaces in a row, and the CPUs of those who work in them.

    generator netns          SUT netns                     origin netns
    eth0 198.18.1.2/24 ---- gen0 198.18.1.1/24
                            org0 198.18.2.1/24 ---------- eth0 198.18.2.2/24

Where several generators load one server each has a namespace and a link of its own, as the first has: the second's
eth0 198.18.18.2/24 ---- gen2 198.18.18.1/24. Where the generator stands on another machine, gen0 is a macvlan upon a
network device of this one, and there is no namespace for it here; what is there, `virtoll.lab.posts` wires.

Every link is made inside the namespaces, so the machine's own never shows one. The lab's own links have fixed MAC
addresses and permanent neighbours: there is no ARP between these three, which would answer late (1 s) after a
loss. Offloads stay as the kernel sets them.

Each side pays for what it receives: a veth hands a packet to its peer on the *sender's* CPU, where the receiver's
stack then runs (routing, NAT, bridge, TCP). Receive packet steering sends it over to the receiver's CPUs, as if
these were three machines; otherwise the generator would pay for the half of the SUT's network path that the study
is about. The SUT's are those of the instance that stands there (`steer`): others of the lab's would work for it beside
its quota, and be booked to nobody.

What a fresh namespace is told, an instance's own too (it begins with the machine's filter): no IPv6, and no reverse
path filter (both arms of a bridge or NAT are honest paths). In the lab's, bridges do not hand frames to iptables
(where br_netfilter is loaded, a machine with Docker does). The generator may use every port and reuse those of closed
connections, for a connection per request exhausts 28,000 ports in seconds. The SUT keeps the kernel's own TCP
settings: a container's namespace has them too, and both must be alike. The origin sends by Reno's rule, whatever the
machine's is: what it holds back is told as the service's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from virtoll.hosts import namespaces, private
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import TOP, Cgroup, hierarchies, owned
from virtoll.hosts.ledger import Ledger, state_directory
from virtoll.lab.base import (
    GENERATOR_ADDRESS,
    ORIGIN_ADDRESS,
    SUT_GENERATOR_SIDE_ADDRESS,
    SUT_ORIGIN_SIDE_ADDRESS,
    CpuPlan,
    Lab,
    Site,
    Uplink,
    further_link,
)
from virtoll.lab.client import LOCAL_PORTS

# Locally administered (bit 1 of the first octet), "vt" in the next two.
_GENERATOR_MAC = "02:76:74:00:01:02"
_SUT_GENERATOR_SIDE_MAC = "02:76:74:00:01:01"
_ORIGIN_MAC = "02:76:74:00:02:02"
_SUT_ORIGIN_SIDE_MAC = "02:76:74:00:02:01"

EVERYWHERE = ("net/ipv6/conf/*/disable_ipv6=1", "net/ipv4/conf/*/rp_filter=0")  # of a device the larger is in force
GENERATOR_ONLY = (f"net/ipv4/ip_local_port_range={LOCAL_PORTS[0]} {LOCAL_PORTS[-1]}", "net/ipv4/tcp_tw_reuse=1")
_ORIGIN_ONLY = ("net/ipv4/tcp_congestion_control=reno",)  # every kernel has it, for every namespace
_SUT_ONLY = (
    "net/ipv4/ip_forward=1",
    "net/bridge/bridge-nf-call-iptables=0",
    "net/bridge/bridge-nf-call-ip6tables=0",
    "net/bridge/bridge-nf-call-arptables=0",
)


@contextmanager
def wired(
    host: Host, ledger: Ledger, run_tag: str, cpus: CpuPlan, generators: int = 1, *, uplink: Uplink | None = None
) -> Iterator[Lab]:
    """The lab of one run, wired for the length of the block. HostError says what could not be made.

    ``uplink``: the generator stands on another machine, and this leads there.
    """
    lab = _unwired(host, ledger, run_tag, cpus, generators, uplink=uplink)
    with ExitStack() as stack:
        stack.enter_context(ledger.owning("directory", str(lab.directory)))
        private.make(lab.directory.parent)
        lab.directory.mkdir(mode=0o700)
        stack.enter_context(ledger.owning("netns-above", namespaces.NETNS))
        for site in (*lab.generators, lab.sut, lab.origin):
            stack.enter_context(ledger.owning("netns", site.netns))
        stack.enter_context(owned(ledger, lab.cgroup))
        # Every command of the run works in a cgroup, which is ended before what the command makes is removed: one that
        # outlived a kill -9 for a moment is dead by then, or finds no cgroup to start in.
        commands = stack.enter_context(owned(ledger, f"{lab.cgroup}/commands"))
        lab = _unwired(host.within(commands.found_by), ledger, run_tag, cpus, generators, uplink=uplink)
        lab.host.run(["sh", "-e", "-c", wiring_script(lab, uplink)])
        # Else what has come waits until the origin, where it shares the CPU, has had its turn, and so does a sample.
        for name in ("generator", "monitor") if lab.generators else ("monitor",):
            stack.enter_context(owned(ledger, f"{lab.cgroup}/{name}", cpus=cpus.generator)).go_first()
        yield lab


def free_tag() -> str:
    """A run tag that no lab of this machine has, nor a directory that a killed run has left."""
    while Path("/run/netns", f"vt-{(tag := secrets.token_hex(2))}-gen").exists() or directory_of(tag).exists():
        pass
    return tag


def directory_of(tag: str) -> Path:
    """The scratch space of a lab of this tag."""
    return state_directory() / f"lab-{tag}"


def _unwired(host: Host, ledger: Ledger, run_tag: str, cpus: CpuPlan, generators: int, *, uplink: Uplink | None) -> Lab:
    netns = f"vt-{run_tag}-gen" if uplink is None else ""
    return Lab(
        ledger=ledger,
        run_tag=run_tag,
        nic="" if uplink is None else uplink.nic,
        generator=Site(host, netns, GENERATOR_ADDRESS, cpus.generator),
        further=tuple(
            Site(host, f"vt-{run_tag}-gen{number}", further_link(number)[1], cpus.generator)
            for number in range(2, generators + 1)
        ),
        sut=Site(host, f"vt-{run_tag}-sut", SUT_GENERATOR_SIDE_ADDRESS, cpus.instance),
        origin=Site(host, f"vt-{run_tag}-org", ORIGIN_ADDRESS, cpus.origin),
        cgroup=f"{TOP}/{run_tag}",
        directory=directory_of(run_tag),
    )


def dealt(cpus: frozenset[int], generators: int) -> list[frozenset[int]]:
    """CPUs of its own for each generator, the first with those that are over; where they are too few, all share all."""
    if len(cpus) < generators:
        return [cpus] * generators
    each, over = divmod(len(cpus), generators)
    left = iter(sorted(cpus))
    return [frozenset(islice(left, each + (number < over))) for number in range(generators)]


def confinements_of_several(lab: Lab, generators: int) -> list[Confinement]:
    """Where each of several load generators starts: in one group, each in its own namespace and on its own CPUs."""
    group = Cgroup(f"{lab.cgroup}/generator", hierarchies())
    places = zip(lab.generators, dealt(lab.generator.cpus, generators), strict=False)
    return [Confinement(group.procs, site.netns, own) for site, own in places]


def generator_confinement(lab: Lab, *, outside: bool = False) -> Confinement:
    """Where a load generator starts. (The origin is an instance like any other, with a place of its own.)

    ``outside``: on the same CPUs and in the same group, but in its host's own network namespace, from where it reaches
    a machine of the user's own.
    """
    group = Cgroup(f"{lab.cgroup}/generator", hierarchies())
    return Confinement(group.procs, None if outside else lab.generator.netns, lab.generator.cpus)


def wiring_script(lab: Lab, uplink: Uplink | None = None) -> str:
    """The shell script that makes namespaces and links: one process a step, since each costs a millisecond or two."""
    gen, sut, org = lab.generator.netns, lab.sut.netns, lab.origin.netns
    spaces = [(org, (*EVERYWHERE, *_ORIGIN_ONLY)), (sut, (*EVERYWHERE, *_SUT_ONLY))]
    if uplink is None:
        spaces = [(gen, (*EVERYWHERE, *GENERATOR_ONLY)), *spaces]
    (first, settings), *rest = spaces
    near_mac, far_mac = (uplink.mac, uplink.far_mac) if uplink else (_SUT_GENERATOR_SIDE_MAC, _GENERATOR_MAC)
    return "\n".join(
        [
            namespaces.first(first),
            f"nsenter --net=/run/netns/{first} {told(settings)}",
            *(_namespace(*each) for each in rest),
            *([] if uplink is None else [upon(uplink.nic, "gen0", near_mac, uplink.mtu, sut)]),
            ip_batch(
                sut,
                "link set lo up",
                *([_veth("gen0", near_mac, far_mac, gen)] if uplink is None else []),
                _veth("org0", _SUT_ORIGIN_SIDE_MAC, _ORIGIN_MAC, org),
                *device("gen0", SUT_GENERATOR_SIDE_ADDRESS, GENERATOR_ADDRESS, far_mac),
                *device("org0", SUT_ORIGIN_SIDE_ADDRESS, ORIGIN_ADDRESS, _ORIGIN_MAC),
            ),
            *(generator_side(gen, near_mac, lab.generator.cpus) if uplink is None else ()),
            ip_batch(
                org,
                "link set lo up",
                *device("eth0", ORIGIN_ADDRESS, SUT_ORIGIN_SIDE_ADDRESS, _SUT_ORIGIN_SIDE_MAC),
                f"route add default via {SUT_ORIGIN_SIDE_ADDRESS}",
            ),
            receive_on(lab.sut.cpus, sut, "gen0", "org0"),
            receive_on(lab.origin.cpus, org, "eth0"),
            *(line for number, site in enumerate(lab.further, 2) for line in _further(sut, lab.sut.cpus, number, site)),
        ]
    )


def generator_side(netns: str, near_mac: str, cpus: frozenset[int]) -> tuple[str, str]:
    """Script lines for the eth0 of the first generator, wherever it stands; the SUT's side has ``near_mac``."""
    set_up = ip_batch(
        netns,
        "link set lo up",
        *device("eth0", GENERATOR_ADDRESS, SUT_GENERATOR_SIDE_ADDRESS, near_mac),
        f"route add default via {SUT_GENERATOR_SIDE_ADDRESS}",
    )
    return set_up, receive_on(cpus, netns, "eth0")


def upon(nic: str, name: str, mac: str, mtu: int, netns: str) -> str:
    """A line of shell that makes a device of a namespace upon one of this machine's, told apart by its MAC address."""
    return f"ip link add link {nic} name {name} address {mac} mtu {mtu} netns {netns} type macvlan mode bridge"


def _veth(name: str, mac: str, far_mac: str, netns: str) -> str:
    """The `ip` command for a link from here to a namespace's eth0."""
    return f"link add {name} address {mac} type veth peer name eth0 address {far_mac} netns {netns}"


def _further(sut: str, sut_cpus: frozenset[int], number: int, site: Site) -> tuple[str, ...]:
    """Script lines for one more generator: what the first has."""
    near, far = further_link(number)
    name = f"gen{number}"
    near_mac, far_mac = f"02:76:74:00:{16 + number:02x}:01", f"02:76:74:00:{16 + number:02x}:02"
    return (
        _namespace(site.netns, (*EVERYWHERE, *GENERATOR_ONLY)),
        ip_batch(
            sut,
            _veth(name, near_mac, far_mac, site.netns),
            *device(name, near, far, far_mac),
        ),
        ip_batch(
            site.netns,
            "link set lo up",
            *device("eth0", far, near, near_mac),
            f"route add default via {near}",
        ),
        receive_on(site.cpus, site.netns, "eth0"),
        receive_on(sut_cpus, sut, name),
    )


def _namespace(name: str, settings: tuple[str, ...]) -> str:
    """Make a namespace, and set it up from inside. (`ip netns add` is two processes more.)"""
    file = Path("/run/netns", name)
    return f": >{file}\nunshare --net={file} {told(settings)}"


def told(settings: tuple[str, ...]) -> str:
    """The command that sets them, run inside."""
    return f"sh -e -c '{written(settings)}'"


def written(settings: tuple[str, ...]) -> str:
    """The same for a shell that is inside; it ends in a semicolon. A `*` is each device, and what comes. What the
    kernel does not have (IPv6, br_netfilter) is skipped: then there is nothing to switch off.
    """
    writes = "".join(
        f'for file in {path}; do if [ -e "$file" ]; then echo "{value}" >"$file"; fi; done; '
        for path, _, value in (setting.partition("=") for setting in settings)
    )
    return f"cd /proc/sys; {writes}"


def device(name: str, address: str, neighbour: str, neighbour_mac: str) -> tuple[str, ...]:
    """The `ip` commands that set a device up, with whoever is at its other end."""
    return (
        f"link set {name} up",
        f"addr add {address}/24 dev {name}",
        f"neigh add {neighbour} lladdr {neighbour_mac} dev {name} nud permanent",
    )


def ip_batch(netns: str, *commands: str) -> str:
    """A line of shell that runs these `ip` commands in a namespace, all in one process."""
    lines = "\n".join(commands)
    return f"ip -n {netns} -batch - <<'END'\n{lines}\nEND"


def receive_on(cpus: frozenset[int], netns: str, *devices: str) -> str:
    """Steer what ``devices`` receive to ``cpus``, unless the kernel cannot (built without RPS).

    `ip netns exec`, since it mounts the /sys that shows the namespace's devices. A native instance there that mounted
    its own /sys read-only has made this one so too (they are one superblock); its own stays so when this one does not.
    """
    files = " ".join(f"/sys/class/net/{device}/queues/rx-*/rps_cpus" for device in devices)
    steer = f'for file in {files}; do if [ -e "$file" ]; then echo {cpu_mask(cpus)} >"$file"; fi; done'
    return f"ip netns exec {netns} sh -e -c '[ -w /sys ] || mount -o remount,rw /sys; {steer}'"


def steer(lab: Lab, cpus: frozenset[int]) -> None:
    """Have what the SUT receives worked on by the CPUs of the instance that stands there, of those that the lab has."""
    lab.host.run(["sh", "-e", "-c", receive_on(cpus, lab.sut.netns, *lab.generator_devices, "org0")])


def cpu_mask(cpus: frozenset[int]) -> str:
    """CPUs as the kernel writes a bitmap: hexadecimal words of 32 bits, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    words: list[str] = []
    while bits or not words:
        words.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(words))
