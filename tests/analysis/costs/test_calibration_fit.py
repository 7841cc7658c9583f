"""Fits: known curves recovered, errors stated correctly, real logs within the required errors."""

import re
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from dpscope.analysis.costs.calibration_files import calibration_from_logs
from dpscope.analysis.costs.calibration_fit import (
    extrapolated,
    find_fit,
    fit_calibration,
    fit_collective,
    predict_us,
)
from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.report.calibration import calibration_tables
from dpscope.profiling.records.calibration import CalibrationPoint, CollectiveFit
from tests.helpers.known import known
from tests.helpers.paths import DATA
from tests.helpers.run_cells import calibration

LOGS = DATA / "nccl_tests"
SIZES = [4096 << step for step in range(15)]  # 4 KiB to 64 MiB


def point(size: int, *times_us: float) -> CalibrationPoint:
    return CalibrationPoint(
        collective="all_reduce",
        devices=2,
        size_bytes=size,
        count=size // 4,
        dtype="float32",
        times_us=times_us,
    )


LINE = {size: 20 + size / 10_000 for size in SIZES}  # 20 us and 10 GB/s


def fit_of(times: dict[int, float]) -> CollectiveFit:
    return fit_collective([point(size, time) for size, time in times.items()])


def by_pieces(fit: CollectiveFit, size: int) -> float:
    """t = alpha + S/B of the piece that holds the size, in microseconds (1 GB/s = 1e3 B/us)."""
    for piece in fit.pieces:
        if piece.from_bytes <= size and (piece.to_bytes is None or size <= piece.to_bytes):
            return piece.alpha_us + (
                size / (piece.bandwidth_gb_per_s * 1e3) if piece.bandwidth_gb_per_s else 0
            )
    raise AssertionError(size)


def test_small_rates_keep_two_digits_and_a_last_piece_has_no_end() -> None:
    """4,096 B in 1,000 us: 0.004096 GB/s; 8 MiB in 1,000 us: 8.39 GB/s, which is its bus bandwidth
    too, of two devices.
    """
    points = (point(4096, 1000.0), point(8 << 20, 1000.0))
    log = calibration_from_logs([LOGS / "nccl_allreduce.log"])
    samples, *_ = calibration_tables(
        msgspec.structs.replace(log, points=points, fits=(), left_out=())
    )
    assert [row[4:6] for row in samples.rows] == [("0.0041", "0.0041"), ("8.39", "8.39")]
    tables = calibration_tables(
        msgspec.structs.replace(log, points=points, fits=(fit_of(LINE),), left_out=())
    )
    assert [row[2:4] for row in tables[1].rows] == [("0", "and up")]


def test_a_fit_that_is_missing_has_a_reason() -> None:
    log = calibration_from_logs([LOGS / "nccl_allreduce.log"])
    one, three = (
        calibration_tables(
            fit_calibration(msgspec.structs.replace(log, points=points, fits=(), left_out=()))
        )
        for points in ([point(4096, 50.0)], [point(size, 50.0) for size in (4096, 8192, 16384)])
    )
    assert [table.notes for table in one] == [
        ("no fit, and no prediction from it: a line needs two sizes",)
    ]
    assert three[-1].rows == (("all_reduce", "2", "3", "0.0", "0.0", "NA"),)
    assert three[-1].notes[-1].endswith("; NA: fewer than 5 sizes")


def test_a_line_is_found_again() -> None:
    fit = fit_of(LINE)
    (piece,) = fit.pieces
    assert (piece.from_bytes, piece.to_bytes) == (0, None)
    assert (piece.alpha_us, piece.bandwidth_gb_per_s) == pytest.approx((20, 10))
    assert fit.largest_relative_error < 1e-6
    assert (fit.sizes, fit.smallest_bytes, fit.largest_bytes) == (15, 4096, 64 << 20)
    assert predict_us(fit, 100_000) == pytest.approx(30)
    assert extrapolated(fit, 100_000) is None
    assert "4 times the largest size measured" in known(extrapolated(fit, 4 * (64 << 20)))
    assert "below the smallest" in known(extrapolated(fit, 100))
    assert fit_of({size: LINE[size] for size in SIZES[:4]}).prediction_relative_error is None


