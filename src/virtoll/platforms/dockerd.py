"""A Docker daemon of virtoll's own, in the lab's SUT namespace. The user's daemon and firewall are never touched.

- Its data root lies in the cache, so that an image is imported once. A second virtoll that runs at the same time gets
  a data root of its own. The lock on it is handed to dockerd: it lasts as long as anybody uses the files.
- Its mounts are in a mount namespace of its own and vanish with it. There, /run, /etc and /opt are covered, so that
  dockerd writes its state (keys, sockets, pid and lock files) nowhere on the machine; a new one finds nothing stale.
- Its firewall rules are in place only while a container with published ports runs: another platform's packets, and
  those of Docker's other network modes, must not pass them.
- The userland proxy is a setting of the daemon, not of a container, and so are the runtimes that it knows: arms that
  differ in them have one each. All know the same bridge; of two arms that are measured one after the other only one
  has containers, and those that stand beside each other have a lab each.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtoll.errors import HostError, PlatformError
from virtoll.hosts import private
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies, owned
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.local import end_session
from virtoll.hosts.lock import locks
from virtoll.hosts.programs import search_path
from virtoll.images import forms, layer
from virtoll.images.base import Image
from virtoll.lab import tables
from virtoll.lab.base import Lab
from virtoll.platforms import bundle, docker_runtime, mounts
from virtoll.platforms.engine import Engine
from virtoll.platforms.stdio import tail

XTABLES = Path("/usr/sbin/xtables-nft-multi")  # iptables on nf_tables, whatever the machine's default is
BRIDGE = "198.18.4.1/24"
MOST_SOCKET_BYTES = 107  # of a path: unix(7), sockaddr_un
_START_S = 30.0
_STOP_S, _STOP_POLL_S = 15.0, 0.01
_SLOTS = 16  # virtolls at once
_KEEP_IMAGES = 3
_CALL_FORWARD = "net/bridge/bridge-nf-call-iptables"  # as Docker has it, where it is; the lab's bridges go without
# It would load br_netfilter, and leave it: then bridged packets of all on this machine, of labs wired before and of the
# user's own guests, meet iptables. Without the right to, neither it nor what it starts loads a module by its name; what
# its networks need comes by itself (Linux: dev_load of net/core/dev_ioctl.c, may_init_module of kernel/module/main.c).
_WITHOUT_MODULES = ("setpriv", "--inh-caps=-sys_module", "--bounding-set=-sys_module")
# One without a userland proxy is to start without that module, too. Those of 2025 refuse (moby's pull request 49293);
# only who is in the same Docker network as a container needs it, to reach the ports that that one publishes.
_WITHOUT_BR_NETFILTER = "DOCKER_IGNORE_BR_NETFILTER_ERROR"

_MOVE_LAYER = 'cp --archive "$4/." "$3" && mount --move "$3" "$4"'

_TABLES = ("nat", "filter", "raw", "mangle")

COVERED = ("/run", "/etc")
_COVER = f"""
{mounts.FORGET}{mounts.HIDE}
forget_others "$1" "$2"; hide "$3"; shift 3
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/etc/upper /run/etc/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work etc /etc
"""
# containerd makes a directory for what users may add to it, where Debian's own configuration does not name another.
_COVER_OPT = """
mkdir -p /run/opt/upper /run/opt/work
mount -t overlay -o lowerdir=/opt,upperdir=/run/opt/upper,workdir=/run/opt/work opt /opt
"""
# Of one that hangs it writes down the stacks, when dockerd asks for them before it kills it.
_COVER_TMP = "mount -t tmpfs -o mode=1777 tmpfs /tmp\n"


@dataclass(frozen=True)
class Setting:
    """What is a daemon's, and not a container's."""

    userland_proxy: bool = True
    runtime: str = docker_runtime.USUAL

    @property
    def suffix(self) -> str:
        """What tells such a daemon's directory and control group from others'. No runtime's name holds a plus."""
        proxy = "" if self.userland_proxy else "-noproxy"
        return proxy + ("" if self.runtime == docker_runtime.USUAL else f"+{self.runtime}")

    @property
    def socket(self) -> str:
        """Where it listens, below the lab's directory."""
        return f"docker{self.suffix}/sock"


AS_IT_COMES = Setting()


