"""The disk of the stand-in for OpenVZ's programs (`vz_double`): what it has in place of a ploop.

On a machine of its own (``real``) it is ext4 with the journal that ploop makes, on a loop device, which limits what is
written as a ploop would. Otherwise, where nothing may be mounted, it is a tar archive, which limits nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# ploop's lib/fsutils.c; it leaves ext4 room to grow to 50 TB, and mke2fs takes 16 without its feature 64bit.
MAKE = ("mkfs.ext4", "-q", "-F", "-j", "-b4096", "-Elazy_itable_init=1,nodiscard,resize=4294967295", "-Jsize=128")


def create(image: Path, size: str, *, real: bool) -> None:
    """A new one, empty; ``size`` as `ploop init -s` takes it."""
    if real:
        subprocess.run(["truncate", "--size", size, str(image)], check=True)
        subprocess.run([*MAKE, str(image)], check=True)
    else:
        subprocess.run(["tar", "--create", "--file", str(image), "--files-from=/dev/null"], check=True)


def attach(image: Path, where: Path, *, real: bool) -> None:
    """Show what it holds in the directory ``where``."""
    if real:
        subprocess.run(["mount", "-t", "ext4", "-o", "loop,noinit_itable", str(image), str(where)], check=True)
    else:
        subprocess.run(["tar", "--extract", "--file", str(image), "-C", str(where)], check=True)


def detach(image: Path, where: Path, *, real: bool) -> None:
    """Keep what was written there, and leave the directory empty."""
    if real:
        if where.is_mount():
            # Who has just made a mount namespace holds it on for a while; what is copied meanwhile must be there.
            subprocess.run(["sync", "--file-system", str(where)], check=True)
            subprocess.run(["umount", str(where)], check=True)
    elif any(where.iterdir()):
        subprocess.run(["tar", "--create", "--numeric-owner", "--file", str(image), "-C", str(where), "."], check=True)
        shutil.rmtree(where)
        where.mkdir()
