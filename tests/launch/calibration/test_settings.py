"""Options of `dpscope calibrate` become settings, or a sentence that says what is wrong with them."""

import pytest

from dpscope.launch.calibration.settings import calibration_settings
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
        calibration_settings(**{"device": "cpu", **flags})  # type: ignore[arg-type]


def test_sizes() -> None:
    chosen = calibration_settings(device="cpu", min_bytes="4KiB", max_bytes="256MiB")
    assert (len(chosen.sizes), chosen.sizes[0], chosen.sizes[-1]) == (17, 4096, 268435456)
    assert calibration_settings(device="cpu", min_bytes="1 MB", max_bytes="4MB").sizes == (1000000, 2000000, 4000000)
    assert calibration_settings(device="cpu", min_bytes="3000", max_bytes="12001").sizes == (3000, 6000, 12000)
