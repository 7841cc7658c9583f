"""Fits: known curves recovered, errors stated correctly, real logs within the required errors."""

import re

import msgspec
import numpy as np
import pytest

from dpscope.analysis.costs.calibration_files import calibration_from_logs
from dpscope.analysis.costs.calibration_fit import (
    find_fit,
    fit_calibration,
    fit_collective,
    predict_us,
)
from dpscope.analysis.report.calibration import calibration_answers, calibration_tables
from dpscope.profiling.records.calibration import CalibrationPoint, CollectiveFit
from tests.helpers.known import known
from tests.helpers.paths import DATA
from tests.helpers.run_cells import calibration, fitted, timed

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
    assert three[-1].rows == (("all_reduce", "2", "slowest", "3", "0.0", "0.0", "NA"),)
    assert three[-1].notes[-1].endswith("; NA: fewer than 5 sizes")


def test_rates_and_unreliable_fits_stand_above_the_tables() -> None:
    """1 MB in 500 us are 2 GB/s, the bus bandwidth of 2 ranks. Of the two ranks' fits the worse
    counts, as in a run's report.
    """
    sure = fitted(timed(2, 0.0, 2.0, [1000, 10_000, 100_000, 1_000_000]))
    assert calibration_answers(sure) == [
        "all_reduce on 2 devices: bus bandwidth 2.00 GB/s (1.00 MB), 0.500 µs for 1.00 kB."
    ]
    (fit,) = (one for one in sure.fits if one.statistic == "slowest")
    unsure = msgspec.structs.replace(fit, prediction_relative_error=0.6)
    worse = msgspec.structs.replace(fit, prediction_relative_error=3.456, statistic="shortest")
    noisy, _ = calibration_answers(msgspec.structs.replace(sure, fits=(unsure, worse)))
    assert noisy.startswith(
        "NOISY FIT: the calibration's fit is off by up to 346% (all_reduce, 2 devices): close other"
    )


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
