"""A stand-in for OpenVZ's programs (vzctl, vzlist, prlctl, ploop), as far as their documents and public source say.

It keeps containers in a directory, and answers with their exit codes and messages, so that the whole of the driver's
way can be gone on a machine without OpenVZ. It is no OpenVZ: its container is a chroot; or, where it is told to make
real ones (``namespaces``), what unshare(1), a control group of Linux and ext4 on a loop device make. What it proves is
that the driver asks for what is documented, in an order that works, and leaves nothing; nothing about OpenVZ itself.

`install` makes the programs; each is ``python vz_double.py STATE PROGRAM ARGUMENT...``.
"""

from __future__ import annotations

import getopt
import json
import re
import sys
from pathlib import Path
from typing import Any

import vz_disk
from virtoll.hosts.local import LocalHost
from vz_container import BEANCOUNTERS, EXEC, INVALID_SYNTAX, SLICE, Vzctl, end, group_of, options_of, read, running

RELEASE = "3.10.0-1160.90.1.vz7.200.7"
PROGRAMS = ("vzctl", "vzlist", "prlctl", "ploop")
# ploop(8), EXIT STATUS
PLOOP_CREATE, PLOOP_PARAM, PLOOP_DESCRIPTOR, PLOOP_NOT_MOUNTED = 1, 38, 39, 40

_UNLIMITED = 2**63 - 1  # LONG_MAX


class VzHost(LocalHost):
    """This machine, with an OpenVZ kernel's files as the stand-in writes them. Its programs must be on the PATH."""

    def __init__(self, state: Path, group: tuple[Path, ...] = ()) -> None:
        super().__init__(group)
        self.state = state

    def read(self, path: Path) -> bytes:
        """Those files are asked of the stand-in; all others are this machine's."""
        text = proc_file(self.state, str(path))
        return super().read(path) if text is None else text.encode()


def install(state: Path, *, namespaces: bool) -> Path:
    """Make the programs, with what they keep in ``state``; the directory that they are in. ``namespaces``: containers
    are real ones, which needs a machine; otherwise a chroot must do.
    """
    programs = state / "bin"
    for directory in (programs, state / "conf", state / "run"):
        directory.mkdir(parents=True)
    (state / "settings.json").write_text(json.dumps({"namespaces": namespaces, "fails": {}}))
    for name in PROGRAMS:
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {state} {name} "$@"\n')
        path.chmod(0o755)
    return programs


def fail(state: Path, **fails: tuple[int, str]) -> None:
    """From now on these verbs of vzctl's fail, with this exit code and message."""
    settings = json.loads((state / "settings.json").read_text())
    (state / "settings.json").write_text(json.dumps({**settings, "fails": fails}))


def calls(state: Path) -> list[list[str]]:
    """What the programs were called with, program first."""
    return [json.loads(line) for line in (state / "calls").read_text().splitlines()]


def proc_file(state: Path, path: str) -> str | None:
    """What the kernel's file says, or the configuration's; None where it is no file of OpenVZ's."""
    match path:
        case "/etc/vz/vz.conf":
            return f'## Global parameters\nVIRTUOZZO=yes\nVE_CGROUPSLICE="{SLICE}"\n'
        case "/proc/sys/kernel/osrelease":
            return f"{RELEASE}\n"
        case "/proc/user_beancounters":
            return _beancounters(state)
        case "/proc/vz/vestat":
            return _vestat(state)
    return None


def _beancounters(state: Path) -> str:
    columns = ("held", "maxheld", "barrier", "limit", "failcnt")
    lines = ["Version: 2.5", f"{'uid':>10}  {'resource':<12}" + "".join(f" {name:>20}" for name in columns)]
    for container in running(state):
        parameters = read(state / "conf" / f"{container}.json")["parameters"]
        for index, name in enumerate(BEANCOUNTERS):
            limit = parameters.get(name, "unlimited")
            number = _UNLIMITED if limit == "unlimited" else int(limit)
            held, most, refused = _used(container, name)
            before = f"{container:>10}:" if index == 0 else " " * 11
            lines.append(f"{before} {name:<12}" + "".join(f" {n:>20}" for n in (held, most, number, number, refused)))
    return "\n".join(lines) + "\n"


def _used(container: str, name: str) -> tuple[int, int, int]:
    """Held, most ever held, and refused, where the stand-in's control group tells."""
    group = group_of(container)
    try:
        if name == "numproc":
            held = len(group.pids())
            events = (group.directory("pids") / "pids.events").read_text().split()
            return held, held, int(events[events.index("max") + 1])
        if name == "physpages" and group.hierarchies.version == 1:
            files = ("usage_in_bytes", "max_usage_in_bytes", "failcnt")
            held, most, refused = (int((group.directory("memory") / f"memory.{f}").read_text()) for f in files)
            return held // 4096, most // 4096, refused
    except (OSError, KeyError):
        pass
    return 0, 0, 0


