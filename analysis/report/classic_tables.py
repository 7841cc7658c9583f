"""The tables of data-parallel studies: `dpscope analyze RUN --tables`. Unmeasured values are omitted, with the reason.

1. epoch seconds and speedup, at fixed batch per device and at fixed global batch; 2. compute and communication of an epoch,
measured and estimated; 3. bandwidth and utilisation; 4. results, a row per cell; 5. epochs with and without data loading;
6. published values of the same cells, if the run names a table of them.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.measured import epoch_seconds
from dpscope.analysis.findings.run_findings import TRACER_COST
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.run import Cell, PublishedValue

PUBLISHED_TITLE = "Published values of the same cells (other hardware)"
_PUBLISHED_HEADINGS = ("cell", "quantity", "measured", "published", "published method", "published by")
_OTHER = "published: on other hardware and software, by the authors' methods, so a difference allows no verdict"
_ALL = "effective bandwidth, measured: all communication, in GB/s (1e9 bytes per second)"
_FIXED = {"global": "same global batch", "per_device": "same batch per device"}

MeasuredValue = tuple[Callable[[CellData], float | None], str]
"""A cell's measured value, and its unit as in PublishedValue."""


@dataclass(frozen=True)
class StudyQuantity:
    """A quantity of a cell with its digits, and the comparison's column that has the reason if it is missing."""

    heading: str
    value: Callable[[CellData], float | None]
    digits: int  # decimals; more if fewer than three digits would remain
    column: str


@dataclass(frozen=True)
class Study:
    """The tables with values, and a line per omitted part."""

    tables: tuple[TextTable, ...]
    left_out: tuple[str, ...]


def classic_tables(run: RunData, comparison: Comparison) -> Study:
    """Epochs in seconds, bandwidth in GB/s; tables, rows and columns without values are omitted, with the reason."""
    builder = _Builder(run, comparison)
    drawn = [
        (title, *make(title, quantities, notes))
        for title, make, quantities, notes in (
            (
                "Epoch seconds and speedup at fixed batch per device",
                builder.by_batch,
                builder.weak(),
                builder.epoch_notes(),
            ),
            (
                "Epoch seconds and speedup at fixed global batch",
                builder.by_global,
                builder.strong(),
                builder.epoch_notes(),
            ),
            (
                "Compute and communication of an epoch, measured and estimated",
                builder.by_batch,
                builder.communication(),
                builder.communication_notes(),
            ),
            ("Bandwidth and utilisation", builder.by_batch, builder.bandwidth(), builder.bandwidth_notes()),
            ("Results", builder.by_cell, builder.results(), builder.result_notes()),
            (
                "Epoch seconds with and without data loading",
                builder.by_batch,
                builder.loading(),
                (*builder.input_path(), "waiting for loaded batches, without the part hidden behind queued work"),
            ),
        )
    ]
    drawn.append((PUBLISHED_TITLE, *published_table(run, builder.published(), builder.input_path())))
    lines = (f"{title}: {line}" for title, _, missing in drawn for line in missing)
    return Study(tuple(table for _, table, _ in drawn if table is not None), tuple(dict.fromkeys(lines)))


