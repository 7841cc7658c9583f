"""The tables of data-parallel studies: `dpscope analyze RUN --tables`. What was not measured is not printed, and says why.

1. epoch seconds and speedup, at fixed batch per device and at fixed global batch; 2. compute and communication of an epoch,
measured beside each estimate; 3. bandwidth and utilisation; 4. results, a row a cell; 5. epochs with and without data loading;
6. what others published of the same cells, where the run names a table of it.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.measured import epoch_seconds
from dpscope.analysis.cells.row import as_number
from dpscope.analysis.findings.run_findings import TRACER_COST
from dpscope.analysis.report.published_table import TITLE as PUBLISHED_TITLE
from dpscope.analysis.report.published_table import MeasuredValue, published_table
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA


@dataclass(frozen=True)
class StudyQuantity:
    """What a table shows of a cell: a value with its digits, and the comparison's column that says why it is missing."""

    heading: str
    value: Callable[[CellData], float | None]
    digits: int  # decimals; more of a value that would keep fewer than three digits
    column: str


@dataclass(frozen=True)
class Study:
    """The tables that a run fills, and a line for what it leaves out."""

    tables: tuple[TextTable, ...]
    left_out: tuple[str, ...]


def classic_tables(run: RunData, comparison: Comparison) -> Study:
    """Epochs in seconds, bandwidth in GB/s; a table, row or column without a value is left out, with the reason."""
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
                "Compute and communication of an epoch, measured beside each estimate",
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
                (*builder.input_path(), "waiting for loaded batches: what queued work hides is no wait"),
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
        self._rows = {str(row["cell"]): row for _, row in comparison.table.iterrows()}
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
            self._told("communication, measured [s]", "communication_epoch_us", 2, 1e-6),
            self._told("exposed, measured [s]", "exposed_epoch_us", 2, 1e-6),
            self._told("estimate T_N-T_1/N [s]", "same_local_batch_epoch_us", 2, 1e-6),
            self._told("estimate T_N-T_1(G)/N [s]", "ideal_split_epoch_us", 2, 1e-6),
            self._told("estimate T_N-T_1(G) [s]", "same_total_epoch_us", 2, 1e-6),
        )

    def bandwidth(self) -> Sequence[StudyQuantity]:
        """Utilisation of the link where one is known, else of the calibrated rate."""
        known, calibrated = (
            bool(self._comparison.table[f"{level}_gb_per_s"].notna().any()) for level in ("link", "calibrated")
        )
        level, rate = ("calibration", "calibrated") if calibrated and not known else ("link", "link")
        return (
            self._told("all-reduces, algbw [GB/s]", "algbw_gb_per_s", 1, 1.0),
            self._told("all-reduces, busbw [GB/s]", "busbw_gb_per_s", 1, 1.0),
            self._told("ring, by T_N-T_1/N [GB/s]", "ring_subtraction_gb_per_s", 1, 1.0),
            self._told("all communication [GB/s]", "communication_gb_per_s", 1, 1.0),
            self._told(f"busbw / {rate} [%]", f"transfer_of_{level}", 1, 100.0),
            self._told(f"all communication / {rate} [%]", f"communication_of_{level}", 1, 100.0),
        )

    def results(self) -> Sequence[StudyQuantity]:
        return (
            StudyQuantity("devices", lambda data: data.cell.devices, 0, "devices"),
            StudyQuantity("epoch [s]", self._epoch, 2, "step_us"),
            *self.weak()[1:],
            self._efficiency("efficiency, same b [%]", self.weak()[1]),
            *self.strong()[1:],
            self._efficiency("efficiency, same G [%]", self.strong()[1]),
            self._told("test accuracy [%]", "test_accuracy_percent", 2, 1.0),
        )

    def result_notes(self) -> tuple[str, ...]:
        """On which global batch a cell was trained where it is not its own."""
        batches: dict[int, list[str]] = {}
        for data in self._run.measured:
            trained = as_number(self._rows[data.cell.name]["trained_global_batch_size"])
            if trained is not None and trained != data.cell.global_batch_size:
                batches.setdefault(int(trained), []).append(data.cell.name)
        return tuple(
            f"test accuracy of {', '.join(cells)}: of the same strategy and devices, trained on a global batch of {batch}"
            for batch, cells in batches.items()
        )

    def loading(self) -> Sequence[StudyQuantity]:
        """None of synthetic data: nothing is loaded; none of a script: its loader is not timed."""
        if self._run.manifest.config.workload.data == "synthetic":
            return ()
        return (
            StudyQuantity("with loading [s]", self._epoch, 2, "step_us"),
            StudyQuantity("without [s]", self._epoch_of("step_without_wait_us"), 2, "step_without_wait_us"),
        )

    def published(self) -> dict[tuple[str, str], MeasuredValue]:
        """What stands beside each quantity of PublishedValue, by what is fixed as devices are added."""
        alike = {
            "epoch_seconds": (self._epoch, "s"),
            "compute_seconds": (self._epoch_of("compute_us"), "s"),
            "communication_seconds": (self._told("", "communication_epoch_us", 2, 1e-6).value, "s"),
            "effective_bandwidth": (self._told("", "communication_gb_per_s", 1, 1.0).value, "GB/s"),
            "utilisation": (self._told("", "communication_of_link", 1, 100.0).value, "%"),
            "test_accuracy": (self._told("", "test_accuracy_percent", 2, 1.0).value, "%"),
        }
        return {
            **{(name, fixed): one for name, one in alike.items() for fixed in ("global", "per_device")},
            ("speedup", "global"): (self.strong()[1].value, "1"),
            ("speedup", "per_device"): (self.weak()[1].value, "1"),
            ("efficiency", "global"): (self._efficiency("", self.strong()[1], 1.0).value, "1"),
            ("efficiency", "per_device"): (self._efficiency("", self.weak()[1], 1.0).value, "1"),
        }

    def epoch_notes(self) -> tuple[str, ...]:
        how = "measured whole epochs" if self._whole else "median step time x steps per epoch, not a measured epoch"
        return (f"epoch seconds are {how}", *self.input_path(), "a speedup of epochs already counts the N devices")

    def input_path(self) -> tuple[str, ...]:
        """How images reached the model, where the data has two ways: published epochs are mostly of images one by one."""
        workload = self._run.manifest.config.workload
        if workload.data not in ("cifar10", "digits") or self._run.manifest.script is not None:
            return ()
        if workload.transforms == "per-image":
            return ("images were transformed one by one, from PIL images by torchvision (--transforms per-image)",)
        return (
            "images were kept in memory and transformed a batch at a time; --transforms per-image times the path of most scripts",
        )

    def communication_notes(self) -> tuple[str, ...]:
        """How each is obtained; where tracing slowed a cell's steps, its parts may exceed its epoch."""
        how = "compute and communication: means of traced steps x steps per epoch; epoch and estimates: from untraced steps"
        slowed = [
            f"{name} {cost:.2f}x"
            for name, row in self._rows.items()
            if (cost := as_number(row["tracer_cost"])) is not None and cost > TRACER_COST
        ]
        return (how, *((f"traced steps took longer than untraced ones: {', '.join(slowed)}",) if slowed else ()))

    def bandwidth_notes(self) -> tuple[str, ...]:
        table = self._comparison.table
        rates = {
            name: sorted({float(f"{rate:.3g}") for rate in table[f"{column}_gb_per_s"].dropna()})
            for name, column in (("the link", "link"), ("the calibrated rate of the same messages", "calibrated"))
        }
        moved = (
            "all communication: bytes that a rank sends (bus factors; under DP for broadcasts and reduces), divided by the time "
            "spent communicating"
        )
        known = (f"{name}: {', '.join(f'{one:g}' for one in found)} GB/s" for name, found in rates.items() if found)
        ring = "ring, by T_N-T_1/N: bytes of the ring formula over the subtraction; no measured rate"
        return (*known, ring, moved)

    def by_batch(
        self, title: str, quantities: Sequence[StudyQuantity], notes: Sequence[str]
    ) -> tuple[TextTable | None, list[str]]:
        """Rows strategy (with its variant), devices and quantity; a column per batch per device."""
        return self._grid(title, quantities, (*notes, "b: batch per device"), "b", lambda data: data.cell.batch_size)

    def by_global(
        self, title: str, quantities: Sequence[StudyQuantity], notes: Sequence[str]
    ) -> tuple[TextTable | None, list[str]]:
        """The same with a column per global batch; only if several devices share one."""
        several = [one for one in self._run.measured if one.cell.devices > 1 and quantities[-1].value(one) is not None]
        if not several:
            return None, [
                "no single-device cell has the global batch of a cell with several devices; add --scaling strong"
            ]
        shared = {one.cell.global_batch_size for one in several}
        told = (*notes, "G: global batch")
        return self._grid(title, quantities, told, "G", lambda data: data.cell.global_batch_size, shared)

    def by_cell(
        self, title: str, quantities: Sequence[StudyQuantity], notes: Sequence[str]
    ) -> tuple[TextTable | None, list[str]]:
        """A row per cell; a column without values is left out."""
        cells = self._run.measured
        told = [data for data in cells if data.cell.devices > 1] or cells  # one device beside itself tells nothing
        kept = [one for one in quantities if any(one.value(data) is not None for data in told)]
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
        told = {(row[0], row[1]) for row in rows}
        absent = {data.cell.strategy: data for key, data in by_key.items() if (key[0], str(key[1])) not in told}
        for strategy, data in absent.items():
            reason = self._comparison.reasons.get((data.cell.name, quantities[-2].column))
            missing += [f"no {strategy}: {reason}"] if rows and data.cell.devices > 1 and reason else []
        headings = ("strategy", "devices", "quantity", *(f"{letter}={size}" for size in batches))
        return (TextTable(title, headings, tuple(rows), tuple(notes)) if rows else None), missing

    def _why(self, missing: Iterator[StudyQuantity]) -> Iterator[str]:
        """A line for each reason, with the quantities that it keeps from being shown."""
        by_reason: dict[str, list[str]] = {}
        cells = [data.cell for data in self._run.measured if data.cell.devices > 1]
        cells.sort(key=lambda cell: cell.traits.host_copies)  # which has no link in any case
        several = [cell.name for cell in cells]
        for one in missing:
            told = [self._comparison.reasons.get((name, one.column)) for name in several]
            reason = next((why for why in told if why), "no cell with several devices was measured")
            by_reason.setdefault(reason, []).append(one.heading)
        yield from (f"no {', '.join(headings)}: {reason}" for reason, headings in by_reason.items())

    def _epoch(self, data: CellData) -> float | None:
        return self._seconds[data.cell.name]

    def _speedup(self, data: CellData, batch_size: int) -> float | None:
        single = single_device_baselines(self._run, data.cell).get(batch_size)
        base, own = self._seconds[single.cell.name] if single is not None else None, self._epoch(data)
        return base / own if base is not None and own else None

    def _efficiency(self, heading: str, speedup: StudyQuantity, factor: float = 100.0) -> StudyQuantity:
        """The speedup in the column before, over N: of the same epochs."""

        def value(data: CellData) -> float | None:
            known = speedup.value(data)
            return None if known is None else factor * known / data.cell.devices

        return StudyQuantity(heading, value, 1, speedup.column)

    def _told(self, heading: str, column: str, digits: int, factor: float) -> StudyQuantity:
        def value(data: CellData) -> float | None:
            known = as_number(self._rows[data.cell.name][column])
            return known * factor if known is not None else None

        return StudyQuantity(heading, value, digits, column)

    def _epoch_of(self, column: str) -> Callable[[CellData], float | None]:
        """A time per step, of an epoch in seconds."""

        def value(data: CellData) -> float | None:
            row = self._rows[data.cell.name]
            per_step, steps = as_number(row[column]), as_number(row["steps_per_epoch"])
            return per_step * steps / 1e6 if per_step is not None and steps is not None else None

        return value


def _row_label(data: CellData) -> str:
    """A strategy with its variant, and with its nodes where there are several: each is a row in a grid."""
    nodes = f", {data.nodes} nodes" if data.nodes > 1 else ""
    return f"{data.cell.strategy} {data.cell.variant}".strip() + nodes


def _shown(quantity: StudyQuantity, data: CellData) -> str:
    value = quantity.value(data)
    if value is None:
        return NA
    before_point = math.floor(math.log10(abs(value))) + 1 if value and quantity.digits else 3
    return f"{value:.{max(quantity.digits, 3 - before_point)}f}"
