"""What every platform must do. A platform's tests call these with an instance of it, in the fixture ``lab``.

Effects, not files: CPU time got, memory refused, forks refused, an answer received in the generator's namespace.
"""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

import datagrams
import keyrings
import leaks
from virtoll.agent import StreamError
from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.lab.base import GENERATOR_ADDRESS, ORIGIN_ADDRESS, Lab
from virtoll.networks.base import Kind, NetworkMode, network_modes
from virtoll.offers import Port
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.logs import HEAD_BYTES, TAIL_BYTES
from virtoll.study.limits import Budget, Limits
from virtoll.trial import procfiles

LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2, pids=64)
PORT = 8080
RARE = ("ipvlan",)  # modes whose device this kernel may not have; all others are to be there
PORTS = (Port(PORT), Port(PORT, "udp"), Port(20_000, "udp", 20_003))
UNASKED = Port(20_004, "udp")  # a server listens there, too
BULK_BYTES = 4 * 1024**2  # each way: a driver that cuts large segments shows from 100 kB on
HANGING_S = 600.0  # no answer takes so long
PACKAGES = ("nginx", "squid")  # the proxy study's set, so that its image is in the cache already

_NGINX = f"""daemon off; error_log stderr; pid /tmp/nginx.pid;
events {{}}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path /tmp; proxy_temp_path /tmp;
  server {{
    listen {PORT};
    location / {{ root /srv/contract; }}
    location /echo {{
      proxy_pass http://{ORIGIN_ADDRESS}:{PORT};
      proxy_http_version 1.1; proxy_request_buffering off; proxy_buffering off;
    }}
  }}
}}
"""
_GET = f"""import socket, sys
s = socket.create_connection((sys.argv[1], {PORT}), {HANGING_S})
s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
data = b""
while chunk := s.recv(4096): data += chunk
print(data.decode())
"""
_ECHO = f"""import http.server, socketserver
class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
socketserver.TCPServer.allow_reuse_address = True
server = socketserver.TCPServer(("{ORIGIN_ADDRESS}", {PORT}), Echo)  # an HTTPServer asks DNS for its name: 5 s
print("listening", flush=True)
server.handle_request()
"""
_POST = f"""import http.client, os, signal, sys
signal.alarm({HANGING_S:.0f})  # for all of it; a socket's time-out is for each step
sent = os.urandom({BULK_BYTES})
connection = http.client.HTTPConnection(sys.argv[1], {PORT})
connection.request("POST", "/echo", sent)
answer = connection.getresponse()
print("whole" if answer.read() == sent else f"status {{answer.status}}, not what was sent")
"""


def image() -> Image:
    """The image that contract tests deploy; skips where it cannot be had (no mirror, not root)."""
    try:
        return rootfs.build(LocalHost(), "proxy", PACKAGES, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))


def skip_unless_ready(platform: Platform) -> None:
    """Skip with the Problems' text where this machine cannot offer the platform."""
    problems = platform.check(LocalHost()) or platform.try_out(LocalHost())
    if problems:
        pytest.skip("\n".join(str(problem) for problem in problems))


def possible(platform: Platform) -> dict[str, Kind]:
    """The network modes that the platform can be attached in, with its settings, and how."""
    kinds = {name: platform.kind_in(mode) for name, mode in network_modes().items()}
    return {name: kind for name, kind in kinds.items() if not isinstance(kind, Problem)}


def modes(platform: Platform) -> list[str]:
    """Those of them that are here."""
    return [name for name, kind in possible(platform).items() if not lacking(name, kind)]


@cache
def lacking(name: str, kind: Kind) -> str:
    """Why this machine's kernel has no device for a network mode; "" where it has one, or the mode needs none."""
    if name not in RARE:
        return ""
    return "\n".join(str(problem) for problem in network_modes()[name]().check(LocalHost(), kind))


def skip_unless_there(name: str, kind: Kind) -> None:
    """Skip with the kernel's words where it has no device for a network mode."""
    if why := lacking(name, kind):
        pytest.skip(why)


