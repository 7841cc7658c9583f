"""The tables of data-parallel studies (`dpscope analyze RUN --tables`): a row per strategy, batch
and number of devices.

Epochs, speedups and estimates are of untraced steps; the parts of an epoch are those of traced
ones, which add up to the traced epoch. What a column means stands in the table's notes, since
people take single tables into their texts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.row import CellRow, ratio
from dpscope.analysis.cells.times import epoch_seconds
from dpscope.analysis.cells.view import interval_ends
from dpscope.analysis.report.comparison_tables import ring_notes, slowed_notes
from dpscope.analysis.report.results import Results
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.text.text_table import Field, TextTable, Unknown, table_of
from dpscope.analysis.text.units import Unit, choose_unit
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import counted

Row = Mapping[str, Any]
"""A cell's values by the names of a `Field`."""

_RATIO, _PERCENT = Unit("", 1.0, 2), Unit("%", 0.01, 1)
_PLACE = (
    Field("strategy", "label", column="strategy"),
    Field("devices", "devices", meaning="N, on which a step runs"),
    Field("b", "batch_size", meaning="samples of a step on each device"),
)
_PER_EPOCH = {  # field -> the column of a traced step
    "traced_epoch_us": "traced_step_us",
    "compute_epoch_us": "compute_us",
    "wait_epoch_us": "exposed_wait_us",
    "transfer_epoch_us": "exposed_transfer_us",
    "other_epoch_us": "exposed_other_us",
    "idle_epoch_us": "idle_us",
    "epoch_without_wait_us": "step_without_wait_us",
    "exposed_epoch_us": "exposed_us",
}
_HALF_WIDTHS = {field.replace("_us", "_half_us"): of for field, of in _PER_EPOCH.items()}
_REASONS = {  # field -> the column whose reason explains that it is missing
    **_PER_EPOCH,
    **{field: interval_ends(column)[0] for field, column in _HALF_WIDTHS.items()},
    "epoch_us": "step_us",
    "epoch_half_us": "step_low_us",
    "speedup_b_half": "weak_efficiency_low",
    "speedup_g_half": "strong_speedup_low",
    "added_half_us": "same_local_batch_low_us",
    "speedup_b": "weak_efficiency",
    "efficiency_b": "weak_efficiency",
    "speedup_g": "strong_speedup",
    "efficiency_g": "strong_speedup",
}


def _rows(report: Results) -> list[dict[str, Any]]:
    """A row per measured cell, those of a strategy and batch together by their devices."""
    rows = [_row(report, data) for data in report.run.measured]
    first = {row["label"]: place for place, row in reversed([*enumerate(rows)])}
    return sorted(rows, key=lambda row: (first[row["label"]], row["batch_size"], row["devices"]))


def _row(report: Results, data: Job) -> dict[str, Any]:
    compared = report.comparison.rows[data.name]
    nodes = f", {data.nodes} nodes" if data.nodes > 1 else ""
    row: dict[str, Any] = {
        "cell": data.name,
        "label": f"{data.strategy} {data.variant}".strip() + nodes,
        **{shown.name: compared.value(shown.name) for shown in columns()},
        "devices": data.devices,
        "batch_size": data.cell.batch_size,
        "epoch_us": _epoch_us(data),
    }
    singles = single_device_baselines(report.run.measured, data.cell)
    for letter, batch in (("b", data.cell.batch_size), ("g", data.cell.global_batch_size)):
        single = singles.get(batch)
        alone_us = _epoch_us(single) if single is not None else None
        speedup = ratio(alone_us, row["epoch_us"])
        row[f"speedup_{letter}"] = speedup
        row[f"efficiency_{letter}"] = None if speedup is None else speedup / data.devices
        row[f"alone_{letter}_us"] = alone_us
    steps = compared.steps_per_epoch
    row["added_half_us"] = _times(steps, _half_width(compared, "same_local_batch_us"))
    row["speedup_b_half"] = _times(data.devices, _half_width(compared, "weak_efficiency"))
    row["speedup_g_half"] = _half_width(compared, "strong_speedup")
    whole = epoch_seconds(data)[1]
    row["epoch_half_us"] = None if whole else _times(steps, _half_width(compared, "step_us"))
    for name, column in _PER_EPOCH.items():
        row[name] = _times(steps, compared.number(column))
    for name, column in _HALF_WIDTHS.items():
        row[name] = _times(steps, _half_width(compared, column))
    return row


