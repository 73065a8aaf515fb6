"""What Firecracker and Cloud Hypervisor take, as their APIs are documented: bodies of requests, for the doubles.

Sources: firecracker's src/firecracker/swagger/firecracker.yaml (1.16), cloud-hypervisor's
vmm/src/api/openapi/cloud-hypervisor.yaml (v53). Of the parts that no driver of ours names, not all are here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class RefusalError(Exception):
    """A request that is refused, with its status."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True)
class Of:
    """A type of JSON's; a `*` before a field's name in an object says that it must be there."""

    kind: type[Any]
    fields: dict[str, Of] = field(default_factory=dict)
    items: Of | None = None
    values: tuple[Any, ...] = ()
    least: float = float("-inf")
    most: float = float("inf")

    def hold(self, value: Any, where: str = "body") -> None:
        """RefusalError where a value is not of it."""
        if not isinstance(value, self.kind) or isinstance(value, bool) != (self.kind is bool):
            raise RefusalError(400, f"{where}: invalid type, expected {self.kind.__name__}")
        if self.values and value not in self.values:
            raise RefusalError(400, f"{where}: unknown variant {value!r}, expected one of {self.values}")
        if self.kind is int and not self.least <= value <= self.most:
            raise RefusalError(400, f"{where}: {value} is out of bounds")
        if self.items is not None:
            for number, item in enumerate(value):
                self.items.hold(item, f"{where}[{number}]")
        if self.kind is dict:
            known = {name.lstrip("*"): one for name, one in self.fields.items()}
            for name in value:
                if name not in known:
                    raise RefusalError(400, f"{where}: unknown field `{name}`")
                known[name].hold(value[name], f"{where}.{name}")
            for name in self.fields:
                if name.startswith("*") and name[1:] not in value:
                    raise RefusalError(400, f"{where}: missing field `{name[1:]}`")


TEXT, FLAG, NUMBER = Of(str), Of(bool), Of(int, least=0)
BUCKET = Of(dict, {"*size": NUMBER, "*refill_time": NUMBER, "one_time_burst": NUMBER})
LIMITER = Of(dict, {"bandwidth": BUCKET, "ops": BUCKET})
FIRECRACKER = {
    "/boot-source": Of(dict, {"*kernel_image_path": TEXT, "boot_args": TEXT, "initrd_path": TEXT}),
    "/machine-config": Of(
        dict,
        {
            "*vcpu_count": Of(int, least=1, most=32),
            "*mem_size_mib": Of(int, least=1),
            "smt": FLAG,
            "track_dirty_pages": FLAG,
            "huge_pages": Of(str, values=("None", "2M")),
        },
    ),
    "/drives": Of(
        dict,
        {
            "*drive_id": TEXT,
            "*is_root_device": FLAG,
            "partuuid": TEXT,
            "cache_type": Of(str, values=("Unsafe", "Writeback")),
            "is_read_only": FLAG,
            "path_on_host": TEXT,
            "rate_limiter": LIMITER,
            "io_engine": Of(str, values=("Sync", "Async")),
            "socket": TEXT,
        },
    ),
    "/network-interfaces": Of(
        dict,
        {
            "*iface_id": TEXT,
            "*host_dev_name": TEXT,
            "guest_mac": TEXT,
            "mtu": Of(int, least=68, most=65535),
            "rx_rate_limiter": LIMITER,
            "tx_rate_limiter": LIMITER,
        },
    ),
    "/actions": Of(dict, {"*action_type": Of(str, values=("FlushMetrics", "InstanceStart", "SendCtrlAltDel"))}),
}
_CONSOLE = {"file": TEXT, "socket": TEXT, "*mode": Of(str, values=("Off", "Pty", "Tty", "File", "Socket", "Null"))}
VM_CONFIG = Of(
    dict,
    {
        "*payload": Of(dict, dict.fromkeys(("firmware", "kernel", "cmdline", "initramfs", "igvm"), TEXT)),
        "cpus": Of(dict, {"*boot_vcpus": Of(int, least=1), "*max_vcpus": Of(int, least=1), "nested": FLAG}),
        "memory": Of(dict, {"*size": NUMBER, "mergeable": FLAG, "shared": FLAG, "hugepages": FLAG, "thp": FLAG}),
        "disks": Of(
            list,
            items=Of(
                dict,
                {
                    "path": TEXT,
                    "readonly": FLAG,
                    "direct": FLAG,
                    "num_queues": NUMBER,
                    "image_type": Of(str, values=("FixedVhd", "Qcow2", "Raw", "Vhdx", "Unknown")),
                },
            ),
        ),
        "net": Of(
            list,
            items=Of(
                dict,
                {"tap": TEXT, "ip": TEXT, "mask": TEXT, "mac": TEXT, "host_mac": TEXT, "num_queues": NUMBER},
            ),
        ),
        "serial": Of(dict, _CONSOLE),
        "console": Of(dict, {**_CONSOLE, "iommu": FLAG}),
    },
)
