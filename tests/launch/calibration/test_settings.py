"""Options of `dpscope calibrate`, sizes that fit into memory, and iterations in rounds."""

import pytest

from dpscope.launch.calibration.collective_timing import shares_of_iterations, sizes_that_fit
from dpscope.launch.calibration.settings import CalibrationFlags
from dpscope.profiling.records.calibration import CalibrationSettings
from dpscope.profiling.store.errors import DpscopeError


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dtype": "int3"}, "--dtype int3"),
        ({"collectives": "all_reduce,gossip"}, "--collectives all_reduce,gossip"),
        ({"devices": "1,2"}, "--devices 1,2"),
        ({"devices": "two"}, "--devices two"),
        ({"min_bytes": "4QB"}, "--min-bytes 4QB: give a size above 0"),
        ({"min_bytes": "0"}, "--min-bytes 0"),
        ({"min_bytes": "4"}, "--min-bytes 4: give 8 or more"),
        ({"min_bytes": "2M", "max_bytes": "1M"}, "--max-bytes 1M"),
        ({"iterations": 0}, "--iterations 0"),
        ({"timeout_s": 0.0}, "--timeout 0"),
        ({"device": "tpu"}, "--device tpu"),
    ],
)
def test_mistakes_name_flag_and_value(flags: dict[str, str], message: str) -> None:
    with pytest.raises(DpscopeError, match=message):
        CalibrationFlags(**{"device": "cpu", **flags}).resolved()  # type: ignore[arg-type]


def test_sizes() -> None:
    chosen = CalibrationFlags(device="cpu", min_bytes="4KiB", max_bytes="256MiB").resolved()
    assert (len(chosen.sizes), chosen.sizes[0], chosen.sizes[-1]) == (17, 4096, 268435456)
    assert CalibrationFlags(device="cpu", min_bytes="1 MB", max_bytes="4MB").resolved().sizes == (
        1000000,
        2000000,
        4000000,
    )
    assert CalibrationFlags(device="cpu", min_bytes="3000", max_bytes="12001").resolved().sizes == (3000, 6000, 12000)


def test_sizes_that_do_not_fit_are_left_out() -> None:
    settings = CalibrationSettings(device="cpu", devices=(4,), min_bytes=1 << 20, max_bytes=8 << 20)
    # gloo: buffer and a copy of it, all_gather a quarter more: 2.25 x 4 MiB = 9.4 MB fit into 10 MB, 18.9 MB do not.
    fitting, left_out = sizes_that_fit("all_gather", settings, devices=4, free_bytes=10_000_000)
    assert fitting == [1 << 20, 2 << 20, 4 << 20]
    assert [(item.size_bytes, item.devices) for item in left_out] == [(8 << 20, 4)]
    assert left_out[0].reason == "needs 0.0189 GB on every rank, 0.01 GB are free there"


def test_iterations_are_spread_over_rounds() -> None:
    assert shares_of_iterations(20) == [5, 5, 5, 5]
    assert shares_of_iterations(6) == [2, 2, 1, 1]
    assert shares_of_iterations(2) == [1, 1]