def _times(count: float | None, value: float | None) -> float | None:
    return None if count is None or value is None else count * value


def _half_width(row: CellRow, column: str) -> float | None:
    """Half the 95% interval of a column, on the wider side."""
    value, bounds = row.number(column), row.interval(column)
    return None if value is None or bounds is None else bounds.half_width(value)


def _epoch_us(data: Job) -> float | None:
    seconds, _ = epoch_seconds(data)
    return None if seconds is None else seconds * 1e6


def _table(report: Results, title: str, fields: Sequence[Field], notes: Iterable[str]) -> TextTable:
    """These fields and the rows that have values; a field needs one of several devices."""
    rows = _rows(report)
    several = [row for row in rows if row["devices"] > 1] or rows
    kept = [field for field in fields if _filled(several, [field])]
    shown = [row for row in rows if _filled([row], kept)]
    unknown = [
        Unknown(reason, one.heading, row["cell"], is_half_width=one.is_half_width)
        for row in shown
        for one in kept
        if (reason := _reason(report, row, one))
    ]
    columns_shown = (*_PLACE, *kept)
    meanings = [f"{column.heading}: {column.meaning}" for column in columns_shown if column.meaning]
    explained = ["; ".join(meanings), *notes]
    if any(field.is_half_width for field in kept):
        explained.append(_HALF_WIDTH)
    return table_of(title, columns_shown, shown, explained, unknown)


def _filled(rows: Sequence[Row], fields: Sequence[Field]) -> bool:
    """Whether any of these fields has a value in any of these rows."""
    return any(field.value(row) is not None for field in fields for row in rows)


def _reason(report: Results, row: Row, missing: Field) -> str | None:
    """Why a field has no value in a row."""
    if missing.value(row) is not None:
        return None
    name = missing.name
    return report.comparison.rows[row["cell"]].reasons.get(_REASONS.get(name, name))


