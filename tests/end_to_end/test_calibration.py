"""A real calibration: gloo processes under torchrun, what is saved of it, and how it ends when it
does not end well.
"""

import io
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpscope.launch.measuring.calibration_run import run_calibration
from dpscope.launch.measuring.calibration_settings import calibration_settings
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.sweeps import processes_of

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    settings = calibration_settings(
        device="cpu",
        devices="2,3",
        min_bytes="4K",
        max_bytes="64KiB",
        iterations=5,
        warmup_iterations=1,
        timeout_s=120,
    )
    folder = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch, light_jobs():
        patch.setattr(tempfile, "tempdir", str(folder))
        calibration = run_calibration(settings, console(), parse_link("2GB/s"))
    assert processes_of(folder) == []
    return calibration


def test_every_collective_size_and_iteration_is_there(measured: Calibration) -> None:
    missing = {(item.collective, item.devices) for item in measured.left_out}
    for collective, devices in itertools.product(COLLECTIVES, (2, 3)):
        points = [
            one for one in measured.points if (one.collective, one.devices) == (collective, devices)
        ]
        if (collective, devices) in missing:
            assert points == []
            continue
        shared = collective in ("reduce_scatter", "all_gather")
        # Shares of equal length: 4,096 B / 4 B = 1,024 floats are 3 x 341, 4,092 B.
        floats = [
            (1024 << step) // devices * devices if shared else 1024 << step for step in range(5)
        ]
        assert [one.size_bytes for one in points] == [4 * count for count in floats]
        assert [one.count for one in points] == [
            count // devices if shared else count for count in floats
        ]
        assert all(len(one.times_us) == 5 and min(one.times_us) > 0 for one in points)
        pairs = [pair for one in points for pair in zip(one.shortest_us, one.times_us, strict=True)]
        assert all(0 < shortest <= slowest for shortest, slowest in pairs)
    assert ("all_reduce", 2) not in missing
    assert ("all_reduce", 3) not in missing
    assert (measured.backend, measured.source, measured.device_names) == (
        "gloo",
        "measured",
        ("cpu",) * 3,
    )
    assert measured.environment is not None
    assert measured.environment.torch_version is not None
    assert measured.links[2].gb_per_s == 2.0
    assert measured.nccl == ()  # gloo


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"timeout_s": 1.0}, "nothing is saved: passed its time limit of 1 s"),  # dies whole
        (
            {"collectives": "all_reduce", "min_bytes": "4096G", "max_bytes": "8192G"},
            r"nothing could be timed: needs 8.8e\+03 GB on every rank",
        ),
        ({"dtype": "float64"}, r"calibration failed, nothing is saved: rank \d: "),
    ],
)
def test_a_job_that_fails_reports_why_in_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if "dtype" in flags:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    settings = calibration_settings(**{"device": "cpu", "devices": "2", "timeout_s": 60, **flags})
    with pytest.raises(DpscopeError, match=message) as raised:
        run_calibration(settings, console())
    assert "\n" not in str(raised.value)
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
