"""What `dpscope calibrate --predict` prints: a table, or JSON with a row per collective, count and
size.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

import msgspec
from rich.console import Console

from dpscope.analysis.costs.calibration_files import wrong_results
from dpscope.analysis.costs.calibration_fit import noise_message, noisy_fits
from dpscope.analysis.costs.collective_forecast import CollectiveForecast, forecasts
from dpscope.analysis.text.terminal import print_findings, print_sentences, print_table, separate
from dpscope.analysis.text.text_table import Field, table_of
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.store.errors import DpscopeError

_NOTES = (
    "low, high: nine of ten times lie within this band by assumed errors and, with several counts, by those of measured counts "
    "that the smaller ones predict; it grows with the distance",
    "predictions are of collectives alone on the network, as they were measured; hardware on these counts has not confirmed them",
)

_FALLING = "a time below that of a smaller size or of fewer devices: noise of the measured times is carried along"


def parse_counts(text: str) -> list[int]:
    """``64,256`` as device counts; raises DpscopeError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) and 2 <= int(part) <= 1 << 20 for part in parts):
        raise DpscopeError(f"--predict {text}: write device counts of 2 or more, such as 64,256")
    return sorted({int(part) for part in parts})


def print_forecasts(
    calibration: Calibration,
    counts: Sequence[int],
    output_format: Literal["table", "json"],
    console: Console,
) -> None:
    """Predictions of every collective and size, with the findings about its results."""
    if not calibration.points:
        raise DpscopeError("--predict: the calibration holds no measured times; calibrate again")
    predictions = forecasts(calibration, counts)
    findings = wrong_results(calibration)
    if output_format == "json":
        content = {
            "predictions": [asdict(prediction) for prediction in predictions],
            "findings": msgspec.to_builtins(findings),
        }
        console.file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
        return
    by_collective = grouped((prediction.collective, prediction) for prediction in predictions)
    for collective, rows in by_collective.items():
        known = [row for row in rows if row.time_us is not None]
        notes = _notes(calibration, collective, rows)
        title = f"{collective} by device count and size"
        if known:
            print_table(console, table_of(title, _FIELDS, known, notes))
        else:
            separate(console)
            print_sentences(console, [title, *notes])
    print_findings(console, findings)


def _notes(
    calibration: Calibration, collective: str, rows: Sequence[CollectiveForecast]
) -> list[str]:
    """What a collective's times rest on, and what limits them."""
    notes = []
    bases = {row.basis for row in rows}
    noisy = [fit for fit in noisy_fits(calibration) if fit.collective == collective]
    if noisy and bases != {"measured"}:
        notes.append(f"NOISY FIT: {noise_message(noisy)}")
    notes += _sources(rows)
    if "predicted" in bases:
        notes += _NOTES
    if _falls(rows):
        notes.append(_FALLING)
    return notes


def _falls(shown: Sequence[CollectiveForecast]) -> bool:
    """Whether a predicted time is below another of no larger size on no more devices and nodes."""
    for row in shown:
        smaller = [other.time_us or 0.0 for other in shown if _is_less(other, row)]
        time_us = row.time_us or 0.0
        if row.basis == "predicted" and max(smaller) > time_us:
            return True
    return False


def _is_less(other: CollectiveForecast, row: CollectiveForecast) -> bool:
    less_data = other.size_bytes <= row.size_bytes
    return less_data and other.devices <= row.devices and other.nodes <= row.nodes


def _sources(rows: Sequence[CollectiveForecast]) -> Iterator[str]:
    """What times rest on, or why they are not known: each once, after its device counts."""
    counts = grouped((row.source, str(row.devices)) for row in rows)
    for source, repeated in counts.items():
        devices = ", ".join(dict.fromkeys(repeated))
        yield f"{devices} devices: {source}"


_FIELDS = (
    Field("devices", "devices"),
    Field("nodes", "nodes"),
    Field("size", lambda one: show_bytes(one.size_bytes)),
    Field("time", lambda one: show_time(one.time_us)),
    Field("basis", "basis"),
    Field("low", lambda one: show_time(one.low_us)),
    Field("high", lambda one: show_time(one.high_us)),
)
