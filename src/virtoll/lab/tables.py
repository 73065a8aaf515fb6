"""Tables of nftables in the SUT's namespace, and the connections that the kernel tracks while there are any.

An entry of connection tracking outlives the table that made it: seconds in UDP (30 unanswered, 120 answered:
nf_conntrack-sysctl), minutes in TCP, days where a connection was never closed. The next instance's first packet, from
the same port of the generator, would then go where the last one's went. So the entries end here, with the last table;
whatever a crash leaves ends with the namespace.
"""

from __future__ import annotations

from virtoll.hosts.base import Confinement
from virtoll.lab.base import Lab

FORGET = "conntrack --flush"  # every entry of the namespace
_DELETE = f'nft -f - && {{ [ -n "$(nft list tables)" ] || {FORGET}; }}'


def delete(lab: Lab, *tables: str, first: str = ":") -> None:
    """Delete IPv4's ``tables``, those that are there; when nobody else's are left, all tracked connections, too.

    ``first``: a shell command of the caller's that goes before, in the namespace.
    """
    # Declaring a table first makes its deletion no error where it was never made.
    text = "".join(f"table ip {table}\ndelete table ip {table}\n" for table in tables)
    lab.host.run(["sh", "-c", f"{first}; {_DELETE}"], stdin=text.encode(), confinement=Confinement(netns=lab.sut.netns))
