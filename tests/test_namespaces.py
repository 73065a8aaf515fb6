"""Somebody's first `ip netns add` since boot falls into a run: what it does to /run/netns, and what is left of it.

In a mount namespace of its own, with a /run of its own, in which nobody has made a network namespace yet.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENT

pytestmark = pytest.mark.machine

# This machine's own mount would still be in the table, below the new /run.
_FRESH = "while umount -l /run/netns 2>/dev/null; do :; done; mount --make-r{} /; mount -t tmpfs virtoll-test /run"
_LAB = f"""{PATIENT}
import subprocess, sys
from pathlib import Path
from virtoll.hosts import ledger
from virtoll.hosts.local import LocalHost
from virtoll.hosts.mountinfo import mount_lines, mount_point
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired

def mounts():
    lines = mount_lines(Path("/proc/self/mountinfo").read_bytes())
    return sorted(path for path in map(mount_point, lines) if path.startswith("/run/netns"))

host, (directory, tag, other) = LocalHost(), sys.argv[1:]
with ledger.opened(host, Path(directory), "run") as led:
    for turn in ("theirs", "ours alone"):
        with wired(host, led, tag, cpu_plan(host, 1)):
            if turn == "theirs":
                subprocess.run(["ip", "netns", "add", other], check=True)
        names = sorted(path.name for path in Path("/run/netns").iterdir())
        print(turn, names, sorted(set(mounts())), sorted(path.name for path in Path("/run").glob("virtoll*")))
        if turn == "theirs":
            subprocess.run(["ip", "netns", "delete", other], check=True)
"""


@pytest.mark.parametrize("propagation", ["private", "shared"])
def test_the_first_ip_netns_add_may_fall_into_a_run(tmp_path: Path, propagation: str) -> None:
    tag, other = secrets.token_hex(2), f"other{secrets.token_hex(2)}"
    script = f'{_FRESH.format(propagation)}; exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-e", "-c", script, "sh"]
    argv += [sys.executable, "-c", _LAB, str(tmp_path / "ledger"), tag, other]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    theirs, ours = done.stdout.splitlines()
    assert theirs == f"theirs ['{other}'] ['/run/netns', '/run/netns/{other}'] ['virtoll-netns']"
    assert ours == "ours alone [] [] []", "the mount goes with the last that is in it"


_BUSY = f"""{PATIENT}
import sys
from pathlib import Path
from virtoll.hosts import ledger
from virtoll.hosts.local import LocalHost
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import free_tag, wired

host = LocalHost()
with ledger.opened(host, Path(sys.argv[1]), "run") as led:
    for _ in range(15):
        with wired(host, led, free_tag(), cpu_plan(host, 1)) as lab:
            lab.host.run(["ip", "-n", lab.sut.netns, "link"])
"""


def test_labs_that_begin_while_others_end_do_not_take_the_mount_from_each_other(tmp_path: Path) -> None:
    script = f"""
    {_FRESH.format("private")}
    for n in 1 2 3 4; do "$1" -c "$2" "$3/$n" & all="$all $!"; done
    for pid in $all; do wait $pid; done
    ls -A /run/netns; find /run -name "virtoll*"; grep netns /proc/self/mountinfo || true
    """
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-e", "-c", script, "sh"]
    argv += [sys.executable, _BUSY, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