def test_two_lines_and_their_breakpoint_are_found_again() -> None:
    # 1 GB/s (1e-3 us/B) up to 64 KiB, 10 GB/s (1e-4 us/B) from there: at 64 KiB 20 + 65.536 us, and
    # the second line meets the axis at 85.536 - 6.5536 = 78.9824 us.
    fit = fit_of(
        {size: 20 + min(size, 65_536) * 1e-3 + max(0, size - 65_536) * 1e-4 for size in SIZES}
    )
    first, second = fit.pieces
    assert (first.to_bytes, second.from_bytes, second.to_bytes) == (65_536, 65_536, None)
    assert [first.alpha_us, second.alpha_us] == pytest.approx([20, 78.9824])
    assert [first.bandwidth_gb_per_s, second.bandwidth_gb_per_s] == pytest.approx([1, 10])


def test_noise_is_not_taken_for_pieces() -> None:
    generator = np.random.default_rng(3)
    noise = np.exp(generator.normal(0, 0.03, (10, len(SIZES))))
    counts = [
        len(
            fit_of(
                {size: LINE[size] * factor for size, factor in zip(SIZES, own, strict=True)}
            ).pieces
        )
        for own in noise
    ]
    assert counts.count(1) >= 8


def test_one_disturbed_size_bends_nothing() -> None:
    fit = fit_of(LINE | {131_072: 5 * LINE[131_072]})
    assert by_pieces(fit, 64 << 20) == pytest.approx(20 + (64 << 20) / 10_000, rel=0.02)
    assert by_pieces(fit, 4096) == pytest.approx(20.4096, rel=0.02)
    assert fit.largest_relative_error > 0.5  # the error shows that a size is off


def test_a_fit_never_falls() -> None:
    generator = np.random.default_rng(5)
    fit = fit_of({size: float(generator.uniform(50, 500)) for size in SIZES})
    times = [predict_us(fit, size) for size in np.geomspace(4096, 64 << 20, 300)]
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(times))
    assert min(times) > 0


def test_intervals_hold_the_truth_and_come_from_the_samples() -> None:
    generator = np.random.default_rng(7)
    points = [
        point(size, *((20 + size / 10_000) * np.exp(generator.normal(0, 0.05, 20))))
        for size in SIZES
    ]
    fit = fit_collective(points)
    assert fit.interval_source == "samples"
    (piece,) = fit.pieces
    assert piece.alpha_low_us < 20 < piece.alpha_high_us
    assert piece.bandwidth_low_gb_per_s is not None
    assert piece.bandwidth_high_gb_per_s is not None
    assert piece.bandwidth_low_gb_per_s < 10 < piece.bandwidth_high_gb_per_s
    assert piece.alpha_high_us - piece.alpha_low_us < 2
    # One mean per size, as in a log: residuals instead.
    assert (
        fit_collective([point(one.size_bytes, one.times_us[0]) for one in points]).interval_source
        == "residuals"
    )


def test_a_size_that_makes_no_difference_has_no_bandwidth() -> None:
    (piece,) = fit_of(dict.fromkeys(SIZES[:6], 35.0)).pieces
    assert piece.alpha_us == pytest.approx(35)
    assert piece.bandwidth_gb_per_s is None


def printed(log: str, column: int) -> dict[int, float]:
    """A column of a log by size, read independently: rows begin with two integers."""
    rows = [
        line.split()
        for line in (LOGS / log).read_text().splitlines()
        if re.match(r" +\d+ +\d+ +float", line)
    ]
    return {int(row[0]): float(row[column]) for row in rows}


