"""Estimates from epoch times: of the published tables, and of tables computed by hand."""

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpscope.analysis.epoch_times.epoch_time import EpochTime
from dpscope.analysis.epoch_times.estimates import UNITS, EpochEstimate, epoch_estimates
from dpscope.analysis.epoch_times.table import read_epoch_times
from tests.helpers.paths import PUBLISHED

ROWS = read_epoch_times(PUBLISHED / "epoch_times.csv").rows

# T_N - T_1/N with T_1 at the same batch per device, computed from the table.
SOUND_SECONDS = {
    ("coursework_l4", "first", "dp", 128, 4): 14.305,  # 19.26 - 19.82/4
    ("coursework_l4", "first", "dp", 512, 4): 4.9425,  # 9.38 - 17.75/4
    ("coursework_l4", "second", "dp", 128, 4): 14.1101,  # 19.1595... - 20.1978.../4
    ("coursework_l4", "second", "dp", 512, 4): 5.6742,  # 10.1085... - 17.7372.../4
    ("coursework_cluster", None, "dp", 128, 4): 20.5,  # 30 - 38/4
    ("coursework_cluster", None, "dp", 512, 4): 7.0,  # 11 - 16/4
    ("coursework_cluster", None, "dp", 2048, 4): 7.75,  # 11 - 13/4
    ("coursework_cluster", None, "dp", 8192, 4): 8.75,  # 12 - 13/4
    ("coursework_weak", "table", "dp", 32, 2): 33.27,  # 41.32 - 16.10/2
    ("coursework_weak", "table", "dp", 128, 2): 6.345,  # 10.53 - 8.37/2
    ("coursework_weak", "table", "dp", 512, 2): 4.185,  # 8.78 - 9.19/2
    ("coursework_weak", "table", "dp", 32, 4): 20.825,  # 24.85 - 16.10/4
    ("coursework_weak", "table", "dp", 128, 4): 7.1975,  # 9.29 - 8.37/4
    ("coursework_weak", "table", "dp", 512, 4): 6.4625,  # 8.76 - 9.19/4
    ("coursework_ddp", None, "ddp", 128, 2): 5.45,  # 56.3 - 101.7/2
    ("coursework_ddp", None, "ddp", 128, 4): 8.875,  # 34.3 - 101.7/4
    ("benchmark_resnet50", None, "dp", 400, 8): 761.2359,  # 984.5840 - 1786.7849/8
    ("benchmark_resnet50", None, "ddp", 400, 8): 16.0489,  # 239.3970 - 1786.7849/8
}


HEAD = "strategy,batch_size,batch_size_is,devices,epoch_seconds\n"


def table(folder: Path, text: str) -> Sequence[EpochTime]:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read_epoch_times(path).rows


def pick(found: list[EpochEstimate], quantity: str, method: str, *setting: object) -> EpochEstimate:
    (one,) = (
        e
        for e in found
        if (e.quantity, e.method) == (quantity, method) and e[: len(setting)] == setting
    )
    return one


def test_sound_communication_of_the_published_tables() -> None:
    found = [
        e
        for e in epoch_estimates(ROWS)
        if (e.quantity, e.method) == ("communication_seconds", "same_local_batch")
    ]
    assert len(found) == 32  # one per multi-device row
    sound = {e[:5]: e.value for e in found if e.sound}
    assert sound == {key: pytest.approx(value, abs=5e-5) for key, value in SOUND_SECONDS.items()}
    for estimate in found:
        if not estimate.sound:
            assert estimate.value is None
            assert "no single-device time at" in estimate.reason


def test_interval_is_the_resolution_of_both_clocks(tmp_path: Path) -> None:
    # Whole seconds: 11 +- 1 minus (16 +- 1)/4 is 7 +- 1.25.
    found, of_cluster = epoch_estimates(ROWS), ("coursework_cluster", None, "dp")
    assert pick(found, "communication_seconds", "same_local_batch", *of_cluster, 512, 4)[7:10] == (
        7.0,
        5.75,
        8.25,
    )
    # from 12/10 to 14/8
    assert pick(found, "speedup", "strong", *of_cluster, 512, 2)[7:10] == (13 / 9, 1.2, 1.75)
    unsure = pick(found, "speedup", "strong", *of_cluster, 128, 2)
    assert unsure[7:10] == (16 / 18, 15 / 19, 1.0)
    assert "faster or slower than one device is not certain" in unsure.reason
    exact = [e for e in found if e.study == "benchmark_resnet50" and e.value is not None]
    # without a resolution
    assert all(e.low == e.value == e.high and not e.uncertain for e in exact)
    # 2 +- 1 s over 1 +- 1 s: from 1/2, and unbounded above.
    text = "strategy,batch_size,batch_size_is,devices,epoch_seconds,resolution_s\n"
    rows = table(tmp_path, text + "single,8,global,1,2,1\nddp,8,global,2,1,1\n")
    assert pick(epoch_estimates(rows), "speedup", "strong")[7:10] == (2.0, 0.5, None)
    assert rows[1]._replace(epoch_seconds=0.4).seconds == (0.4, 0.0, 1.4)