@contextmanager
def deployed(
    lab: Lab,
    image: Image,
    platform: Platform,
    network: str = "",
    limits: Limits = LIMITS,
    *,
    slot: int = 0,
    ports: tuple[Port, ...] = PORTS,
) -> Iterator[Instance]:
    """A fresh instance in network mode ``network`` (the platform's default when empty), which is reached at ``ports``.

    Where all instances share one network stack, only the first has ports.
    """
    lab = replace(lab, slot=slot)
    mode: type[NetworkMode] = network_modes()[network or platform.default_network]
    kind = platform.kind_in(mode)
    assert not isinstance(kind, Problem), kind
    keyrings.join_new_session()
    with ExitStack() as stack:
        directory = lab.directory / f"instance{slot or ''}"
        stack.enter_context(lab.ledger.owning("directory", str(directory)))
        directory.mkdir()
        attachment = stack.enter_context(mode().attach(lab, kind, () if slot and kind == "shared" else ports))
        yield stack.enter_context(platform.deploy(lab, image, limits, attachment, directory))


def answers(instance: Instance) -> None:
    """It runs, its agent works, and it has the CPUs it was given, and as many open files as virtoll."""
    assert instance.is_running()
    done = instance.agent.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert instance.agent.facts()["cpus"] == instance.limits.vcpus
    open_files = instance.agent.run(["sh", "-c", "ulimit -Sn; ulimit -Hn"]).stdout.decode().split()
    assert open_files == [*map(str, resource.getrlimit(resource.RLIMIT_NOFILE))], open_files
    has_room(instance)


def has_room(instance: Instance) -> None:
    """Its limit of memory bounds what is shared in it, and that of processes how many another user than root may have:
    nothing else does. (What a kernel of its own takes of the memory is not there.)
    """
    script = 'ulimit -Sp; df -k /dev/shm | tail -n 1 | tr -s " " | cut -d " " -f 2'
    processes, shared_kib = instance.agent.run(["sh", "-c", script]).stdout.decode().split()
    assert processes == "unlimited" or int(processes) >= instance.limits.pids, processes
    assert int(shared_kib) * 1024 > 0.8 * instance.limits.memory_bytes, shared_kib


def is_reached(lab: Lab, instance: Instance) -> None:
    """Servers inside answer the generator at the attachment's address: megabytes both ways, and datagrams."""
    is_told_what_the_lab_is(instance)
    with _serving(instance, "here"):
        assert "here" in _asked(lab, instance, _GET)
        assert _bulk_is_carried(lab, instance) == "whole"
    datagrams_are_answered(lab, instance)


def is_told_what_the_lab_is(instance: Instance) -> None:
    """A server that finds IPv6 opens other sockets, and a filter by the reverse path looks at each packet: both must be
    the same everywhere. A kernel may have no IPv6 (UML's) or no such switches (gVisor's network stack is its own, and
    has of Docker's loopback what Docker gave it: from 26 on ::1).
    """
    addresses = "" if instance.facts.get("oci_runtime") == "runsc" else "/proc/net/if_inet6"
    for files, alike in (
        (f"/proc/sys/net/ipv6/conf/*/disable_ipv6 {addresses}", b"1"),
        ("/proc/sys/net/ipv4/conf/*/rp_filter", b"0"),
    ):
        found = instance.agent.run(["sh", "-c", f"cat {files}"]).stdout
        assert set(found.split()) <= {alike}, f"mode {instance.attachment.mode}: {found.decode()}"


def datagrams_are_answered(lab: Lab, instance: Instance, source: int = 0) -> None:
    """Each UDP port and each of a range is answered, by the address that was asked, and sees whose datagram it was.

    What nobody asked for comes to the instance only where the address is its own. ``source``: the asker's port.
    """
    attachment, asked = instance.attachment, [port for port in instance.attachment.ports if port.protocol == "udp"]
    assert sum(len(port.numbers) for port in asked) > len(asked) > 1, "one port and one range, at least"
    log = "/tmp/datagrams.log"
    server = instance.agent.spawn(datagrams.server([*asked, UNASKED]), log=log)
    try:
        while b"ready" not in instance.agent.get(log):
            assert instance.agent.alive(server), instance.agent.get(log)
            time.sleep(0.01)
        address = attachment.endpoint_address
        seen = datagrams.exchanged(lab, address, asked, source)
        assert seen == [GENERATOR_ADDRESS] * sum(len(port.numbers) for port in asked), attachment.mode
        seen = datagrams.exchanged(lab, address, [UNASKED], wanted=False)
        assert seen == [GENERATOR_ADDRESS if attachment.reaches(UNASKED) else "refused"], attachment.mode
    finally:
        instance.agent.kill(server)


