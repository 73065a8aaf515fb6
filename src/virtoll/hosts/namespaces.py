"""/run/netns, where network namespaces have their names, as iproute2 keeps it (ip-netns(8)).

The first `ip netns add` since the machine booted mounts that directory over itself, with all that is mounted in it.
Names that were there before can then not be removed any more: what they stand for is mounted twice, and the lower one
is out of reach. So that anybody's `ip netns add` may fall into a run, a lab does as iproute2 does before it makes its
own; the mount goes with the last lab, or stays for whoever has a namespace in it by then, as iproute2 would have left
it. A file beside it tells that the mount is virtoll's. Labs that begin while others end take turns (a lock on /run): a
mount with a namespace in it cannot be taken away.
"""

from __future__ import annotations

from virtoll.hosts.base import Host

NETNS = "/run/netns"
_OURS = "/run/virtoll-netns"

# The file comes first: a kill in between leaves no mount unknown. $1: a namespace's name.
_FIRST = (
    f"mkdir -p {NETNS}; mountpoint -q {NETNS} || {{ : >{_OURS}; mount --rbind {NETNS} {NETNS}; }}; "
    f': >{NETNS}/"$1"; unshare --net={NETNS}/"$1" true'
)
_UNMOUNTED = f"if [ -e {_OURS} ] && {{ ! mountpoint -q {NETNS} || umount {NETNS}; }}; then rm {_OURS}; fi"


LOCK_S = 50  # for other labs to begin or end: any user may hold the lock, too
_HELD = 75  # an exit code of nobody's


def _locked() -> str:
    return f"flock -E {_HELD} -w {LOCK_S} /run"


def first(name: str) -> str:
    """A line of shell that makes a lab's first namespace: after it /run/netns is a mount, and stays one."""
    held = f"[ $code != {_HELD} ] || echo 'somebody holds the lock on /run' >&2"
    return f"{_locked()} sh -e -c '{_FIRST}' sh {name} || {{ code=$?; {held}; exit $code; }}"


def unmount_if_empty(host: Host, _path: str) -> None:
    """Take virtoll's own mount of /run/netns away, unless somebody has a namespace in it, or holds the lock: it stays
    then as iproute2 would have left it.
    """
    host.run([*_locked().split(), "sh", "-c", _UNMOUNTED], check=False)
