"""The tables of data-parallel studies: `dpscope analyze RUN --tables`. Unmeasured values are
omitted, with the reason.

1. epoch seconds and speedup, at fixed batch per device and at fixed global batch; 2. compute and communication of an epoch,
measured and estimated; 3. bandwidth and utilisation; 4. results, a row per cell; 5. epochs with and without data loading;
6. published values of the same cells, if the run names a table of them.

Parts of a step are those of traced steps, next to the epoch of these; estimates are of untraced
ones.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.times import epoch_seconds
from dpscope.analysis.findings.run_findings import TRACER_COST
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import grouped

_PUBLISHED = "Published values of the same cells (other hardware)"
_OTHER = "published: on other hardware and software, by the authors' methods, so a difference allows no verdict"
_ALL = "effective bandwidth, measured: all communication, in GB/s (1e9 bytes per second)"
_FIXED = {"global": "same global batch", "per_device": "same batch per device"}
_NO_SHARED_BATCH = "no single-device cell has the global batch of a cell with several devices; add --scaling strong"
_MOVED = (
    "all communication: bytes that a rank sends (by bus factors; for DP those of broadcasts and reduces), divided by the "
    "communication time"
)
# quantity of PublishedValue -> quantity by fixed batch, and the unit of its values
_AS_PUBLISHED = {
    "epoch_seconds": ("epoch", "epoch", "s"),
    "compute_seconds": ("compute", "compute", "s"),
    "communication_seconds": ("communication", "communication", "s"),
    "effective_bandwidth": ("all communication", "all communication", "GB/s"),
    "utilisation": ("of link", "of link", "%"),
    "test_accuracy": ("accuracy", "accuracy", "%"),
    "speedup": ("strong", "weak", "1"),
    "efficiency": ("strong efficiency", "weak efficiency", "1"),
}


@dataclass(frozen=True)
class StudyQuantity:
    """A quantity of a cell: `digits` decimals, more where fewer than three digits remain; why it is
    missing is in `column`.
    """

    heading: str
    value: Callable[[Job], float | None]
    column: str
    digits: int = 2

    def shown(self, data: Job) -> str:
        """The value as text."""
        value = self.value(data)
        if value is None:
            return NA
        before_point = math.floor(math.log10(abs(value))) + 1 if value and self.digits else 3
        return f"{value:.{max(self.digits, 3 - before_point)}f}"


@dataclass(frozen=True)
class Study:
    """The tables with values, and a line per omitted part."""

    tables: tuple[TextTable, ...]
    left_out: tuple[str, ...]


def classic_tables(run: RunData, comparison: Comparison, by_devices: bool = False) -> Study:
    """Epochs in seconds, bandwidth in GB/s; tables, rows and columns without values are omitted,
    with the reason.

    Quantities are rows and batches columns; `by_devices`, as in a text, quantities are columns, and
    each batch has its rows.
    """
    made = _Tables(run, comparison, by_devices)
    drawn = [
        made.grid("Epoch seconds and speedup at fixed batch per device", ("epoch", "weak"), made.epoch_notes()),
        made.grid("Epoch seconds and speedup at fixed global batch", ("strong epoch", "strong"), made.epoch_notes(), True),
        made.grid(
            "Compute and communication of an epoch, traced",
            ("traced epoch", "compute", "forward", "backward", "optimizer", "communication", "exposed"),
            made.traced_notes(),
        ),
        made.grid(
            "Communication of an epoch, estimated from untraced steps",
            ("epoch", "same_local_batch", "ideal_split", "same_total"),
            (*made.epoch_notes(), "an estimate is that of a step x the steps of an epoch on N devices"),
        ),
        made.grid(
            "Bandwidth and utilisation",
            ("algbw", "busbw", "ring", "all communication", "busbw of rate", "of rate"),
            made.bandwidth_notes(),
        ),
        made.results(),
        made.grid(
            "Epoch seconds with and without data loading",
            made.loading,
            (*made.input_path(), "waiting for loaded batches, without the part hidden behind queued work"),
        ),
        made.published(),
    ]  # fmt: skip
    lines = dict.fromkeys(f"{table.title}: {line}" for table, missing in drawn for line in missing)
    return Study(tuple(table for table, _ in drawn if table.rows), tuple(lines))


_Drawn = tuple[TextTable, list[str]]  # a table, which may have no rows, and what is missing from it


class _Tables:
    """The quantities of one run by name, and the shapes of its tables."""

    def __init__(self, run: RunData, comparison: Comparison, by_devices: bool) -> None:
        self._run, self._rows, self._by_devices = run, comparison.rows, by_devices
        timed = {data.name: epoch_seconds(data) for data in run.measured}
        self._seconds = {name: seconds for name, (seconds, _) in timed.items()}
        self._whole = bool(timed) and all(whole for _, whole in timed.values())
        known, calibrated = (
            comparison.has(f"{level}_gb_per_s") for level in ("link", "calibrated")
        )
        level, rate = (
            ("calibration", "calibrated") if calibrated and not known else ("link", "link")
        )
        data, script = run.manifest.config.workload.data, run.manifest.script is not None
        self._loads_nothing = (
            "the loader of a script is not timed" if script else f"--data {data} loads nothing"
        )
        self.loading = () if data == "synthetic" else ("with loading", "without loading")
        of_column, of_step = self._of_column, self._of_step

        def epoch(data: Job) -> float | None:
            return self._seconds[data.name]

        weak, strong = (
            partial(self._speedup, "batch_size"),
            partial(self._speedup, "global_batch_size"),
        )

        def per_device(speedup: Callable[[Job], float | None], data: Job) -> float | None:
            """In percent."""
            return None if (known := speedup(data)) is None else 100.0 * known / data.devices

        self._quantities = {
            "epoch": StudyQuantity("epoch [s]", epoch, "step_us"),
            "weak": StudyQuantity("speedup T_1(b)/T_N(b)", weak, "weak_efficiency"),
            "weak efficiency": StudyQuantity(
                "efficiency, same b [%]", partial(per_device, weak), "weak_efficiency", 1
            ),
            "strong epoch": StudyQuantity(
                "epoch [s]",
                lambda data: epoch(data) if strong(data) is not None else None,
                "strong_speedup",
            ),
            "strong": StudyQuantity("speedup T_1(G)/T_N(G/N)", strong, "strong_speedup"),
            "strong efficiency": StudyQuantity(
                "efficiency, same G [%]", partial(per_device, strong), "strong_speedup", 1
            ),
            "traced epoch": of_step("epoch, traced [s]", "traced_step_us"),
            "compute": of_step("compute [s]", "compute_us"),
            "forward": of_step("forward [s]", "forward_us"),
            "backward": of_step("backward [s]", "backward_us"),
            "optimizer": of_step("optimizer [s]", "optimizer_us"),
            "communication": of_column(
                "communication, measured [s]", "communication_epoch_us", 2, 1e-6
            ),
            "exposed": of_column("exposed, measured [s]", "exposed_epoch_us", 2, 1e-6),
            "same_local_batch": of_column(
                "estimate T_N-T_1/N [s]", "same_local_batch_epoch_us", 2, 1e-6
            ),
            "ideal_split": of_column("estimate T_N-T_1(G)/N [s]", "ideal_split_epoch_us", 2, 1e-6),
            "same_total": of_column("estimate T_N-T_1(G) [s]", "same_total_epoch_us", 2, 1e-6),
            "algbw": of_column("all-reduces, algbw [GB/s]", "algbw_gb_per_s"),
            "busbw": of_column("all-reduces, busbw [GB/s]", "busbw_gb_per_s"),
            "ring": of_column("ring, by T_N-T_1/N [GB/s]", "ring_subtraction_gb_per_s"),
            "all communication": of_column("all communication [GB/s]", "communication_gb_per_s"),
            "of link": of_column("", "communication_of_link", 1, 100.0),
            "busbw of rate": of_column(f"busbw / {rate} [%]", f"transfer_of_{level}", 1, 100.0),
            "of rate": of_column(
                f"all communication / {rate} [%]", f"communication_of_{level}", 1, 100.0
            ),
            "devices": StudyQuantity("devices", lambda data: data.devices, "devices", 0),
            "accuracy": of_column("test accuracy [%]", "test_accuracy_percent", 2),
            "with loading": StudyQuantity("with loading [s]", epoch, "step_us"),
            "without loading": of_step("without [s]", "step_without_wait_us"),
        }

    def _speedup(self, equal: str, data: Job) -> float | None:
        """Of epochs, over the single device whose batch is the cell's `batch_size` or
        `global_batch_size`.
        """
        single = single_device_baselines(self._run, data.cell).get(getattr(data.cell, equal))
        base, seconds = (
            self._seconds[single.cell.name] if single is not None else None,
            self._seconds[data.name],
        )
        return base / seconds if base is not None and seconds else None

    def _of_column(
        self, heading: str, column: str, digits: int = 1, factor: float = 1.0
    ) -> StudyQuantity:
        def value(data: Job) -> float | None:
            known = self._rows[data.name].number(column)
            return known * factor if known is not None else None

        return StudyQuantity(heading, value, column, digits)

    def _of_step(self, heading: str, column: str) -> StudyQuantity:
        """A time per step as seconds per epoch."""

        def value(data: Job) -> float | None:
            row = self._rows[data.name]
            per_step, steps = row.number(column), row.steps_per_epoch
            return per_step * steps / 1e6 if per_step is not None and steps is not None else None

        return StudyQuantity(heading, value, column)

    def epoch_notes(self) -> tuple[str, ...]:
        how = "median step time x steps per epoch (rounded up to whole steps), not a measured epoch"
        how = "measured whole epochs" if self._whole else how
        speedup = "a speedup of epochs already counts the N devices; per step, without rounding, see weak eff. and strong speedup"
        return (f"epoch seconds are {how}", *self.input_path(), speedup)

    def input_path(self) -> tuple[str, ...]:
        """How images were transformed, for data sets with two ways; published epochs mostly
        transform them one by one.
        """
        workload = self._run.manifest.config.workload
        if workload.data not in ("cifar10", "digits") or self._run.manifest.script is not None:
            return ()
        by_one = "images were transformed one by one, from PIL images by torchvision (--transforms per-image)"
        batched = "images were kept in memory and transformed in batches; --transforms per-image times what most scripts do"
        return (by_one if workload.transforms == "per-image" else batched,)

    def traced_notes(self) -> tuple[str, ...]:
        """What the parts are of; if tracing slowed a cell's steps, so that this epoch is longer
        than the untraced one.
        """
        how = (
            "means of traced steps x steps per epoch; compute and exposed communication are parts of the traced epoch, which the "
            "tracer makes longer or shorter than the untraced one of the other tables"
        )
        costs = {name: row.tracer_cost or 0.0 for name, row in self._rows.items()}
        slowed = [f"{name} {cost:.2f}x" for name, cost in costs.items() if cost > TRACER_COST]
        return (
            how,
            *(
                (f"traced steps took longer than untraced ones: {', '.join(slowed)}",)
                if slowed
                else ()
            ),
        )

    def bandwidth_notes(self) -> Iterator[str]:
        rates = {
            "the link": "link_gb_per_s",
            "the calibrated rate of the same messages": "calibrated_gb_per_s",
        }
        for name, column in rates.items():
            every = [row.number(column) for row in self._rows.values()]
            if found := sorted({float(f"{one:.3g}") for one in every if one is not None}):
                yield f"{name}: {', '.join(f'{one:g}' for one in found)} GB/s"
        yield "ring, by T_N-T_1/N: bytes of the ring formula divided by the subtraction; not a measured rate"
        yield _MOVED

    def results(self) -> _Drawn:
        """A row per cell; columns without values on several devices are omitted."""
        names = (
            "devices",
            "epoch",
            "weak",
            "weak efficiency",
            "strong",
            "strong efficiency",
            "accuracy",
        )
        quantities, cells = [self._quantities[name] for name in names], self._run.measured
        several = [data for data in cells if data.devices > 1] or cells
        kept = [one for one in quantities if any(one.value(data) is not None for data in several)]
        rows = tuple((data.name, *(one.shown(data) for one in kept)) for data in cells)
        notes = (*self.epoch_notes(), *self._trained_notes())
        table = TextTable("Results", ("cell", *(one.heading for one in kept)), rows, notes)
        return table, list(self._why(one for one in quantities if one not in kept))

    def _trained_notes(self) -> Iterator[str]:
        """The global batch with which a cell was trained, if it differs from the cell's."""
        trained = (
            (self._rows[data.name].trained_global_batch_size, data.cell)
            for data in self._run.measured
        )
        differing = (
            (batch, cell.name)
            for batch, cell in trained
            if batch not in (None, cell.global_batch_size)
        )
        for batch, cells in grouped(differing).items():
            yield (
                f"test accuracy of {', '.join(cells)}: of the same strategy and devices, trained on a global batch of {batch}"
            )

    def grid(
        self, title: str, names: Sequence[str], notes: Iterable[str], by_global: bool = False
    ) -> _Drawn:
        """A row per strategy (with variant), device count and quantity; a column per batch per
        device.

        Or `by_global`, a column per global batch that occurs on several devices.
        """
        quantities = [self._quantities[name] for name in names]
        letter, what = ("G", "global batch") if by_global else ("b", "batch per device")
        nothing = TextTable(title, (), ())
        if not quantities:
            return nothing, [self._loads_nothing]

        def batch(data: Job) -> int:
            return data.cell.global_batch_size if by_global else data.cell.batch_size

        several = [
            one
            for one in self._run.measured
            if one.cell.devices > 1 and quantities[-1].value(one) is not None
        ]
        if by_global and not several:
            return nothing, [_NO_SHARED_BATCH]
        drawn = set(map(batch, several if by_global else self._run.measured))
        shown_cells = [data for data in self._run.measured if batch(data) in drawn]
        by_key = {(_row_label(data), data.devices, batch(data)): data for data in shown_cells}
        batches = sorted({key[2] for key in by_key})
        rows, shown = [], set()
        for strategy, devices in sorted(
            dict.fromkeys(key[:2] for key in by_key), key=lambda key: key[1]
        ):
            for one in quantities:
                cells = [by_key.get((strategy, devices, size)) for size in batches]
                entries = [NA if data is None else one.shown(data) for data in cells]
                if any(entry != NA for entry in entries):
                    rows.append((strategy, str(devices), one.heading, *entries))
                    shown.add(one.heading)
        missing = list(self._why(one for one in quantities if one.heading not in shown))
        present = {(row[0], row[1]) for row in rows}
        absent = {
            data.strategy: data
            for key, data in by_key.items()
            if (key[0], str(key[1])) not in present
        }
        for strategy, data in absent.items():
            reason = self._rows[data.name].reasons.get(quantities[-2].column)
            missing += [f"no {strategy}: {reason}"] if rows and data.devices > 1 and reason else []
        headings = ("strategy", "devices", "quantity", *(f"{letter}={size}" for size in batches))
        table = TextTable(title, headings, tuple(rows), (*notes, f"{letter}: {what}"))
        return _turned(table, letter, batches) if self._by_devices and rows else table, missing

    def _why(self, missing: Iterable[StudyQuantity]) -> Iterator[str]:
        """A line per reason with the quantities that are missing because of it."""
        cells = [data.cell for data in self._run.measured if data.devices > 1]
        cells.sort(key=lambda cell: cell.traits.host_copies)  # last, since dp-host never has a link

        def reason(column: str) -> str:
            known = (self._rows[cell.name].reasons.get(column) for cell in cells)
            return next(filter(None, known), "no cell with several devices was measured")

        for why, headings in grouped((reason(one.column), one.heading) for one in missing).items():
            yield f"no {', '.join(headings)}: {why}"

    def published(self) -> _Drawn:
        """A row per published value of a measured cell, or the reason why there is none."""
        headings = ("cell", "quantity", "measured", "published", "published method", "published by")
        rows = []
        for data in self._run.measured:
            cell = data.cell
            if cell.variant or cell.nodes > 1:
                continue
            for one in self._run.manifest.published:
                if (one.strategy, one.devices, one.batch_size) != (
                    cell.strategy,
                    cell.devices,
                    cell.batch_size,
                ):
                    continue
                of_global, per_device, unit = _AS_PUBLISHED[one.quantity]
                value = self._quantities[of_global if one.fixed == "global" else per_device].value(
                    data
                )
                if one.quantity == "efficiency" and value is not None:
                    value /= 100
                name = one.quantity.replace("_", " ").removesuffix(" seconds")
                quantity = (
                    f"{name}, {_FIXED[one.fixed]}"
                    if one.quantity in ("speedup", "efficiency")
                    else name
                )
                values = (_with_unit(value, unit), _with_unit(one.value, one.unit))
                rows.append(
                    (cell.name, quantity, *values, one.method, f"{one.source} ({one.hardware})")
                )
        named = self._run.manifest.config.reporting.published
        why = f"{named} has no row for a measured cell: model, data, strategy, devices and batch must be the same"
        moved = [_ALL] if any(row[1] == "effective bandwidth" for row in rows) else []
        shown = tuple(rows) if named is not None else ()
        table = TextTable(_PUBLISHED, headings, shown, (_OTHER, *self.input_path(), *moved))
        return table, [why] if named is not None and not rows else []


def _turned(table: TextTable, letter: str, batches: Sequence[int]) -> TextTable:
    """A grid with a row per strategy, device count and batch, and a column per quantity; rows
    without values are omitted.
    """
    quantities = list(dict.fromkeys(row[2] for row in table.rows))
    values = {
        (*row[:3], size): entry
        for row in table.rows
        for size, entry in zip(batches, row[3:], strict=True)
    }
    rows = []
    for strategy, devices in dict.fromkeys(row[:2] for row in table.rows):
        for size in batches:
            entries = [
                values.get((strategy, devices, quantity, size), NA) for quantity in quantities
            ]
            if any(entry != NA for entry in entries):
                rows.append((strategy, devices, str(size), *entries))
    return replace(table, headings=("strategy", "devices", letter, *quantities), rows=tuple(rows))


def _row_label(data: Job) -> str:
    """A strategy with its variant and, if there are several, its number of nodes."""
    nodes = f", {data.nodes} nodes" if data.nodes > 1 else ""
    return f"{data.strategy} {data.variant}".strip() + nodes


def _with_unit(value: float | None, unit: str) -> str:
    if value is None:
        return NA
    return f"{value:.4g}%" if unit == "%" else f"{value:.4g} {'' if unit == '1' else unit}".strip()
