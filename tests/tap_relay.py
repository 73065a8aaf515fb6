"""What a virtual machine monitor does with a tap: carries frames between it and a guest, here another namespace.

tap_relay.py NETNS TAP GUEST_NETNS MAC
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000


def _enter(netns: str) -> None:
    with Path("/run/netns", netns).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), netns)


def _tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


def _main(netns: str, tap: str, guest_netns: str, mac: str) -> None:
    _enter(netns)
    outer = _tap(tap)
    _enter(guest_netns)
    inner = _tap("standin")
    subprocess.run(["ip", "link", "set", "standin", "address", mac, "name", "eth0"], check=True)
    other = {outer: inner, inner: outer}
    while True:
        for ready in select.select(list(other), [], [])[0]:
            try:
                os.write(other[ready], os.read(ready, 65536))
            except OSError:
                continue  # the guest's device is not up yet


if __name__ == "__main__":
    _main(*sys.argv[1:])
