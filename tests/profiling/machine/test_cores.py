"""Cores of affinity, and of the quota of CPU time that a control group has, in both versions of
control groups.
"""

import os
from pathlib import Path

import pytest

from dpscope.profiling.machine.cores import usable_cores

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))


def system(root: Path, own: str, files: dict[str, str]) -> Path:
    """A system with these files, whose list of this process's control groups is `own`."""
    for name, text in {"proc/self/cgroup": own, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("250000 100000", 2),
        ("200000 50000", 4),
        ("1600000 100000", 8),
        ("50000 100000", 1),
        ("x", 8),
    ],
)
def test_a_containers_quota(tmp_path: Path, quota: str, cores: int) -> None:
    """As docker run --cpus: the folder of the container's group is the mount."""
    assert usable_cores(system(tmp_path, "0::/\n", {f"{V2}/cpu.max": f"{quota}\n"})) == cores


def test_the_groups_above_limit_as_well(tmp_path: Path) -> None:
    """A systemd unit whose slice has 300%."""
    files = {
        f"{V2}/a.slice/cpu.max": "300000 100000\n",
        f"{V2}/a.slice/b.service/cpu.max": "max 100000\n",
    }
    assert usable_cores(system(tmp_path, "0::/a.slice/b.service\n", files)) == 3
    # another's limit is not this process's
    other = system(tmp_path / "other", "0::/c.slice\n", files)
    assert usable_cores(other) == 8


@pytest.mark.parametrize("place", [f"{V1}/docker/1f", V1, "sys/fs/cgroup/cpu,cpuacct"])
def test_version_1(tmp_path: Path, place: str) -> None:
    """In a container the path is the host's, and the group's folder is the mount."""
    own = "4:memory:/elsewhere\n3:cpu,cpuacct:/docker/1f\n"
    files = {f"{place}/cpu.cfs_quota_us": "150000\n", f"{place}/cpu.cfs_period_us": "50000\n"}
    assert usable_cores(system(tmp_path, own, files)) == 3
    (tmp_path / place / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path) == 8


def test_without_control_groups_affinity_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert usable_cores(tmp_path) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert (
        usable_cores(system(tmp_path, "0::/../../b\n", {f"{V2}/cpu.max": "400000 100000\n"})) == 1
    )
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path) == 4