def _seconds(report: Results) -> Unit:
    """Seconds with one digit more than the median epoch needs, since its parts are smaller."""
    known = [row["epoch_us"] for row in _rows(report) if row["epoch_us"] is not None]
    middle = sorted(known)[len(known) // 2] if known else 1e6
    digits = choose_unit("rate", [middle / 1e6]).digits
    return Unit("s", 1e6, min(6, digits + 1))


def _half_width_of(heading: str, name: str, unit: Unit) -> Field:
    return Field(f"{heading} ±", name, unit, is_half_width=True)


def epoch_table(report: Results) -> TextTable:
    """Epoch time, speedup and efficiency."""
    seconds = _seconds(report)
    fields: Sequence[Field] = (
        Field("G", "global_batch_size", meaning="samples of a step on all devices, N b"),
        Field("epoch", "epoch_us", seconds),
        _half_width_of("epoch", "epoch_half_us", seconds),
        Field(
            "without loading",
            "epoch_without_wait_us",
            seconds,
            "the epoch without waiting for loaded batches",
        ),
        Field("speedup at same b", "speedup_b", _RATIO, "T_1(b)/T_N(b), of epochs"),
        _half_width_of("speedup at same b", "speedup_b_half", _RATIO),
        Field("epoch efficiency at same b", "efficiency_b", _PERCENT, "that speedup over N"),
        Field("speedup at same G", "speedup_g", _RATIO, "T_1(G)/T_N(b), of epochs"),
        _half_width_of("speedup at same G", "speedup_g_half", _RATIO),
        Field("epoch efficiency at same G", "efficiency_g", _PERCENT, "that speedup over N"),
        Field(
            "accuracy",
            "test_accuracy_percent",
            Unit("%", 1.0, 2),
            "test accuracy after training, median over seeds",
        ),
    )
    if report.run.manifest.config.workload.data == "synthetic":
        fields = tuple(field for field in fields if field.get != "epoch_without_wait_us")
    notes = [*_epoch_notes(report), *_trained_notes(report)]
    return _table(report, "Epoch time, speedup and efficiency", fields, notes)


def _epoch_notes(report: Results) -> Iterator[str]:
    whole = all(epoch_seconds(data)[1] for data in report.run.measured)
    yield _EPOCHS
    yield (
        "epoch: mean of the measured whole epochs"
        if whole
        else "epoch: median step × steps of an epoch (rounded up to whole steps), not a measured epoch"
    )
    if not whole:
        yield (
            "epoch efficiency: the last step counts as a whole one, so it differs from the step efficiency "
            "by at most one step"
        )
        yield f"steps of an epoch{_epoch_samples(report)}: {_epoch_lengths(report)}"
    yield from _input_path(report)
    published = report.run.manifest.config.reporting.published
    if published is not None and not any(_published(report)):
        yield _NO_ROW.format(published)


def _epoch_samples(report: Results) -> str:
    """Such as `` of 50,000 samples``; empty for an attached script, whose epoch is its own."""
    manifest = report.run.manifest
    if manifest.script is not None:
        return ""
    return f" of {counted(manifest.config.workload.samples, 'sample')}"


def _epoch_lengths(report: Results) -> str:
    """Such as ``ddp-d2-b128: 98 of 256 samples``, for each cell whose steps are known."""
    lengths = [
        f"{row['cell']}: {steps} of {counted(row['global_batch_size'], 'sample')}"
        for row in _rows(report)
        if (steps := report.comparison.rows[row["cell"]].steps_per_epoch) is not None
    ]
    return "; ".join(lengths)


def _input_path(report: Results) -> Iterator[str]:
    """How images were transformed, for data sets with two ways; published epochs mostly transform
    them one by one.
    """
    manifest = report.run.manifest
    workload = manifest.config.workload
    if workload.data not in ("cifar10", "digits") or manifest.script is not None:
        return
    if workload.transforms == "per-image":
        yield "images were transformed one by one, from PIL images by torchvision (--transforms per-image)"
    else:
        yield "images were kept in memory and transformed in batches; --transforms per-image times what most scripts do"


def _trained_notes(report: Results) -> Iterator[str]:
    """The global batch with which a cell was trained, if it differs from the cell's."""
    for row in _rows(report):
        batch = row.get("trained_global_batch_size")
        if batch not in (None, row["global_batch_size"]):
            yield f"test accuracy of {row['cell']}: trained on a global batch of {batch:g}"


def traced_table(report: Results) -> TextTable:
    """Compute and communication of an epoch; the parts of a row add up to its epoch."""
    seconds = _seconds(report)
    parts = {
        "traced": ("traced epoch", "the sum of the following columns"),
        "compute": ("compute", "at least one kernel or operator computes"),
        "wait": ("wait", "exposed, waiting for a late rank"),
        "transfer": ("transfer", "exposed, moving data"),
        "other": ("other", "exposed, not split into wait and transfer"),
        "idle": ("idle", "neither compute nor communication"),
    }
    fields = []
    for part, (heading, meaning) in parts.items():
        fields.append(Field(heading, f"{part}_epoch_us", seconds, meaning))
        fields.append(_half_width_of(heading, f"{part}_epoch_half_us", seconds))
    notes = [
        "exposed: communication that compute does not hide",
        "means of traced steps × steps of an epoch",
        *slowed_notes(report.comparison),
    ]
    title = "Compute and communication of an epoch, traced"
    return _table(report, title, fields, notes)


def estimated_table(report: Results) -> TextTable:
    """Communication of an epoch, measured and by the subtractions of studies."""
    seconds = _seconds(report)
    fields = (
        Field(
            "all measured",
            "communication_epoch_us",
            seconds,
            "all communication of the traced steps, hidden or not",
        ),
        Field(
            "exposed measured",
            "exposed_epoch_us",
            seconds,
            "communication that compute does not hide",
        ),
        _half_width_of("exposed measured", "exposed_epoch_half_us", seconds),
        Field(
            "T_N-T_1(b)/N",
            "same_local_batch_epoch_us",
            seconds,
            "one device at b takes N times as many steps",
        ),
        _half_width_of("T_N-T_1(b)/N", "added_half_us", seconds),
        Field(
            "T_N-T_1(G)/N",
            "ideal_split_epoch_us",
            seconds,
            "one device at G = N b, its epoch divided by N",
        ),
        Field("T_N-T_1(G)", "same_total_epoch_us", seconds, "one device at G"),
    )
    notes = [
        _EPOCHS,
        "subtractions: of untraced epochs; they include whatever else differs, and can be negative",
    ]
    title = "Communication of an epoch, measured and by subtraction"
    return _table(report, title, fields, notes)


def rate_table(report: Results) -> TextTable:
    """Bandwidth by the ring formula and as measured."""
    fields = (
        Field("bytes/step", "bytes_per_step", "bytes", "of the collectives of a step"),
        Field(
            "ring by subtraction",
            "ring_subtraction_gb_per_s",
            "bandwidth",
            "bytes that the ring formula moves in a step over t_N(b)-t_1(b), not a measured rate",
        ),
        Field(
            "algbw",
            "algbw_gb_per_s",
            "bandwidth",
            "bytes of all-reduces over the time of their transfers",
        ),
        Field(
            "busbw", "busbw_gb_per_s", "bandwidth", "algbw times 2(N-1)/N, what a ring's link moves"
        ),
        Field(
            "all comm.",
            "communication_gb_per_s",
            "bandwidth",
            "bytes that a rank sends over the time of all communication, waits included",
        ),
        Field("link", "link_gb_per_s", "bandwidth", "the link's specification, one way"),
        Field("busbw/link", "transfer_of_link", _PERCENT),
        Field(
            "calibrated",
            "calibrated_gb_per_s",
            "bandwidth",
            "busbw that the calibration's fit gives for messages of these sizes, without compute",
        ),
        Field("busbw/calibrated", "transfer_of_calibration", _PERCENT),
    )
    notes = ["rates: bytes over mean times, without intervals", *ring_notes(report.comparison)]
    return _table(report, "Bandwidth by the ring formula, and as measured", fields, notes)


_AS_PUBLISHED = {
    # quantity of PublishedValue -> field by fixed batch, and what its values are divided by
    "epoch_seconds": ("epoch_us", "epoch_us", 1e6),
    "compute_seconds": ("compute_epoch_us", "compute_epoch_us", 1e6),
    "communication_seconds": ("communication_epoch_us", "communication_epoch_us", 1e6),
    "effective_bandwidth": ("communication_gb_per_s", "communication_gb_per_s", 1.0),
    "utilisation": ("communication_of_link", "communication_of_link", 0.01),
    "test_accuracy": ("test_accuracy_percent", "test_accuracy_percent", 1.0),
    "speedup": ("speedup_g", "speedup_b", 1.0),
    "efficiency": ("efficiency_g", "efficiency_b", 1.0),
}
_FIXED = {"global": "same G", "per_device": "same b"}
_PUBLISHED = (
    Field("cell", "cell"),
    Field("quantity", "quantity"),
    Field("measured", "measured"),
    Field("published", "published"),
    Field("published method", "method"),
    Field("published by", "by"),
)
_EPOCHS = "T_N(b): epoch on N devices with b samples on each, N b = G on all"
_HALF_WIDTH = "±: half the 95% interval, on the wider side, from how repeats differ; a value without it has no interval"
_OTHER = "published: on other hardware and software, by the authors' methods, so a difference allows no verdict"
_NO_ROW = (
    "{} has no row for a measured cell: model, data, strategy, devices and batch must be the same"
)


def published_table(report: Results) -> TextTable:
    """A row per published value of a measured cell."""
    title = "Published values of the same cells (other hardware)"
    return table_of(title, _PUBLISHED, _published(report), [_OTHER, *_input_path(report)])


def _published(report: Results) -> Iterator[dict[str, object]]:
    rows = {row["cell"]: row for row in _rows(report)}
    for data in report.run.measured:
        cell = data.cell
        if cell.variant or cell.nodes > 1:
            continue
        for claim in report.run.manifest.published:
            place = (claim.strategy, claim.devices, claim.batch_size)
            if place != (cell.strategy, cell.devices, cell.batch_size):
                continue
            of_global, per_device, divisor = _AS_PUBLISHED[claim.quantity]
            value = rows[cell.name].get(of_global if claim.fixed == "global" else per_device)
            quantity = claim.quantity.replace("_", " ").removesuffix(" seconds")
            if claim.quantity in ("speedup", "efficiency"):
                quantity += f", {_FIXED[claim.fixed]}"
            yield {
                "cell": cell.name,
                "quantity": quantity,
                "measured": _with_unit(None if value is None else value / divisor, claim.unit),
                "published": _with_unit(claim.value, claim.unit),
                "method": claim.method,
                "by": f"{claim.source} ({claim.hardware})",
            }


def _with_unit(value: float | None, unit: str) -> str | None:
    if value is None:
        return None
    return f"{value:.4g}%" if unit == "%" else f"{value:.4g} {'' if unit == '1' else unit}".strip()