@contextmanager
def _serving(instance: Instance, word: str) -> Iterator[None]:
    """A server inside that answers with ``word`` and is still alive at the end of the block.

    It listens from the beginning on: till then a user-mode network takes a connection and resets it.
    """
    instance.agent.put("/tmp/nginx.conf", _NGINX.encode())
    instance.agent.put("/srv/contract/index.html", word.encode())
    server = instance.agent.spawn(["nginx", "-c", "/tmp/nginx.conf"], log="/tmp/nginx.log")
    try:
        while not instance.agent.listening(PORT):
            assert instance.agent.alive(server)
            time.sleep(0.01)
        yield
        assert instance.agent.alive(server)
    except AssertionError as error:
        error.add_note(f"mode {instance.attachment.mode}; nginx said {instance.agent.get('/tmp/nginx.log').decode()!r}")
        raise
    finally:
        instance.agent.kill(server)


def live_side_by_side(place: Place, network: str) -> None:
    """Two instances at a time: each has its own files and answers at its own address, and one outlives the other."""
    before = leaks.snapshot()
    with ExitStack() as stay:
        with ExitStack() as go:
            first = go.enter_context(place.deployed(network))
            second = stay.enter_context(place.deployed(network, slot=1))
            for instance, word in ((first, "first"), (second, "second")):
                answers(instance)
                if instance.attachment.ports:
                    (go if instance is first else stay).enter_context(_serving(instance, word))
                assert instance.agent.run(["touch", f"/etc/{word}"]).returncode == 0
            for instance, word in ((first, "first"), (second, "second")):
                there = instance.agent.run(
                    ["sh", "-c", "cd /etc; for f in first second; do [ ! -e $f ] || echo $f; done"]
                ).stdout
                assert there.decode().split() == [word]
                if instance.attachment.ports:
                    assert word in _asked(place.lab, instance, _GET).split()
        answers(second)
        if second.attachment.ports:
            assert "second" in _asked(place.lab, second, _GET)
    nothing_left(place.lab, before)


