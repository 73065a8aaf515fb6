"""What Docker has its containers made by: runc, which it comes with, or another OCI runtime that its daemon is told of.

Any program that takes runc's commands will do; one that virtoll does not know is taken to be like runc, and what its
limits are worth each trial proves. Two need something of their own:

- **crun** refuses a mixture of control groups' versions: its daemon does not see the second (`bundle.hidden_from`).
- **runsc** (gVisor) would make directories for control groups that are not there, and leave them; and one of 2022 takes
  every network for the machine's own. So it is called by a script, as the platform `gvisor` calls it: it makes no
  groups but starts in the instance's, where the Sentry's threads have room, and does not see what it looks for. It
  takes the addresses over that it finds as it starts, when of all networks only Docker's own is there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.programs import find
from virtoll.platforms.gvisor import COVERED, on_its_disk
from virtoll.platforms.requirements import command_missing

USUAL, SENTRY = "runc", "runsc"
_PACKAGED = ("crun", SENTRY)  # by Debian, each in a package of its name
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,59}")  # dockerd makes all letters of --add-runtime small

# $1 is the program; what follows in the script is what containerd calls it with (github.com/containerd/go-runc: create
# --bundle DIRECTORY ...). The container's group is one below the payload's, and not made.
_SCRIPT = """\
#!/bin/sh -e
bundle=. before=
for word; do
    [ "$before" != --bundle ] || bundle=$word
    before=$word
done
case " $* " in *" create "*)
    group=$(sed -n 's/.*"cgroupsPath": *"\\([^"]*\\)\\/[^"\\/]*".*/\\1/p' "$bundle/config.json")
    : "${{group:?no cgroupsPath in $bundle/config.json}}"
    for top in {tops}; do echo $$ >"$top$group/cgroup.procs"; done ;;
esac
covered='{mounts} exec "$@"'
exec unshare --mount --propagation=private sh -e -c "$covered" sh {program} --ignore-cgroups {flags} "$@"
"""


def problem(host: Host, runtime: str) -> Problem | None:
    """Why containers cannot be made by one that Docker does not come with, if they cannot. Leaves no trace."""
    if runtime == USUAL:
        return None
    if not _NAME.fullmatch(runtime):
        remedy = 'name one that is in the PATH, in small letters: "runc", "crun"'
        return Problem(f"runtime = {runtime!r} is no name of a program that Docker takes", "docker", remedy)
    if find(runtime) is not None:
        return None
    if runtime in _PACKAGED:
        return command_missing(host, runtime, runtime)
    return Problem(f"{runtime} is not installed", host.where, f"put {runtime} into the PATH, or name another runtime")


def program(host: Host, runtime: str, directory: Path, tops: Iterable[Path]) -> Path:
    """What a daemon is to call it by; ``directory`` is where a script may lie, ``tops`` where control groups do."""
    path = Path(find(runtime) or runtime)
    if runtime != SENTRY:
        return path
    script = directory / runtime
    script.write_text(
        _SCRIPT.format(
            tops=" ".join(shlex.quote(str(top)) for top in tops),
            mounts=" ".join(f"mount -t tmpfs tmpfs {place};" for place in COVERED),
            program=shlex.quote(str(path)),
            flags=" ".join(on_its_disk(host)),
        ),
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script