class Daemon:
    """A running private dockerd; `running` starts it, and `ensure` starts it again when it was killed."""

    def __init__(self, lab: Lab, data_root: Path, lock: int, setting: Setting = AS_IT_COMES) -> None:
        self.lab = lab
        self.setting = setting
        suffix = setting.suffix
        self.directory = lab.directory / f"docker{suffix}"
        self.cgroup = f"{lab.cgroup}/dockerd{suffix}"
        self.engine = Engine(lab.directory / setting.socket)
        self.versions: dict[str, str] = {}
        self.command: list[str] = []
        self._data_root = data_root
        self._lock = lock
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup: Cgroup | None = None
        self._rules = b""
        self._publishing: set[object] = set()  # those for whom the rules are in force
        self._imported: set[str] = set()  # and found: those of this run, of which two may be compared

    def ensure(self) -> None:
        """Start it unless it lives."""
        if not self.is_alive():
            self.stop()
            try:
                self._start()
            except BaseException:
                self.stop()
                raise

    def is_alive(self) -> bool:
        """Whether dockerd runs."""
        return self._process is not None and self._process.poll() is None

    def pids(self) -> list[int]:
        """dockerd, containerd, and what they started that was not moved elsewhere."""
        return self._cgroup.pids() if self._cgroup is not None else []

    def named(self, command: str) -> list[int]:
        """Those of `pids` that run this program."""
        return [pid for pid in self.pids() if _command(pid) == command]

    def stop(self) -> None:
        """End it with its containers, politely first so that its files are whole."""
        if self._process is not None:
            if self.is_alive():
                self._shut_down(self._process)
            end_session(self._process)
        self._process = None
        self._stack.close()

    def _shut_down(self, process: subprocess.Popen[bytes]) -> None:
        """Return when it has ended, or has nothing left to do: what it ends last is its containerd, and for that one's
        end it looks but once a second (moby: libcontainerd/supervisor, stopDaemon).
        """
        containerd = set(self.named("containerd"))
        process.terminate()
        deadline = time.monotonic() + _STOP_S
        while process.poll() is None and time.monotonic() < deadline:
            if containerd and containerd.isdisjoint(self.pids()):
                return
            time.sleep(_STOP_POLL_S)

    def import_image(self, image: Image) -> str:
        """The name of ``image`` in this daemon, imported first if it is not there (seconds)."""
        name = f"virtoll:{_tag(image)}"
        if name in self._imported:
            return name
        present = self.engine.call("GET", "/images/json")
        if not any(name in (entry["RepoTags"] or ()) for entry in present):
            self._import(image, present)
        self._imported.add(name)
        return name

    def _import(self, image: Image, others: list[dict[str, Any]]) -> None:
        """Import it, and remove what was imported before the last few, but for what is of this run."""
        for entry in sorted(others, key=lambda entry: -entry["Created"])[_KEEP_IMAGES - 1 :]:
            if self._imported.isdisjoint(entry["RepoTags"] or ()):
                self.engine.call("DELETE", f"/images/{entry['Id']}", force=1)
        with forms.tar_stream(self.lab.host, image) as archive:
            query = {"fromSrc": "-", "repo": "virtoll", "tag": _tag(image)}
            answer = self.engine.call("POST", "/images/create", archive, timeout_s=600, **query)
        if '"error"' in str(answer):
            raise PlatformError(f"the image could not be imported: {answer}", where="docker")

    def make_disk(self, directory: Path, free_bytes: int) -> None:
        """Make what `limit_disk` mounts, in the instance's ``directory``: a file system with ``free_bytes``."""
        arguments = layer.arguments(directory, free_bytes, directory)
        self.lab.host.run(layer.script(layer.MAKE, arguments=arguments))

    def limit_disk(self, container: str, directory: Path, free_bytes: int) -> None:
        """Give a created container ``free_bytes`` to write: its writable layer moves to the file system made for it.

        Docker's overlay2 driver keeps a container's upper and work directory in one directory, and unmounts what is
        mounted there when it removes it. The mount is in the daemon's mount namespace alone and ends with it, too.
        """
        assert self._process is not None
        upper = self.engine.call("GET", f"/containers/{container}/json")["GraphDriver"]["Data"]["UpperDir"]
        fresh = directory / "layer"
        fresh.mkdir()
        arguments = (*layer.arguments(directory, free_bytes, fresh), str(Path(upper).parent))
        command = layer.script(layer.MOUNT, _MOVE_LAYER, arguments=arguments)
        self.lab.host.run(["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", *command])

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Docker's firewall rules in force for the length of the block; several containers may publish at a time.

        Put in place for the first of them and withdrawn after the last: Docker adds its own for each in between.
        """
        one = object()
        if not self._publishing:
            command = f"echo 1 >/proc/sys/{_CALL_FORWARD}; exec {self._tools}/iptables-restore"
            self._sut("sh", "-c", command, stdin=self._rules)
        self._publishing.add(one)
        try:
            yield
        finally:
            self._publishing.discard(one)
            if not self._publishing:
                self._withdraw_rules()

    @property
    def _tools(self) -> Path:
        return self.directory / "bin"

    def _start(self) -> None:
        self._tools.mkdir(parents=True, exist_ok=True)
        for name in ("iptables", "iptables-save", "iptables-restore"):
            if not (self._tools / name).is_symlink():
                (self._tools / name).symlink_to(XTABLES)
        config, log = self.directory / "daemon.json", self.directory / "log"
        config.write_text("{}\n", encoding="utf-8")
        self.engine.path.unlink(missing_ok=True)  # of a daemon that was killed
        self._cgroup = self._stack.enter_context(owned(self.lab.ledger, self.cgroup, cpus=self.lab.generator.cpus))
        self.command = self._argv(config)
        with log.open("wb") as output:
            self._process = self.lab.host.spawn(
                self._covered(self.command),
                stdout=output.fileno(),
                stderr=output.fileno(),
                env={"PATH": f"{self._tools}:{search_path()}", _WITHOUT_BR_NETFILTER: "1"},
                confinement=Confinement(self._cgroup.procs, netns=self.lab.sut.netns),
                pass_fds=(self._lock,),
            )
        self._await(log)
        self._rules = self._sut(f"{self._tools}/iptables-save")
        self._withdraw_rules()
        self._publishing.clear()  # the containers of an earlier daemon have died with it
        for container in self.engine.call("GET", "/containers/json", all=1):  # of a run that was killed
            self.engine.call("DELETE", f"/containers/{container['Id']}", force=1, v=1)

    def _covered(self, command: Sequence[str]) -> list[str]:
        """The command in a mount namespace of its own, where what it writes beside its own files is not kept, and where
        it may load no modules.
        """
        entered = ["unshare", "--mount", "--propagation=private", "sh", "-e", "-c", self._script(), "sh"]
        return [*_WITHOUT_MODULES, *entered, *mounts.kept(self.directory / "none"), self._hidden(), *command]

    def _script(self) -> str:
        """What it is started by: where it writes is covered. (What lies on an overlay cannot hold its containers.)"""
        own = (self._data_root, self.directory)
        covers = [
            cover
            for place, cover in (("/opt", _COVER_OPT), ("/tmp", _COVER_TMP))
            if Path(place).is_dir() and not any(path.is_relative_to(place) for path in own)
        ]
        return "".join([_COVER, *covers, 'exec "$@"\n'])

    def _argv(self, config: Path) -> list[str]:
        return [
            "dockerd",
            f"--config-file={config}",
            f"--data-root={self._data_root}",
            f"--host=unix://{self.engine.path}",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            "--storage-driver=overlay2",
            f"--bip={BRIDGE}",
            "--ip6tables=false",
            "--log-level=warn",
            *([] if self.setting.userland_proxy else ["--userland-proxy=false"]),
            *self._runtime(),
        ]

    def _runtime(self) -> list[str]:
        """What the daemon is told of a runtime that it does not come with."""
        name = self.setting.runtime
        if name == docker_runtime.USUAL:
            return []
        program = docker_runtime.program(self.lab.host, name, self._tools, hierarchies().directories(""))
        return [f"--add-runtime={name}={program}"]

    def _hidden(self) -> str:
        """The kind of file system that it is started without, for its runtime's sake, if any."""
        return bundle.hidden_from(self.setting.runtime, hierarchies().version)

    def _await(self, log: Path) -> None:
        """Return when it answers; note what versions it is made of."""
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while True:
            try:
                version = self.engine.call("GET", "/version", timeout_s=5)
                break
            except PlatformError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise PlatformError(
                        f"dockerd did not start:\n{tail(log)}", where="docker", remedy="virtoll doctor"
                    ) from None
                time.sleep(0.01)
        self.versions = {part["Name"]: part["Version"] for part in version["Components"]}

    def _withdraw_rules(self) -> None:
        """Remove Docker's tables whole: empty chains would still be hooks on every packet's way."""
        tables.delete(self.lab, *_TABLES, first=f"echo 0 >/proc/sys/{_CALL_FORWARD}")

    def _sut(self, *argv: str, stdin: bytes = b"") -> bytes:
        """Run a command in the SUT namespace."""
        return self.lab.host.run(argv, stdin=stdin, confinement=Confinement(netns=self.lab.sut.netns)).stdout