class _Builder:
    """The quantities of one run and the three shapes of its tables."""

    def __init__(self, run: RunData, comparison: Comparison) -> None:
        self._run, self._comparison = run, comparison
        self._rows = comparison.rows
        timed = {data.cell.name: epoch_seconds(data) for data in run.measured}
        self._seconds = {name: seconds for name, (seconds, _) in timed.items()}
        self._whole = bool(timed) and all(whole for _, whole in timed.values())

    def weak(self) -> Sequence[StudyQuantity]:
        return (
            StudyQuantity("epoch [s]", self._epoch, 2, "step_us"),
            StudyQuantity(
                "speedup T_1(b)/T_N(b)", lambda data: self._speedup(data, data.cell.batch_size), 2, "weak_efficiency"
            ),
        )

    def strong(self) -> Sequence[StudyQuantity]:
        def speedup(data: CellData) -> float | None:
            return self._speedup(data, data.cell.global_batch_size)

        def epoch(data: CellData) -> float | None:
            return self._epoch(data) if speedup(data) is not None else None

        return (
            StudyQuantity("epoch [s]", epoch, 2, "strong_speedup"),
            StudyQuantity("speedup T_1(G)/T_N(G/N)", speedup, 2, "strong_speedup"),
        )

    def communication(self) -> Sequence[StudyQuantity]:
        return (
            StudyQuantity("epoch [s]", self._epoch, 2, "step_us"),
            StudyQuantity("compute [s]", self._epoch_of("compute_us"), 2, "compute_us"),
            *(
                StudyQuantity(f"{phase} [s]", self._epoch_of(f"{phase}_us"), 2, f"{phase}_us")
                for phase in ("forward", "backward", "optimizer")
            ),
            self._of_column("communication, measured [s]", "communication_epoch_us", 2, 1e-6),
            self._of_column("exposed, measured [s]", "exposed_epoch_us", 2, 1e-6),
            self._of_column("estimate T_N-T_1/N [s]", "same_local_batch_epoch_us", 2, 1e-6),
            self._of_column("estimate T_N-T_1(G)/N [s]", "ideal_split_epoch_us", 2, 1e-6),
            self._of_column("estimate T_N-T_1(G) [s]", "same_total_epoch_us", 2, 1e-6),
        )

    def bandwidth(self) -> Sequence[StudyQuantity]:
        """Utilisation of the link where one is known, else of the calibrated rate."""
        known, calibrated = (self._comparison.has(f"{level}_gb_per_s") for level in ("link", "calibrated"))
        level, rate = ("calibration", "calibrated") if calibrated and not known else ("link", "link")
        return (
            self._of_column("all-reduces, algbw [GB/s]", "algbw_gb_per_s", 1, 1.0),
            self._of_column("all-reduces, busbw [GB/s]", "busbw_gb_per_s", 1, 1.0),
            self._of_column("ring, by T_N-T_1/N [GB/s]", "ring_subtraction_gb_per_s", 1, 1.0),
            self._of_column("all communication [GB/s]", "communication_gb_per_s", 1, 1.0),
            self._of_column(f"busbw / {rate} [%]", f"transfer_of_{level}", 1, 100.0),
            self._of_column(f"all communication / {rate} [%]", f"communication_of_{level}", 1, 100.0),
        )

    def results(self) -> Sequence[StudyQuantity]:
        return (
            StudyQuantity("devices", lambda data: data.cell.devices, 0, "devices"),
            StudyQuantity("epoch [s]", self._epoch, 2, "step_us"),
            *self.weak()[1:],
            self._efficiency("efficiency, same b [%]", self.weak()[1]),
            *self.strong()[1:],
            self._efficiency("efficiency, same G [%]", self.strong()[1]),
            self._of_column("test accuracy [%]", "test_accuracy_percent", 2, 1.0),
        )

    def result_notes(self) -> tuple[str, ...]:
        """The global batch with which a cell was trained, if it differs from the cell's."""
        batches: dict[int, list[str]] = {}
        for data in self._run.measured:
            trained = self._rows[data.cell.name].trained_global_batch_size
            if trained is not None and trained != data.cell.global_batch_size:
                batches.setdefault(trained, []).append(data.cell.name)
        return tuple(
            f"test accuracy of {', '.join(cells)}: of the same strategy and devices, trained on a global batch of {batch}"
            for batch, cells in batches.items()
        )

    def loading(self) -> Sequence[StudyQuantity]:
        """Empty for synthetic data, which are not loaded, and for a script, whose loader is not timed."""
        if self._run.manifest.config.workload.data == "synthetic":
            return ()
        return (
            StudyQuantity("with loading [s]", self._epoch, 2, "step_us"),
            StudyQuantity("without [s]", self._epoch_of("step_without_wait_us"), 2, "step_without_wait_us"),
        )

    def published(self) -> dict[tuple[str, str], MeasuredValue]:
        """The measured value for each quantity of PublishedValue and each batch that may be fixed."""
        of_either = {
            "epoch_seconds": (self._epoch, "s"),
            "compute_seconds": (self._epoch_of("compute_us"), "s"),
            "communication_seconds": (self._of_column("", "communication_epoch_us", 2, 1e-6).value, "s"),
            "effective_bandwidth": (self._of_column("", "communication_gb_per_s", 1, 1.0).value, "GB/s"),
            "utilisation": (self._of_column("", "communication_of_link", 1, 100.0).value, "%"),
            "test_accuracy": (self._of_column("", "test_accuracy_percent", 2, 1.0).value, "%"),
        }
        return {
            **{(name, fixed): one for name, one in of_either.items() for fixed in ("global", "per_device")},
            ("speedup", "global"): (self.strong()[1].value, "1"),
            ("speedup", "per_device"): (self.weak()[1].value, "1"),
            ("efficiency", "global"): (self._efficiency("", self.strong()[1], 1.0).value, "1"),
            ("efficiency", "per_device"): (self._efficiency("", self.weak()[1], 1.0).value, "1"),
        }

    def epoch_notes(self) -> tuple[str, ...]:
        how = "measured whole epochs" if self._whole else "median step time x steps per epoch, not a measured epoch"
        return (f"epoch seconds are {how}", *self.input_path(), "a speedup of epochs already counts the N devices")

    def input_path(self) -> tuple[str, ...]:
        """How images were transformed, for data sets with two ways; published epochs mostly transform them one by one."""
        workload = self._run.manifest.config.workload
        if workload.data not in ("cifar10", "digits") or self._run.manifest.script is not None:
            return ()
        if workload.transforms == "per-image":
            return ("images were transformed one by one, from PIL images by torchvision (--transforms per-image)",)
        return (
            "images were kept in memory and transformed in batches; --transforms per-image times what most scripts do",
        )

    def communication_notes(self) -> tuple[str, ...]:
        """How the parts are obtained; if tracing slowed a cell's steps, they may exceed its epoch."""
        how = "compute and communication: means of traced steps x steps per epoch; epoch and estimates: from untraced steps"
        slowed = [
            f"{name} {cost:.2f}x"
            for name, row in self._rows.items()
            if (cost := row.tracer_cost) is not None and cost > TRACER_COST
        ]
        return (how, *((f"traced steps took longer than untraced ones: {', '.join(slowed)}",) if slowed else ()))

    def bandwidth_notes(self) -> tuple[str, ...]:
        rows = self._rows.values()
        rates = {
            "the link": [row.link_gb_per_s for row in rows],
            "the calibrated rate of the same messages": [row.calibrated_gb_per_s for row in rows],
        }
        rounded = {
            name: sorted({float(f"{one:.3g}") for one in every if one is not None}) for name, every in rates.items()
        }
        moved = (
            "all communication: bytes that a rank sends (by bus factors; for DP those of broadcasts and reduces), divided by the "
            "communication time"
        )
        known = (f"{name}: {', '.join(f'{one:g}' for one in found)} GB/s" for name, found in rounded.items() if found)
        ring = "ring, by T_N-T_1/N: bytes of the ring formula divided by the subtraction; not a measured rate"
        return (*known, ring, moved)

    def by_batch(
        self, title: str, quantities: Sequence[StudyQuantity], notes: Sequence[str]
    ) -> tuple[TextTable | None, list[str]]:
        """A row per strategy (with variant), device count and quantity; a column per batch per device."""
        return self._grid(title, quantities, (*notes, "b: batch per device"), "b", lambda data: data.cell.batch_size)

    def by_global(
        self, title: str, quantities: Sequence[StudyQuantity], notes: Sequence[str]
    ) -> tuple[TextTable | None, list[str]]:
        """The same with a column per global batch that occurs on several devices."""
        several = [one for one in self._run.measured if one.cell.devices > 1 and quantities[-1].value(one) is not None]
        if not several:
            return None, [
                "no single-device cell has the global batch of a cell with several devices; add --scaling strong"
            ]
        shared = {one.cell.global_batch_size for one in several}
        notes = (*notes, "G: global batch")
        return self._grid(title, quantities, notes, "G", lambda data: data.cell.global_batch_size, shared)

    def by_cell(
        self, title: str, quantities: Sequence[StudyQuantity], notes: Sequence[str]
    ) -> tuple[TextTable | None, list[str]]:
        """A row per cell; columns without values on several devices are omitted."""
        cells = self._run.measured
        several = [data for data in cells if data.cell.devices > 1] or cells
        kept = [one for one in quantities if any(one.value(data) is not None for data in several)]
        rows = tuple((data.cell.name, *(_shown(one, data) for one in kept)) for data in cells)
        table = TextTable(title, ("cell", *(one.heading for one in kept)), rows, tuple(notes)) if rows else None
        return table, list(self._why(one for one in quantities if one not in kept))

    def _grid(
        self,
        title: str,
        quantities: Sequence[StudyQuantity],
        notes: Sequence[str],
        letter: str,
        batch: Callable[[CellData], int],
        shown_batches: Collection[int] | None = None,
    ) -> tuple[TextTable | None, list[str]]:
        if not quantities:
            if self._run.manifest.script is not None:
                return None, ["the loader of a script is not timed"]
            return None, [f"--data {self._run.manifest.config.workload.data} loads nothing"]
        by_key = {
            (_row_label(data), data.cell.devices, batch(data)): data
            for data in self._run.measured
            if shown_batches is None or batch(data) in shown_batches
        }
        batches = sorted({key[2] for key in by_key})
        rows, shown = [], set()
        for strategy, devices in sorted(dict.fromkeys(key[:2] for key in by_key), key=lambda key: key[1]):
            for one in quantities:
                cells = [by_key.get((strategy, devices, size)) for size in batches]
                entries = [NA if data is None else _shown(one, data) for data in cells]
                if any(entry != NA for entry in entries):
                    rows.append((strategy, str(devices), one.heading, *entries))
                    shown.add(one.heading)
        missing = list(self._why(one for one in quantities if one.heading not in shown))
        present = {(row[0], row[1]) for row in rows}
        absent = {data.cell.strategy: data for key, data in by_key.items() if (key[0], str(key[1])) not in present}
        for strategy, data in absent.items():
            reason = self._rows[data.cell.name].reasons.get(quantities[-2].column)
            missing += [f"no {strategy}: {reason}"] if rows and data.cell.devices > 1 and reason else []
        headings = ("strategy", "devices", "quantity", *(f"{letter}={size}" for size in batches))
        return (TextTable(title, headings, tuple(rows), tuple(notes)) if rows else None), missing

    def _why(self, missing: Iterator[StudyQuantity]) -> Iterator[str]:
        """A line per reason with the quantities that are missing because of it."""
        by_reason: dict[str, list[str]] = {}
        cells = [data.cell for data in self._run.measured if data.cell.devices > 1]
        cells.sort(key=lambda cell: cell.traits.host_copies)  # last, since dp-host never has a link
        several = [cell.name for cell in cells]
        for one in missing:
            known = [self._rows[name].reasons.get(one.column) for name in several]
            reason = next((why for why in known if why), "no cell with several devices was measured")
            by_reason.setdefault(reason, []).append(one.heading)
        yield from (f"no {', '.join(headings)}: {reason}" for reason, headings in by_reason.items())

    def _epoch(self, data: CellData) -> float | None:
        return self._seconds[data.cell.name]

    def _speedup(self, data: CellData, batch_size: int) -> float | None:
        single = single_device_baselines(self._run, data.cell).get(batch_size)
        base, seconds = self._seconds[single.cell.name] if single is not None else None, self._epoch(data)
        return base / seconds if base is not None and seconds else None

    def _efficiency(self, heading: str, speedup: StudyQuantity, factor: float = 100.0) -> StudyQuantity:
        """The speedup in the previous column divided by the number of devices."""

        def value(data: CellData) -> float | None:
            known = speedup.value(data)
            return None if known is None else factor * known / data.cell.devices

        return StudyQuantity(heading, value, 1, speedup.column)

    def _of_column(self, heading: str, column: str, digits: int, factor: float) -> StudyQuantity:
        def value(data: CellData) -> float | None:
            known = self._rows[data.cell.name].number(column)
            return known * factor if known is not None else None

        return StudyQuantity(heading, value, digits, column)

    def _epoch_of(self, column: str) -> Callable[[CellData], float | None]:
        """A time per step as seconds per epoch."""

        def value(data: CellData) -> float | None:
            row = self._rows[data.cell.name]
            per_step, steps = row.number(column), row.steps_per_epoch
            return per_step * steps / 1e6 if per_step is not None and steps is not None else None

        return value