def test_effective_bandwidth_by_hand(tmp_path: Path) -> None:
    # 1000 samples, b = 10: 50 steps on 2 devices. DDP moves 2(1/2) x 4 MB = 4 MB a step, 0.2 GB an
    # epoch; DP 8 MB, 0.4 GB. Added: 7 - 10/2 = 2 s, so 0.1 and 0.2 GB/s.
    head = "strategy,batch_size,batch_size_is,devices,epoch_seconds,parameters,samples_per_epoch\n"
    rows = "single,10,per_device,1,10,1000000,1000\n{},10,per_device,2,7,1000000,1000\n"
    for strategy, expected in (("ddp", 0.1), ("dp", 0.2), ("fsdp", None)):
        rate = pick(
            epoch_estimates(table(tmp_path, head + rows.format(strategy))),
            "effective_bandwidth",
            "same_local_batch",
        )
        assert (rate.value, rate.sound) == (
            expected and pytest.approx(expected),
            expected is not None,
        )
    assert "what this strategy moves" in rate.reason
    # 10 and 7 s are off by 0.1 s at most: 2 -+ 0.15 s
    rough = "resolution_s," + head + "0.1," + rows.format("ddp").replace("\nddp", "\n0.1,ddp")
    (*_, low, high) = pick(
        epoch_estimates(table(tmp_path, rough)), "effective_bandwidth", "same_local_batch"
    )[7:10]
    assert (low, high) == pytest.approx((0.2 / 2.15, 0.2 / 1.85))


def test_strong_and_weak_from_one_table(tmp_path: Path) -> None:
    # Global 64 on 2: strong against T_1(64) = 8, weak against T_1(32) = 10.
    rows = "single,64,global,1,8\nsingle,32,global,1,10\nddp,64,global,2,5\n"
    found = epoch_estimates(table(tmp_path, HEAD + rows))
    for quantity, method, value in (
        ("speedup", "strong", 1.6),
        ("efficiency", "strong", 0.8),
        ("speedup", "weak", 2.0),
        ("communication_seconds", "same_local_batch", 0.0),
        ("effective_bandwidth", "same_local_batch", None),  # never infinite
    ):
        assert pick(found, quantity, method).value == value
    found = epoch_estimates(
        table(tmp_path, "strategy,batch_size,devices,epoch_seconds\nsingle,32,1,10\nddp,32,2,6\n")
    )
    assert pick(found, "speedup", "same_batch_size").value == pytest.approx(10 / 6)
    for quantity, method in (
        ("speedup", "strong"),
        ("speedup", "weak"),
        ("communication_seconds", "same_local_batch"),
    ):
        unknown = pick(found, quantity, method)
        assert (*unknown[7:10], unknown.sound) == (None, None, None, False)
        assert "batch_size_is is not given" in unknown.reason


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("single,16,global,1,\nddp,32,global,2,6\n", "single device ran out of memory"),
        ("single,16,global,1,10\nddp,32,global,2,\n", "no epoch time: out of memory"),
        ("single,16,global,1,10\nddp,33,global,2,6\n", "does not divide evenly"),
        ("single,8,global,1,10\nddp,32,global,2,6\n", "no single-device time at 16"),
    ],
)
def test_why_there_is_no_sound_value(tmp_path: Path, rows: str, reason: str) -> None:
    unknown = pick(
        epoch_estimates(table(tmp_path, HEAD + rows)), "communication_seconds", "same_local_batch"
    )
    assert unknown.value is None
    assert reason in unknown.reason


def test_the_baseline_may_be_another_run_or_the_strategy_on_one_device(tmp_path: Path) -> None:
    head = "run,strategy,batch_size,batch_size_is,devices,epoch_seconds\n"
    own_run = table(tmp_path, head + "base,single,32,per_device,1,10\nmany,ddp,32,per_device,2,6\n")
    found = pick(epoch_estimates(own_run), "communication_seconds", "same_local_batch")
    assert (found.value, "of run base" in found.reason) == (1.0, True)
    same_strategy = table(tmp_path, head + ",ddp,32,per_device,1,10\n,ddp,32,per_device,2,6\n")
    assert (
        pick(epoch_estimates(same_strategy), "communication_seconds", "same_local_batch").value
        == 1.0
    )
    two_runs = (
        head
        + "a,single,32,per_device,1,10\nb,single,32,per_device,1,9\nmany,ddp,32,per_device,2,6\n"
    )
    other_data = "dataset" + head[3:] + "A,single,32,per_device,1,10\nB,ddp,32,per_device,2,6\n"
    for text in (two_runs, other_data):
        assert (
            pick(
                epoch_estimates(table(tmp_path, text)), "communication_seconds", "same_local_batch"
            ).value
            is None
        )


