"""Where what Debian does not have is fetched, or built, for images: inside an image of tools, so that this machine
needs none of them.

It has this machine's name servers, the certificate authorities that were added to it, and of root's environment what
says where to go (proxies, GOPROXY, JAVA_TOOL_OPTIONS). What comes from outside is read by the user nobody there, not by
root, who sees no processes but these; and whoever asks for it takes only what has a locked digest.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.images.cached import remove

# $1: what is done, in /mnt; $2: a directory for this alone; $3: the root filesystem, which stays as it is. The mounts
# go with their namespace, and all processes with virtoll: the first of them, whose end is theirs, is ended with it. It
# stays this shell, root's, for the kernel forgets with whom a process is to end as soon as that becomes nobody.
_ENTER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-e", "-c")
_SCRIPT = """
chmod --reference="$3" "$2/upper"
mount -t overlay -o "lowerdir=$3,upperdir=$2/upper,workdir=$2/work" virtoll-workshop "$2/root"
mount -t proc proc "$2/root/proc"
mount --bind /dev "$2/root/dev"
cp /etc/resolv.conf /etc/hosts "$2/root/etc/"
added=/usr/local/share/ca-certificates
[ ! -d $added ] || cp -r $added/. "$2/root$added/"
for name in $(env | sed -n "s/^\\([A-Za-z_][A-Za-z_0-9]*\\)=.*/\\1/p"); do
    case $name in *_proxy | *_PROXY | GOPROXY | JAVA_TOOL_OPTIONS) ;; *) unset "$name" ;; esac
done
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
chroot "$2/root" sh -e -c '
update-ca-certificates >&2
chown nobody /mnt
cd /mnt
exec setpriv --reuid nobody --regid nogroup --clear-groups --no-new-privs --bounding-set=-all \\
    sh -e -c "$1"' sh "$1" || exit
"""


class Workshop:
    """One, in ``place``, a directory that is made for it and removed with it."""

    def __init__(self, place: Path) -> None:
        self._room = place
        for name in ("root", "work", "upper/mnt"):
            (place / name).mkdir(parents=True)

    @property
    def bench(self) -> Path:
        """The directory in which it is done: what is laid there is found there, and what is made."""
        return self._room / "upper/mnt"

    def do(self, host: Host, tools: Image, script: str, timeout_s: float) -> str:
        """Run a shell script there; what was said, whether it failed or not.

        CommandError where it did not end in time: what it says is about the time alone.
        """
        argv = [*_ENTER, _SCRIPT, "sh", script, str(self._room), str(tools.rootfs)]
        try:
            done = host.run(argv, timeout_s=timeout_s, check=False)
        except CommandError as error:  # its words are followed by the whole script
            raise CommandError(error.problem.what.partition(": ")[0], where=host.where) from error
        return (done.stdout + done.stderr).decode(errors="replace")

    def take(self, made: str, kept: Path, mode: int) -> bool:
        """Copy a file from the bench: whoever made it may still write to his own. Whether it is there, and a file."""
        found = self.bench / made
        if found.is_symlink() or not found.is_file():
            return False
        shutil.copyfile(found, kept, follow_symlinks=False)
        kept.chmod(mode)
        return True

    def remove(self) -> None:
        """With all that is in it."""
        remove(self._room)


def expect_locked(path: Path, sha256: str, remedy: str) -> None:
    """HostError where a file is not what was locked, or cannot be read."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HostError(f"{path.name} cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    if found != sha256:
        what = f"{path.name} is not what was locked: its SHA-256 is {found}, not {sha256}"
        raise HostError(what, where=str(path), remedy=remedy)