def _row_label(data: CellData) -> str:
    """A strategy with its variant and, if there are several, its number of nodes."""
    nodes = f", {data.nodes} nodes" if data.nodes > 1 else ""
    return f"{data.cell.strategy} {data.cell.variant}".strip() + nodes


def _shown(quantity: StudyQuantity, data: CellData) -> str:
    value = quantity.value(data)
    if value is None:
        return NA
    before_point = math.floor(math.log10(abs(value))) + 1 if value and quantity.digits else 3
    return f"{value:.{max(quantity.digits, 3 - before_point)}f}"


def published_table(
    run: RunData, measured: Mapping[tuple[str, str], MeasuredValue], notes: Sequence[str] = ()
) -> tuple[TextTable | None, list[str]]:
    """A row per published value of a measured cell, or the reason why there is none.

    `measured` is by quantity and fixed batch; `notes` state how the measured values were obtained.
    """
    named = run.manifest.config.reporting.published
    if named is None:
        return None, []
    rows = tuple(row for data in run.measured for row in _rows(data, run.manifest.published, measured))
    if not rows:
        return None, [
            f"{named} has no row for a measured cell: model, data, strategy, devices and batch must be the same"
        ]
    bandwidth = any(row[1] == "effective bandwidth" for row in rows)
    return TextTable(PUBLISHED_TITLE, _PUBLISHED_HEADINGS, rows, (_OTHER, *notes, *((_ALL,) if bandwidth else ()))), []


def _rows(
    data: CellData, published: tuple[PublishedValue, ...], measured: Mapping[tuple[str, str], MeasuredValue]
) -> list[tuple[str, ...]]:
    cell = data.cell
    if not isinstance(cell, Cell) or cell.variant or cell.nodes > 1:
        return []
    rows: list[tuple[str, ...]] = []
    for one in published:
        if (one.strategy, one.devices, one.batch_size) == (cell.strategy, cell.devices, cell.batch_size):
            value, unit = measured[one.quantity, one.fixed]
            by = f"{one.source} ({one.hardware})"
            rows.append(
                (
                    cell.name,
                    _quantity(one),
                    _with_unit(value(data), unit),
                    _with_unit(one.value, one.unit),
                    one.method,
                    by,
                )
            )
    return rows


def _quantity(one: PublishedValue) -> str:
    name = one.quantity.replace("_", " ").removesuffix(" seconds")
    return f"{name}, {_FIXED[one.fixed]}" if one.quantity in ("speedup", "efficiency") else name


def _with_unit(value: float | None, unit: str) -> str:
    if value is None:
        return NA
    return f"{value:.4g}%" if unit == "%" else f"{value:.4g} {'' if unit == '1' else unit}".strip()
