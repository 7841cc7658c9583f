"""Options of `dpscope calibrate`, sizes that fit into memory, and iterations in rounds."""

import pytest

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.measuring import calibration_settings as settings_module
from dpscope.launch.measuring.calibration_settings import calibration_settings
from dpscope.launch.measuring.collective_timing import shares_of_iterations, sizes_that_fit
from dpscope.profiling.records.calibration import CalibrationSettings
from dpscope.profiling.store.errors import DpscopeError


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dtype": "int3"}, "--dtype int3"),
        ({"collectives": "all_reduce,gossip"}, "--collectives all_reduce,gossip"),
        ({"collectives": ","}, "--collectives ,: choose from all_reduce"),
        ({"devices": "1,2"}, "--devices 1,2"),
        ({"min_bytes": "4QB"}, "--min-bytes 4QB: give a size above 0"),
        ({"min_bytes": "4"}, "--min-bytes 4: give 8 or more"),
        ({"min_bytes": "2M", "max_bytes": "1M"}, "--max-bytes 1M"),
        ({"iterations": 0}, "--iterations 0"),
        ({"timeout_s": 0.0}, "--timeout 0"),
        ({"timeout_s": 1e8}, "--timeout 100000000.0: must be above 0 seconds and at most 1e7"),
        ({"device": "tpu"}, "--device tpu"),
        (
            {"device": "cuda", "devices": "8"},
            "--devices 8: this machine has 4 GPUs that torch can use; request 4 at most",
        ),
        ({"device": "cuda", "devices": "2x8"}, "--devices 2x8: this machine has 4 GPUs"),
        (
            {"devices": "4x2"},
            "--devices 4x2: the command runs on 2 nodes; start it on 4, with --nodes",
        ),
        ({"devices": "2"}, "--nodes 2: --devices 2 spans 1; add a count over all 2, such as 2x1"),
    ],
)
def test_mistakes_name_flag_and_value(
    flags: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        settings_module,
        "resolve_devices",
        lambda kind: Devices(kind, 4 if kind == "cuda" else None),
    )
    nodes = 2 if "nodes" in message else 1
    with pytest.raises(DpscopeError, match=message):
        calibration_settings(nodes, **{"device": "cpu", **flags})


@pytest.mark.parametrize(
    ("smallest", "largest", "sizes"),
    [
        ("4KiB", "256MiB", tuple(4096 << step for step in range(17))),
        ("1 MB", "4MB", (1_000_000, 2_000_000, 4_000_000)),
        ("3000", "12001", (3000, 6000, 12000)),
    ],
)
def test_sizes_double(smallest: str, largest: str, sizes: tuple[int, ...]) -> None:
    assert calibration_settings(device="cpu", min_bytes=smallest, max_bytes=largest).sizes == sizes


def test_sizes_that_do_not_fit_are_left_out() -> None:
    settings = CalibrationSettings(device="cpu", devices=(4,), min_bytes=1 << 20, max_bytes=8 << 20)
    # gloo: buffer and a copy of it, all_gather a quarter more: 2.25 x 4 MiB = 9.4 MB fit into 10
    # MB, 18.9 MB do not.
    fitting, left_out = sizes_that_fit("all_gather", settings, devices=4, free_bytes=10_000_000)
    assert fitting == [1 << 20, 2 << 20, 4 << 20]
    assert [(item.size_bytes, item.devices) for item in left_out] == [(8 << 20, 4)]
    assert left_out[0].reason == "needs 0.0189 GB on every rank, 0.01 GB are free there"


def test_iterations_are_spread_over_rounds() -> None:
    assert shares_of_iterations(20) == [5, 5, 5, 5]
    assert shares_of_iterations(6) == [2, 2, 1, 1]
    assert shares_of_iterations(2) == [1, 1]
