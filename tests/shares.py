"""How `make test` shares the tests between its workers, and which begin first."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# The files that take longest, longest first: begun first, no worker is left alone with one of them at the end. What
# computes stands among what waits, for the CPUs are idle otherwise.
_LONG = (
    "faults",
    "films_deployed",
    "platforms_vms",
    "deciding",
    "platforms_containers",
    "failures",
    "knee",
    "own_deployed",
    "slices",
    "isolation",
    "extending",
    "probe_fork_bomb",
    "deciding_losses",
    "loads_viewers",
    "foreign_runs",
    "loads_rtsp",
    "explain",
    "components",
    "janus_deployed",
    "probe_density",
    "report_programme",
    "audit_deployed",
    "fuzz_studies",
    "probe_transfer",
    "terminal",
    "report",
    "probe_flow",
    "empty_image",
    "interrupted",
    "loads_rtmp_viewers",
    "calibration",
    "tails",
    "aggressors",
    "durable",
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
