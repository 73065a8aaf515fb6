"""Datagrams to an instance and back: what answers inside, and who asks at the generator's."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from virtoll.hosts.base import Confinement
from virtoll.lab.base import Lab
from virtoll.offers import Port

# Perl: every image has it. Answers each datagram with itself, the port that got it, and the address it came from.
SERVER = r"""
use IO::Select; use IO::Socket::INET;
$| = 1;
my $sockets = IO::Select->new;
for my $port (@ARGV) { $sockets->add(IO::Socket::INET->new(Proto => "udp", LocalPort => $port) or die "$port: $!") }
print "ready\n";
while (1) {
  for my $socket ($sockets->can_read) {
    my $from = recv($socket, my $data, 65535, 0);
    next unless length $from;
    my (undef, $address) = sockaddr_in($from);
    send($socket, join(" ", $data, $socket->sockport, inet_ntoa($address)), 0, $from);
  }
}
"""

# A connected socket takes answers from where it sent to, and from nowhere else. One that is refused (ICMP) tries on
# where an answer is wanted: a guest's network may come to live while it asks.
_CLIENT = """
import secrets, signal, socket, sys
signal.alarm(400)  # for all of it: who answers may stand still
source, wants_answer, address, *ports = sys.argv[1:]
for port in map(int, ports):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("", int(source)))
        s.connect((address, port))
        s.settimeout(0.1)
        asked = secrets.token_hex(700)
        while True:
            try:
                s.send(asked.encode())
                told, by, seen = s.recv(65535).decode().split()
            except TimeoutError:
                continue
            except ConnectionRefusedError:
                if wants_answer == "yes":
                    continue
                print("refused")
                break
            assert (told, by) == (asked, str(port)), (told, by)
            print(seen)
            break
"""


def server(ports: Iterable[Port]) -> list[str]:
    """The command that answers on all UDP ports among ``ports``; it prints "ready"."""
    numbers = [str(number) for port in ports if port.protocol == "udp" for number in port.numbers]
    return ["perl", "-e", SERVER, *numbers]


def remembered(lab: Lab) -> None:
    """Have the SUT's kernel, which tracks connections by now, know datagrams' for an hour: by itself it forgets them
    after 30 s, in which a machine may do nothing (`stops`).
    """
    known = [f"net.netfilter.nf_conntrack_udp_timeout{which}=3600" for which in ("", "_stream")]
    lab.host.run(["sysctl", "--quiet", "--write", *known], confinement=Confinement(netns=lab.sut.netns))


def exchanged(lab: Lab, address: str, ports: Iterable[Port], source: int = 0, *, wanted: bool = True) -> list[str]:
    """What each UDP port, asked from the generator's, saw as the asker's address; "refused" if that is not ``wanted``.

    ``source``: the asker's port. An answer from any other address than the one that was asked does not count.
    """
    numbers = [str(number) for port in ports if port.protocol == "udp" for number in port.numbers]
    argv = [sys.executable, "-c", _CLIENT, str(source), "yes" if wanted else "no", address, *numbers]
    done = lab.host.run(argv, confinement=Confinement(netns=lab.generator.netns))
    return done.text.split()