@pytest.mark.parametrize(
    ("log", "collective", "time_column"),
    [
        ("nccl_allreduce.log", "all_reduce", 4),
        ("nccl_broadcast.log", "broadcast", 4),
        ("nccl_reduce.log", "reduce", 5),
    ],
)
def test_real_logs(log: str, collective: str, time_column: int) -> None:
    fit = known(find_fit(calibration_from_logs([LOGS / log]), collective, 8))
    times = {size: time for size, time in printed(log, time_column).items() if size >= 4096}
    assert (min(times), max(times), len(times)) == (4096, 8 << 30, 22)
    errors = [abs(by_pieces(fit, size) / time - 1) for size, time in times.items()]
    assert np.median(errors) <= 0.02  # required: 0.10
    assert max(errors) < 0.15
    # Large messages: the bus bandwidth the fit implies against the one printed.
    busbw = printed(log, time_column + 2)
    factor = 14 / 8 if collective == "all_reduce" else 1.0
    for size in (size for size in busbw if size >= 256 << 20):
        assert size * factor / by_pieces(fit, size) / 1e3 == pytest.approx(busbw[size], rel=0.03)


@pytest.mark.long
def test_sizes_left_out_are_predicted_within_the_stated_error() -> None:
    held = []
    for whole in calibration_from_logs(sorted(LOGS.glob("*.log"))).fits:
        log = f"nccl_{whole.collective.replace('_', '')}.log"
        times = printed(log, 5 if whole.collective == "reduce" else 4)
        sizes = sorted(size for size in times if size > 0)
        fit = fit_collective(
            [point(size, times[size]) for size in sizes if size not in sizes[1:-1:3]]
        )
        for size in sizes[1:-1:3]:
            costs = Costs(calibration=msgspec.structs.replace(calibration({}), fits=(fit,)))
            cost = costs.cost(fit.collective, size, Place(fit.devices, fit.devices))
            held.append(cost.low_us <= times[size] <= cost.high_us)
    assert len(held) == 30
    assert sum(held) >= 24


def test_what_changes_from_one_time_to_another_is_in_the_error_of_prediction() -> None:
    # Half of the iterations take half as long again: the median lies between, and either half is 20
    # or 25% off.
    fit = fit_collective(
        [point(size, *([time] * 10 + [1.5 * time] * 10)) for size, time in LINE.items()]
    )
    assert fit.median_relative_error < 1e-6
    assert fit.prediction_relative_error == pytest.approx(0.25, abs=0.01)


def test_slowest_and_shortest_ranks_have_a_fit_each() -> None:
    """Slowest 200 us + S / 1 GB/s, shortest 100 us + S / 2 GB/s; without the shortest, as in logs,
    one fit for both.
    """
    points = tuple(
        CalibrationPoint(
            collective="all_reduce", devices=2, size_bytes=size, count=size // 4, dtype="float32",
            times_us=(200 + size / 1e3,), shortest_us=(100 + size / 2e3,),
        )
        for size in (1000, 100_000, 1_000_000)
    )  # fmt: skip
    fitted = fit_calibration(msgspec.structs.replace(calibration({}), points=points, fits=()))
    slowest, shortest = (
        find_fit(fitted, "all_reduce", 2),
        find_fit(fitted, "all_reduce", 2, "shortest"),
    )
    assert slowest is not None
    assert shortest is not None
    assert predict_us(slowest, 500_000) == pytest.approx(700, rel=1e-3)
    assert predict_us(shortest, 500_000) == pytest.approx(350, rel=1e-3)
    logs = tuple(msgspec.structs.replace(point, shortest_us=()) for point in points)
    alone = fit_calibration(msgspec.structs.replace(fitted, points=logs, fits=()))
    assert (
        find_fit(alone, "all_reduce", 2, "shortest") == find_fit(alone, "all_reduce", 2) != shortest
    )
