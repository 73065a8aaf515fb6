"""How `make test` shares the tests between its workers, and which begin first."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# The files that take longest, longest first, but for the one that is a single test: begun first, no worker is left
# alone with one of them at the end.
_LONG = (
    "rust",
    "faults",
    "platforms_containers",
    "films_deployed",
    "slices",
    "failures",
    "platforms_vms",
    "own_deployed",
    "extending",
    "loads_viewers",
    "ssh_deployed",
    "fleet",
    "compare",
    "platforms_microvm",
    "loads_rtsp",
    "loads_ll_hls",
    "platform_openvz_deployed",
    "probe_fork_bomb",
    "janus_deployed",
    "probe_density",
    "host_deployed",
    "audit_deployed",
    "fleet_namespaces",
    "fleet_processes",
    "ll_hls_deployed",
    "isolation",
    "loads_rtmp_viewers",
    "analysis_statistics",
    "probe_flow",
    "networks",
    "interrupted",
    "analysis_stopping",
    "probe_transfer",
    "report",
    "foreign_runs",
    "platform_ssh",
    "deciding",
    "report_programme",
    "analysis_hosts",
    "platforms_xen",
    "components",
    "terminal",
    "explain",
    "aggressors",
    "imports",
    "calibration",
    "empty_image",
    "image_deployed",
    "keeping",
    "loads_window",
    "history",
    "conference",
    "loads_rtsp_live",
    "viewers_deployed",
    "viewers_study",
    "analysis_rules",
    "deciding_losses",
    "platform_openvz",
    "platform_proxmox_ct",
    "platform_proxmox_vm",
    "platform_proxmox_ct_deployed",
)
# Files whose tests are the same on each platform and share a deployment on one: the platforms of a file need not wait
# for each other.
_APART = ("platforms_containers", "platforms_vms", "films_deployed", "slices", "audit_deployed", "image_deployed")


def rank(file: PurePath) -> int:
    """The place of a file's tests in the order in which they begin."""
    name = _name(file)
    return _LONG.index(name) if name in _LONG else len(_LONG)


class ByPlatform(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests go to one worker, for they share deployments; of some files those of one platform do."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if _name(PurePath(file)) not in _APART:
            return file
        return f"{file}::{test.partition('[')[2].partition('-')[0].rstrip(']')}"


def _name(file: PurePath) -> str:
    return file.stem.removeprefix("test_")
