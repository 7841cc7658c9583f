"""The cores that this process may use: by its affinity, and by its control groups' quota of CPU
time.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUP = Path("sys/fs/cgroup")
# of version 2, then of version 1
_MOUNTS = (_CGROUP, _CGROUP / "unified", _CGROUP / "cpu", _CGROUP / "cpu,cpuacct")


def usable_cores(root: Path = Path("/")) -> int:
    """Whole cores: of a container with a quota of 2.5, two run all the time."""
    by_affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, int(min([by_affinity, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """The quota of each control group that limits this process, in cores.

    A group is limited by those above it as well. In a container its folder may be the mount itself,
    whatever its path is outside. Source: the kernel's Documentation, admin-guide/cgroup-v2.rst
    (cpu.max) and scheduler/sched-bwc.rst.
    """
    for mount in _MOUNTS:
        for path in _group_paths(root):
            for folder in (path, *path.parents):
                quota = _quota(root / mount / folder.relative_to("/"))
                if quota is not None:
                    yield quota


def _group_paths(root: Path) -> set[PurePosixPath]:
    """The control groups of this process by its list, ``number:controllers:path`` in each line, and
    the one at the mount.
    """
    paths = {PurePosixPath("/")}
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return paths
    for line in lines:
        _, controllers, path = line.split(":", 2)
        limits_cpu = not controllers or "cpu" in controllers.split(",")
        if limits_cpu and ".." not in path:  # a group outside of the container's part of the tree
            paths.add(PurePosixPath(path))
    return paths


def _quota(group: Path) -> float | None:
    """A control group's quota in cores; None without one."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if quota.isdecimal() else None
    except (OSError, ValueError):  # not there, or not readable
        return None