def _bulk_is_carried(lab: Lab, instance: Instance) -> str:
    """Megabytes in all four directions: generator, instance, origin, and the same way back; "whole" if all arrived.

    nginx inside hands on what it is sent as it comes; the origin echoes it.
    """
    there = Confinement(netns=lab.origin.netns)
    with lab.host.spawn([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, confinement=there) as origin:
        try:
            assert origin.stdout is not None
            assert origin.stdout.readline() == b"listening\n"
            return _asked(lab, instance, _POST)
        finally:
            origin.kill()


def _asked(lab: Lab, instance: Instance, script: str) -> str:
    """What a Python script prints, errors too, that runs at the generator's and is given the instance's address."""
    done = lab.host.run(
        [sys.executable, "-c", script, instance.attachment.endpoint_address],
        confinement=Confinement(netns=lab.generator.netns),
        check=False,
        timeout_s=2 * HANGING_S,
    )
    return done.text + done.stderr.decode()


def files_of_any_size_pass(instance: Instance) -> None:
    """A megabyte goes in and comes back the same, and so do a command's input and output."""
    data = os.urandom(1024**2)
    digest = hashlib.sha256(data).hexdigest()
    instance.agent.put("/var/tmp/large", data)
    told = instance.agent.run(["sha256sum", "/var/tmp/large"]).stdout.split()
    assert told[:1] == [digest.encode()]
    assert hashlib.sha256(instance.agent.get("/var/tmp/large")).hexdigest() == digest
    assert instance.agent.run(["rm", "/var/tmp/large"]).returncode == 0
    echoed = instance.agent.run(["cat"], stdin=data[:100_000])
    assert hashlib.sha256(echoed.stdout).digest() == hashlib.sha256(data[:100_000]).digest()
    long = "x" * 60_000
    assert instance.agent.run(["echo", long]).stdout == long.encode() + b"\n"


# Prints what root got hold of, one a line: capability N, module, hostfs, device NAME, file PATH, write PATH, key of X.
# System calls of x86-64: 165 mount, 175 init_module, 249 request_key, 250 keyctl (10: search; -4: the user's keyring).
# Nothing is written: a file that opens for writing is enough, and a key that is found.
_REACH = r"""
use Fcntl; use File::Find;
my ($canary, $of_session, $of_user, @devices) = @ARGV;
sub found { print "@_\n" }
open(my $status, "<", "/proc/self/status"); my ($caps) = map { /^CapEff:\s+(\w+)/ ? hex $1 : () } <$status>;
for my $bit (2, 16, 17, 19, 21) { found("capability", $bit) if $caps >> $bit & 1 }
my $nothing = "\0" x 64; my $none = "";
my $loaded = syscall(175, $nothing, 64, $none);
found("module") if $loaded == 0 or not ($!{EPERM} or $!{ENOSYS});
mkdir "/var/tmp/h";
for my $where ("/", "../../..", "") {
  my ($source, $place, $kind, $options) = ("none", "/var/tmp/h", "hostfs", $where);
  found("hostfs") if syscall(165, $source, $place, $kind, 0, $options) == 0;
}
for my $path ($canary, "/proc/1/root$canary", "/var/tmp/h$canary") { found("file", $path) if -e $path }
my $kind = "user"; my $callout = 0;
found("key of the session") if syscall(249, $kind, $of_session, $callout, 0) > 0;
found("key of the user") if syscall(250, 10, -4, $kind, $of_user, 0) > 0;
for my $device (@devices) {
  my ($name, $major, $minor) = split /:/, $device;
  system("mknod", "/var/tmp/device", "b", $major, $minor) == 0 or next;
  found("device", $name) if sysopen(my $disk, "/var/tmp/device", O_RDONLY);
  unlink "/var/tmp/device";
}
my @own = map { qr{^/proc/sys/$_} } ("net/", "kernel/(domainname|hostname|shm|msg|sem)", "fs/mqueue/");
push @own, qr{^/proc/pressure/};  # what is written there wakes the writer, and nobody else
find({ no_chdir => 1, wanted => sub {
  my $path = $File::Find::name;
  return if -l $path or not -f _ or grep { $path =~ $_ } @own;
  found("write", $path) if sysopen(my $file, $path, O_WRONLY | O_NONBLOCK);
}}, "/proc/sys", "/sys");
# Root opens in /proc what nobody can write to: only a file whose mode says so is one. (Processes are his own.)
find({ no_chdir => 1, preprocess => sub { grep { $File::Find::dir ne "/proc" or not /^(\d+|sys|.*self)$/ } @_ },
  wanted => sub {
  my $path = $File::Find::name;
  return if -l $path or not -f _ or not ((stat(_))[2] & 0222) or grep { $path =~ $_ } @own;
  found("write", $path) if sysopen(my $file, $path, O_WRONLY | O_NONBLOCK);
}}, "/proc");
"""


def reach_of_root(instance: Instance) -> set[str]:
    """What its root got hold of, of the kernel that he sees."""
    devices = [f"{name}:{major}:{minor}" for major, minor, name in _block_devices()]
    of_session, of_user = (f"virtoll-canary-{secrets.token_hex(8)}" for _ in range(2))
    with ExitStack() as stack:
        canary = stack.enter_context(tempfile.NamedTemporaryFile(prefix="virtoll-canary-"))
        stack.enter_context(keyrings.added(of_session, keyrings.SESSION))
        stack.enter_context(keyrings.added(of_user, keyrings.USER))
        words = [canary.name, of_session, of_user, *devices]
        done = instance.agent.run(["perl", "-e", _REACH, *words], timeout_s=HANGING_S)
    assert done.returncode == 0, done.stderr.decode()
    return set(done.stdout.decode().splitlines())


def _block_devices() -> list[tuple[str, str, str]]:
    lines = [line.split() for line in Path("/proc/partitions").read_text().splitlines()[2:]]
    return [(major, minor, name) for major, minor, _blocks, name in lines]


def keeps_root_from_the_host(instance: Instance, *, own_kernel: bool, shares_keys: bool = False) -> None:
    """Root inside finds no file, disk, module or setting of the host's; native says itself that it does not keep him.

    Where the guest has a kernel of its own, settings and devices are that kernel's; files are not. (A boot id does not
    tell: liblxc makes one up.) ``shares_keys``: nothing filters these system calls, and the keyring of user 0 is his,
    too, as docs/METHODOLOGY.md says.
    """
    reached = reach_of_root(instance)
    if own_kernel:
        reached = {what for what in reached if what.split()[0] in ("hostfs", "file", "key")}
    assert reached == ({"key of the user"} if shares_keys else set()), sorted(reached)


def log_is_bounded(log: Path, last: bytes) -> None:
    """A log that was flooded holds its beginning and, soon, what was printed ``last``; at no time more than that."""
    deadline = time.monotonic() + leaks.SOON_S
    while last not in log.read_bytes()[-1000:]:
        assert time.monotonic() < deadline, log.read_bytes()[-1000:]
        time.sleep(0.02)
    assert HEAD_BYTES < log.stat().st_size <= HEAD_BYTES + TAIL_BYTES


def goes_first(group: str) -> bool:
    """Whether a control group weighs as much as one can (`Cgroup.go_first`)."""
    file, most = ("cpu.weight", 10_000) if hierarchies().version == 2 else ("cpu.shares", 262_144)
    return int((Cgroup(group, hierarchies()).directory("cpu") / file).read_text()) == most


def is_accounted_for(instance: Instance) -> None:
    """What it burns is booked in its cgroup, and in its payload's part where there are parts.

    One that cannot count it itself burns until it is: a busy machine lets it wait.
    """
    deadline = time.monotonic() + 300
    for name in (instance.accounting.cgroup, *filter(None, [instance.accounting.parts.get("payload")])):
        before_ns, booked_ns, least_ns = _cpu_ns(name), 0, 0.05 * 10**9
        while booked_ns < least_ns:
            assert time.monotonic() < deadline, f"{name}: {booked_ns} ns of {least_ns} ns"
            burnt_ns = instance.agent.burn(1, 200)["cpu_ns"]
            booked_ns = _cpu_ns(name) - before_ns
            if instance.counts_cpu_time:
                assert booked_ns >= 0.9 * burnt_ns, name
                break


def _cpu_ns(cgroup: str) -> int:
    layout = hierarchies()
    if layout.version == 1:
        return int((layout.directory("cpuacct", cgroup) / "cpuacct.usage").read_text())
    lines = (layout.directory("cpu", cgroup) / "cpu.stat").read_text().splitlines()
    return 1000 * next(int(line.split()[1]) for line in lines if line.startswith("usage_usec"))


def cpu_limit_holds(instance: Instance) -> None:
    """More threads than vCPUs get no more CPU time than the vCPUs, but get some.

    What a guest is booked for beside them, while we stand still and it waits, was not used in the time that it tells.
    """
    begun_ns, before_ns = time.monotonic_ns(), _cpu_ns(instance.accounting.cgroup)
    burnt = instance.agent.burn(instance.limits.vcpus + 3, 1000)
    used_ns, wall_ns = burnt["cpu_ns"], burnt["wall_ns"]
    if not instance.counts_cpu_time:
        used_ns, wall_ns = _cpu_ns(instance.accounting.cgroup) - before_ns, time.monotonic_ns() - begun_ns
    assert 0 < used_ns <= 1.1 * instance.limits.vcpus * wall_ns


def memory_limit_holds(instance: Instance) -> None:
    """Half the memory can be had, twice the memory cannot, and the instance survives the attempt."""
    limit = instance.limits.memory_bytes
    assert instance.agent.allocate(limit // 2)["ended"] == "complete"
    greedy = instance.agent.allocate(2 * limit)
    assert greedy["ended"] in ("killed", "refused")
    assert greedy["touched_bytes"] <= limit
    assert instance.is_running()
    assert instance.agent.run(["true"]).returncode == 0


def memory_limit_ends_it(instance: Instance) -> None:
    """Half the memory can be had; twice the memory cannot, and ends the instance, where its kernel is in the limit."""
    limit = instance.limits.memory_bytes
    assert instance.agent.allocate(limit // 2)["ended"] == "complete"
    assert instance.is_running()
    with pytest.raises(StreamError):
        instance.agent.allocate(2 * limit)
    has_ended(instance)


def has_ended(instance: Instance) -> None:
    """Return when it has: its stream may be gone before it is, by as much as its processes have to give back."""
    deadline = time.monotonic() + HANGING_S
    while instance.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids_limit_holds(instance: Instance) -> None:
    """Some processes can be started, more than the limit cannot."""
    script = 'i=0; while [ $i -lt "$1" ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done'
    assert instance.agent.run(["sh", "-c", script, "sh", "8"]).returncode == 0
    refused = instance.agent.run(["sh", "-c", script, "sh", str(2 * instance.limits.pids)])
    assert refused.returncode != 0
    assert b"fork" in refused.stderr


def disk_limit_holds(instance: Instance) -> None:
    """Most of the disk can be had, a quarter more than all of it cannot, and what was freed can be had again."""
    limit = instance.limits.disk_bytes
    for _ in range(2):
        assert _allocated_on_disk(instance, limit * 95 // 100) == b""
        assert b"No space left on device" in _allocated_on_disk(instance, limit * 5 // 4)


def _allocated_on_disk(instance: Instance, length_bytes: int) -> bytes:
    """What fallocate complains of when it is to make a file of that length, which is then deleted."""
    script = 'fallocate --length "$1" /var/tmp/large; rm --force /var/tmp/large'
    return instance.agent.run(["sh", "-c", script, "sh", str(length_bytes)]).stderr


def starts_from_the_image(lab: Lab, image: Image, platform: Platform) -> None:
    """What one deployment writes, neither the next one nor the image sees."""
    with deployed(lab, image, platform) as first:
        first.agent.put("/etc/left", b"behind")
        first.agent.run(["rm", "/etc/hostname"])
    with deployed(lab, image, platform) as second:
        assert second.agent.run(["test", "-e", "/etc/left"]).returncode == 1
    assert not (image.rootfs / "etc/left").exists()
    assert (image.rootfs / "etc/hostname").exists()


def is_as_the_image_and_writes(image: Image, instance: Instance) -> None:
    """It finds what the image has, and nothing that another wrote before; the image has nothing of what it writes."""
    assert instance.agent.run(["test", "-e", "/etc/debian_version"]).returncode == 0
    assert instance.agent.run(["test", "-e", "/etc/left"]).returncode == 1
    instance.agent.put("/etc/left", b"behind")
    assert instance.agent.run(["rm", "/etc/debian_version"]).returncode == 0
    assert not (image.rootfs / "etc/left").exists()
    assert (image.rootfs / "etc/debian_version").exists()
    mounts = instance.agent.get("/proc/self/mountinfo").decode()
    assert procfiles.temporary_files(mounts) == "the root file system", "and not memory, which no limits.disk holds"


def nothing_left(lab: Lab, before: leaks.Snapshot, within_s: float = leaks.SOON_S) -> None:
    """Fail with what this lab or this test session has left since ``before``; other labs may come and go."""
    deadline = time.monotonic() + within_s
    while left := _left(lab, before, leaks.snapshot()):
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.1)


def _left(lab: Lab, before: leaks.Snapshot, after: leaks.Snapshot) -> list[str]:
    labs = {name.split("-")[1] for name in after["network namespaces"] if name.startswith("vt-")}
    is_alone = labs <= {lab.run_tag}
    return [line for line in leaks.differences(before, after) if _is_ours(lab, line, is_alone=is_alone)]


def _is_ours(lab: Lab, line: str, *, is_alone: bool) -> bool:
    """``is_alone``: there is no other lab."""
    if line.startswith("left behind: mounts: /run/netns "):
        return True  # of `ip netns add`: it hides the namespaces that labs have made
    if line.startswith(("left behind: rules:", "gone: rules:")):
        return True  # labs have none in the machine's own namespace
    if line.startswith("left behind: tracked connections:"):
        return is_alone  # whose it is does not show
    return "processes:" in line or (lab.run_tag in line and not line.endswith(lab.cgroup))


@dataclass(frozen=True)
class Place:
    """Where a platform's instances are deployed."""

    lab: Lab
    image: Image
    platform: Platform

    @contextmanager
    def deployed(self, network: str = "", budget: Budget = "inclusive", slot: int = 0) -> Iterator[Instance]:
        limits = replace(LIMITS, budget=budget)
        with deployed(self.lab, self.image, self.platform, network, limits, slot=slot) as instance:
            yield instance