def _tag(image: Image) -> str:
    """By what was built: what an earlier run imported may be older than what the other platforms run by now."""
    return image.built[:12]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""  # it has just ended, as runc's processes do


@dataclass
class _Shared:
    daemon: Daemon
    stack: ExitStack
    users: int = 0


_shared: dict[tuple[str, Setting], _Shared] = {}  # by run


@contextmanager
def running(lab: Lab, setting: Setting = AS_IT_COMES) -> Iterator[Daemon]:
    """The run's daemon with this setting: started by who comes first, ended by who leaves last."""
    key = (lab.run_tag, setting)
    if key not in _shared:
        with ExitStack() as stack:
            daemon = Daemon(lab, *stack.enter_context(_data_root()), setting)
            stack.callback(daemon.stop)
            daemon.ensure()
            _shared[key] = _Shared(daemon, stack.pop_all())
    shared = _shared[key]
    shared.users += 1
    try:
        yield shared.daemon
    finally:
        shared.users -= 1
        if not shared.users:
            del _shared[key]
            shared.stack.close()


@contextmanager
def _data_root() -> Iterator[tuple[Path, int]]:
    """A data root that nobody else uses, and the descriptor of its lock."""
    for slot in range(_SLOTS):
        data_root = private.make(cache_directory(), "docker") / str(slot)
        data_root.mkdir(parents=True, exist_ok=True)
        with data_root.with_suffix(".lock").open("w", encoding="utf-8") as lock:
            if not locks(lock.fileno()):
                continue
            yield data_root, lock.fileno()
            return
    raise HostError(
        f"all {_SLOTS} Docker data roots are in use",
        where=str(cache_directory() / "docker"),
        remedy="`virtoll clean` ends the daemons that a crash left",
    )