def _vestat(state: Path) -> str:
    names = ["user", "nice", "system", "uptime", "idle", "strv", "uptime", "used", "maxlat", "totlat", "numsched"]
    lines = ["Version: 2.2", f"{'VEID':>10}" + "".join(f" {name:>20}" for name in names)]
    for container in running(state):
        used_ns = group_of(container).cpu_ns() or 0
        numbers = [used_ns // 10_000_000, 0, 0, 1, 0, 0, 1, used_ns, 0, 0, 0]
        lines.append(f"{container:>10}" + "".join(f" {number:>20}" for number in numbers))
    return "\n".join(lines) + "\n"


def _vzctl(state: Path, words: list[str]) -> int:
    if words == ["--version"]:
        print("vzctl version 7.0.266")
        return 0
    if len(words) < 2:
        end(INVALID_SYNTAX, "Usage: vzctl [options] <command> <ctid> [parameters]")
    verb, container, *rest = words
    if verb in (fails := read(state / "settings.json")["fails"]):
        end(*fails[verb])
    there = Vzctl(state, container)
    match verb:
        case "create" | "set":
            getattr(there, verb)(rest)
        case "exec2":
            return there.exec(rest)
        case "exec":
            return EXEC if there.exec(rest) else 0
        case "start" | "stop" | "status" | "destroy" | "mount" | "umount":
            getattr(there, verb)()
        case _:
            end(INVALID_SYNTAX, f"Bad command: {verb}")
    return 0


def _vzlist(state: Path, words: list[str]) -> int:
    options, asked = options_of(words, ("all", "json", "output="))
    found = []
    for path in sorted((state / "conf").glob("*.json")):
        if asked and path.stem not in asked:
            continue
        parameters, runs = read(path)["parameters"], path.stem in running(state)
        told: dict[str, Any] = {
            "ctid": path.stem,
            "hostname": None,
            "ip": [],
            "status": "running" if runs else "stopped",
        }
        told |= {name: int(parameters.get(name, 0)) for name in ("cpulimit", "cpuunits", "cpus")}
        found.append({name: told[name] for name in options.get("output", "ctid,status").split(",")})
    if not found:
        end(1, "Container(s) not found")
    print(json.dumps(found, indent=2))
    return 0


def _prlctl(state: Path, words: list[str]) -> int:
    if words[:1] != ["list"]:
        end(1, f"Unknown action: {' '.join(words)}")
    told = [
        {
            "uuid": f"{{{path.stem}}}",
            "status": "running" if path.stem in running(state) else "stopped",
            "ip_configured": "-",
            "type": "CT",
            "name": read(path)["name"],
        }
        for path in sorted((state / "conf").glob("*.json"))
    ]
    print(json.dumps(told, indent="\t"))
    return 0


def _ploop(state: Path, words: list[str]) -> int:
    real = bool(read(state / "settings.json")["namespaces"])
    mounted = state / "mounted"
    mounted.mkdir(exist_ok=True)
    verb, *rest = words
    found, paths = getopt.getopt(rest, "s:t:m:f:")
    options, path = dict(found), Path(paths[0]).resolve()
    image, marker = path.with_name("root.hds"), mounted / str(path).replace("/", "_")
    match verb:
        case "init":
            if path.exists():
                end(PLOOP_CREATE, f"Can't create {path}: File exists")
            if not re.fullmatch(r"\d+[KMGT]?", options["-s"]):
                end(PLOOP_PARAM, f"Bad size: {options['-s']}")
            vz_disk.create(path, options["-s"], real=real)
            path.with_name("DiskDescriptor.xml").write_text(f"<File>{path.name}</File><Size>{options['-s']}</Size>\n")
        case "mount":
            if not path.exists():
                end(PLOOP_DESCRIPTOR, f"Can't open {path}")
            vz_disk.attach(image, Path(options["-m"]), real=real)
            marker.write_text(options["-m"])
        case "umount":
            if not marker.exists():
                end(PLOOP_NOT_MOUNTED, f"Image {path} is not mounted")
            vz_disk.detach(image, Path(marker.read_text()), real=real)
            marker.unlink()
        case _:
            end(PLOOP_PARAM, f"Unknown command: {verb}")
    return 0


def main(state: Path, program: str, words: list[str]) -> int:
    """Note the call, and answer it."""
    with (state / "calls").open("a") as calls_made:
        calls_made.write(json.dumps([program, *words]) + "\n")
    return {"vzctl": _vzctl, "vzlist": _vzlist, "prlctl": _prlctl, "ploop": _ploop}[program](state, words)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
