"""How wrong `dpscope calibrate --predict` is on counts that were held out: generated clusters, and
public measurements.

python benchmarks/collective_forecast.py

Each line: times beyond the largest count given; median error and share of truths inside the band,
of the answers that have a number; the share of answers that have one; `law`, the error of the law
alone, where the answer is "not known" too.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpscope.analysis.costs.collective_forecast import CollectiveForecast, forecasts
from dpscope.analysis.costs.other_counts import Law, medians
from dpscope.profiling.records.calibration import (
    CALIBRATION_SCHEMA_VERSION,
    Calibration,
    CalibrationPoint,
)
from tests.generated_traces.nccl_logs import COUNTS, PER_NODE, SHAPES, Cluster

PUBLIC = (
    Path(__file__).resolve().parents[1]
    / "tests"
    / "data"
    / "scaling"
    / "nccl_allreduce_a100_nvswitch.csv"
)
SEEDS = 6
GIVEN = (32, 64)  # the largest count that is given
SMALLEST = 1 << 20

Times = dict[int, dict[int, float]]


def calibration_of(times: Times, per_node: int) -> Calibration:
    points = tuple(
        CalibrationPoint("all_reduce", devices, size, size // 4, "float32", (time,))
        for devices, own in times.items()
        for size, time in own.items()
    )
    nodes = {devices: -(-devices // per_node) for devices in times}
    return Calibration(
        CALIBRATION_SCHEMA_VERSION,
        "0",
        "2026-01-01T00:00:00+00:00",
        "nccl-tests",
        None,
        "nccl",
        None,
        (),
        points,
        nodes=nodes,
    )


def scored(
    times: Times, largest: int, per_node: int
) -> Iterator[tuple[float, CollectiveForecast, float, float]]:
    """Distance, answer, truth and the law's own time of every point beyond the largest count
    given.
    """
    given = calibration_of(
        {devices: own for devices, own in times.items() if devices <= largest}, per_node
    )
    found = forecasts(given, [(devices, None) for devices in times if devices > largest])
    measured = medians(given)["all_reduce"]
    laws = [
        Law("all_reduce", [one for one in measured if (one.nodes > 1) == several])
        for several in (False, True)
    ]
    for forecast in found:
        place = (forecast.nodes, forecast.devices)
        law = math.exp(laws[forecast.nodes > 1].predicted_log_us(place, forecast.size_bytes))
        truth = times[forecast.devices].get(forecast.size_bytes)
        if truth is not None and forecast.size_bytes >= SMALLEST:
            yield forecast.devices / largest, forecast, truth, law


def report(name: str, found: list[tuple[float, CollectiveForecast, float, float]]) -> None:
    by_distance = defaultdict(list)
    for one in found:
        by_distance[one[0]].append(one)
    for distance, own in sorted(by_distance.items()):
        known = [(forecast, truth) for _, forecast, truth, _ in own if forecast.time_us is not None]
        errors = [abs((forecast.time_us or 0.0) / truth - 1) for forecast, truth in known]
        inside = [
            (forecast.low_us or 0.0) <= truth <= (forecast.high_us or math.inf)
            for forecast, truth in known
        ]
        law = [abs(time / truth - 1) for _, _, truth, time in own]
        width = [
            math.sqrt((forecast.high_us or 0.0) / (forecast.low_us or 1.0)) for forecast, _ in known
        ]
        answered = (
            f"median error {np.median(errors):4.0%}, inside {np.mean(inside):4.0%}, band x/{np.median(width):.2f}"
            if known
            else "no number"
        )
        sys.stdout.write(
            f"{name}, {distance:g}x: {answered}; answered {len(known) / len(own):4.0%} of {len(own)}; law {np.median(law):4.0%}\n"
        )


def main() -> None:
    everything = []
    for shape, truth in SHAPES.items():
        own = []
        for seed in range(SEEDS):
            cliffs = {(32, 1 << 25): 2.5, (8, 1 << 20): 6.0} if seed % 2 else {}
            noise = (0.05, 0.1, 0.2)[seed % 3]
            cluster = Cluster(truth, noise=noise, count_noise=noise, cliffs=cliffs, seed=seed)
            for largest in GIVEN:
                own += list(scored(cluster.times_us(COUNTS), largest, PER_NODE))
        report(f"generated, {shape}", own)
        everything += own
    report("generated, all", everything)
    public: Times = {}
    for row in csv.DictReader(PUBLIC.open()):
        public.setdefault(int(row["ranks"]), {})[int(row["bytes"])] = float(row["out_of_place_us"])
    for largest in (2, 4, 6):
        report(f"8 A100 on NVSwitch, given up to {largest}", list(scored(public, largest, 8)))


if __name__ == "__main__":
    main()