_SECONDS = st.one_of(st.none(), st.floats(1e-3, 1e6))
_ROW = st.tuples(
    st.sampled_from(["single", "dp", "ddp", "fsdp"]),
    st.sampled_from([1, 2, 8, 32, 64]),
    st.sampled_from(["global", "per_device", None]),
    st.integers(1, 4),
    _SECONDS,
    st.one_of(st.none(), st.floats(0, 10)),
    st.sampled_from([None, 50, 1000]),
    st.sampled_from([None, 1_000_000]),
)


@pytest.mark.long
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(
    rows=st.lists(_ROW, min_size=1, max_size=12, unique_by=lambda row: (row[0], row[1], row[3])),
    drop=st.booleans(),
)
def test_any_table_gives_ordered_bounds_or_a_reason(
    tmp_path: Path, rows: list[tuple[object, ...]], drop: bool
) -> None:
    names = "strategy batch_size batch_size_is devices epoch_seconds resolution_s samples_per_epoch parameters"
    frame = pd.DataFrame(rows, columns=names.split())
    frame.loc[frame["strategy"] == "single", "devices"] = 1
    frame = frame.drop_duplicates(["strategy", "batch_size", "devices"])
    if drop:
        frame = frame.drop(columns=["resolution_s", "parameters", "batch_size_is"])
    text = io.StringIO()
    frame.astype({"samples_per_epoch": "Int64"}).to_csv(text, index=False)
    found = epoch_estimates(table(tmp_path, text.getvalue()))
    assert len(found) >= 7 * int((frame["devices"] > 1).sum())
    for estimate in found:
        assert estimate.quantity in UNITS
        assert estimate.reason
        if estimate.value is None:
            assert (estimate.low, estimate.high, estimate.sound) == (None, None, False)
            continue
        assert estimate.low is not None
        assert estimate.low <= estimate.value
        assert estimate.high is None or estimate.value <= estimate.high
        if estimate.quantity == "effective_bandwidth":
            assert estimate.low > 0
            assert estimate.high is not None
        if drop:
            assert estimate.low == estimate.value == estimate.high


EQUAL = (
    "strategy,batch_size,batch_size_is,devices,epoch_seconds,samples_per_epoch,steps_per_epoch\n"
)


@pytest.mark.parametrize(
    ("single", "several"),
    [
        ("50000,782", "50000,782"),  # every device goes through all samples
        (",100", ",100"),
        ("6400,", "25600,"),
        ("6400,100", ",100"),
    ],
)
def test_equal_steps_at_a_batch_per_device_are_n_times_the_samples(
    tmp_path: Path, single: str, several: str
) -> None:
    """Four devices take 100 s for what one does in 4 x 60 s: 2.4x, 0.6 efficient, 100 - 60 s
    added.
    """
    rows = table(
        tmp_path, f"{EQUAL}single,64,per_device,1,60,{single}\nddp,64,per_device,4,100,{several}\n"
    )
    found = epoch_estimates(rows)
    for quantity, method, value in (
        ("speedup", "weak", 2.4),
        ("efficiency", "weak", 0.6),
        ("compute_seconds", "same_local_batch", 60.0),
        ("communication_seconds", "same_local_batch", 40.0),
    ):
        estimate = pick(found, quantity, method)
        assert estimate.value == pytest.approx(value)
        assert estimate.sound
        assert "times its samples" in estimate.reason


@pytest.mark.parametrize(
    ("single", "several"),
    [
        ("50000,782", "50000,196"),
        ("50000,782", "50000,195"),
        (",782", ",196"),
        (",782", ",195"),
        ("50000,", "50000,"),
    ],
)
def test_epochs_that_are_divided_hold_equal_samples(
    tmp_path: Path, single: str, several: str
) -> None:
    """782 steps on one device are 195.5 on four: with or without the last, partial batch."""
    rows = table(
        tmp_path, f"{EQUAL}single,64,per_device,1,60,{single}\nddp,64,per_device,4,20,{several}\n"
    )
    assert pick(epoch_estimates(rows), "speedup", "weak").value == pytest.approx(3.0)
