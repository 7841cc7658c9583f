"""What `dpscope calibrate --predict` prints: a table, or JSON with a row per collective, count and
size.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

import msgspec
from rich.console import Console

from dpscope.analysis.costs.calibration_files import wrong_results
from dpscope.analysis.costs.calibration_fit import noise_message, noisy_fits
from dpscope.analysis.costs.collective_forecast import CollectiveForecast, forecasts
from dpscope.analysis.costs.requested_places import Requested
from dpscope.analysis.text.terminal import (
    print_findings,
    print_notes,
    print_sentences,
    print_table,
    separate,
)
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


def print_forecasts(
    calibration: Calibration,
    requested: Sequence[Requested],
    output_format: Literal["table", "json"],
    console: Console,
) -> bool:
    """Predictions of every collective and size, with the findings about its results; whether any
    time is known.
    """
    if not calibration.points:
        raise DpscopeError("--predict: the calibration holds no measured times; calibrate again")
    predictions = forecasts(calibration, requested)
    findings = wrong_results(calibration)
    any_known = any(row.time_us is not None for row in predictions)
    if output_format == "json":
        content = {
            "predictions": [asdict(prediction) for prediction in predictions],
            "findings": msgspec.to_builtins(findings),
        }
        console.file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
        return any_known
    _print_tables(console, calibration, predictions)
    print_findings(console, findings)
    return any_known


def _print_tables(
    console: Console, calibration: Calibration, predictions: Sequence[CollectiveForecast]
) -> None:
    """A table of each collective; what holds of all of them stands once below."""
    by_collective = grouped((prediction.collective, prediction) for prediction in predictions)
    notes_of = {
        collective: _notes(calibration, collective, rows)
        for collective, rows in by_collective.items()
    }
    first_notes, *others = notes_of.values()
    shared = [note for note in first_notes if all(note in notes for notes in others) and others]
    for collective, rows in by_collective.items():
        known = [row for row in rows if row.time_us is not None]
        notes = [note for note in notes_of[collective] if note not in shared]
        title = f"{collective} by device count and size"
        if known:
            print_table(console, table_of(title, _FIELDS, known, notes))
        elif notes:
            separate(console)
            print_sentences(console, [title, *notes])
    print_notes(console, "Of every collective", shared)


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
    for source, alike in grouped((row.source, row) for row in rows).items():
        devices = ", ".join(dict.fromkeys(str(row.devices) for row in alike))
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
