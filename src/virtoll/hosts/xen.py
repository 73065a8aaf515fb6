"""Xen's domains, as `xl` tells of them and ends them (xl(1)). Pure parsers, and the few commands that need no more."""

from __future__ import annotations

import re
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.programs import find

DOMAIN_ID_LIMIT = 0x7FF0  # domain ids are below it (DOMID_FIRST_RESERVED, xen/include/public/xen.h)
HYPERVISOR = Path("/sys/hypervisor/type")
LOGS = Path("/var/log/xen")
_ABSENT = re.compile(
    r"Can't get domid of domain name '.*', maybe this domain does not exist\."
)  # xl_domain.c, main_domid
_DESTROY_S = 120.0  # Xen takes back all of its memory first, and libxl runs the scripts that undo its devices
_MOST_LINES = 4096
_VCPU = re.compile(
    r"(?P<name>\S.{0,200}?)\s+(?P<domain>\d{1,5})\s+(?P<vcpu>\d{1,4})\s+(?:\d{1,4}|-)\s+\S{1,8}\s+[\d.]{1,20}\s+"
    r"(?P<hard>[\w,^-]{1,200})(?:\s+/\s+[\w,^-]{1,200})?"
)


def domain_id(host: Host, name: str) -> int | None:
    """The number of the domain of this name; None where there is none, or no Xen. HostError where xl cannot tell."""
    if find("xl") is None:
        return None
    done = host.run(["xl", "domid", name], check=False)
    if done.returncode == 0:
        return parse_domain_id(done.text)
    said = done.stderr.decode(errors="replace").strip()
    # It says so, too, where the list of domains could not be had; libxl and libxc then say that before.
    if _ABSENT.fullmatch(said) or not _runs_on_xen():
        return None
    raise HostError(
        f"xl domid does not tell whether it is there (exit {done.returncode}): {said[:1000]}",
        where=f"Xen domain {name}",
        remedy="see that xenstored runs and xl is of the Xen that was booted: `xl list`",
    )


def _runs_on_xen() -> bool:
    try:
        return HYPERVISOR.read_text(encoding="ascii").strip() == "xen"
    except OSError:
        return False


def parse_domain_id(text: str) -> int | None:
    """What ``xl domid`` prints; None where that is no domain's number."""
    found = re.fullmatch(r"[0-9]{1,5}", text)
    return int(text) if found and int(text) < DOMAIN_ID_LIMIT else None


def domain_exists(host: Host, name: str) -> bool:
    """Whether there is a domain of this name, be it dead: a dead one that is preserved keeps its memory."""
    return domain_id(host, name) is not None


def qemu_log(name: str) -> Path:
    """What the QEMU of an HVM domain says: libxl makes a file for each name, and leaves it (libxl_create_logfile)."""
    return LOGS / f"qemu-dm-{name}.log"


def destroy_domain(host: Host, name: str) -> None:
    """End it at once and give its memory and devices back; no error where there is none. Its QEMU's log goes, too."""
    if domain_exists(host, name):
        _destroy(host, name)
    qemu_log(name).unlink(missing_ok=True)


def _destroy(host: Host, name: str) -> None:
    done = host.run(["xl", "destroy", name], timeout_s=_DESTROY_S, check=False)
    if domain_exists(host, name):
        raise HostError(
            f"xl destroy leaves it (exit {done.returncode}): {done.stderr.decode(errors='replace').strip()[:1000]}",
            where=f"Xen domain {name}",
            remedy="`xl list` shows its state; where it is dying (d), end what still holds its pages or devices",
        )


def parse_info(text: str) -> dict[str, str]:
    """The lines ``name : value`` of ``xl info``."""
    pairs = (line.partition(":") for line in text.splitlines()[:_MOST_LINES])
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and name.strip()}


def parse_hard_affinity(text: str) -> dict[int, dict[int, str]]:
    """Where Xen may run vCPUs, by domain and vCPU, of ``xl vcpu-list``: ``all`` or a list (``0``, ``0-3,5``).

    Name, ID, VCPU, CPU, State, Time(s), Affinity (Hard / Soft; before Xen 4.5 one). Lines of other forms are skipped.
    """
    found: dict[int, dict[int, str]] = {}
    for line in text.splitlines()[:_MOST_LINES]:
        if match := _VCPU.fullmatch(line.strip()[:1000]):
            found.setdefault(int(match["domain"]), {})[int(match["vcpu"])] = match["hard"]
    return found
