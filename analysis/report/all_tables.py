"""The tables of a report, in reading order, and the one of other links: the gradients' all-reduce predicted on them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import model_sizes
from dpscope.analysis.costs.formulas import dp_transfer_us, ring_all_reduce_us
from dpscope.analysis.findings.comparisons import cost_table, law_table, scaling_table
from dpscope.analysis.findings.predictions import collective_table, error_table, identity_table, off_notes
from dpscope.analysis.report.comparison_tables import gap_table, views_by_name
from dpscope.analysis.report.nccl_tables import NcclChapter
from dpscope.analysis.report.rank_tables import contention_table, rank_table, run_phases, run_waits
from dpscope.analysis.runs.cell_findings import SUSPECT
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, show_bytes
from dpscope.analysis.training.tables import TRAINING_TABLES, training_tables
from dpscope.profiling.machine import link_specifications as links
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

_SOURCES = {
    "calibration": "calibration, which measured the collectives without compute",
    "specification": "link's specification by the ring model without latency, a lower bound",
}
_COMPARED = (
    "transfer: of the collectives that have one (rooted broadcasts and reduces have none); for DP all communication"
)
_ORDER = (
    "time", "gap", "costs", "memory", "scaling", "laws", "breakdown", "contention", "device_use", "device_points", "phases",
    "traffic", "dp_phases", "ranks", "waits", "estimates", "identity", "reasons", "epoch", "predictions", "collectives",
    "nccl_choices", "nccl_job", "nccl_peers", "bandwidth", "utilisation", "projection", "learning", *TRAINING_TABLES, "checks",
)  # fmt: skip
_PAGE_ALONE = frozenset(
    [
        "laws",
        "contention",
        "phases",
        "dp_phases",
        "ranks",
        "waits",
        "reasons",
        "epoch",
        "bandwidth",
        "utilisation",
        "projection",
    ]
)


def report_tables(run: RunData, comparison: Comparison, nccl: NcclChapter) -> dict[str, TextTable]:
    """All tables by name, in page order: times, scaling, parts of a step, estimates, models, learning, checks.

    Tables without values are omitted.
    """
    known = [data for data in run.measured if data.communication_known]
    contended = [(row.cell, row.contentions, row.ledger) for row in comparison.rows.values()]
    views = views_by_name(comparison)
    tables: dict[str, TextTable | None] = {
        **views,
        "gap": gap_table(comparison),
        "costs": cost_table(comparison.costs),
        "memory": memory if (memory := views.get("memory")) and len(memory.headings) > 2 else None,  # more than steps
        "scaling": scaling_table(comparison),
        "laws": law_table(comparison),
        "contention": contention_table([(cell, one, of.hidden_us) for cell, one, of in contended if one and of]),
        "dp_phases": run_phases({data.cell.name: data.dp_phases for data in known}),
        "ranks": rank_table(known),
        "waits": run_waits(known),
        "identity": identity_table(comparison),
        "reasons": error_table(comparison),
        "predictions": _with_sources(views.get("predictions"), comparison, run),
        "collectives": collective_table(
            comparison, lambda one: nccl.choice(one.ranks, run.cells[one.cell].nodes, one.kind, one.size_bytes)
        ),
        **nccl.tables(),
        "projection": projection_table(run),
        **(training_tables(run.training) if run.training else {}),
    }
    return {name: table for name in _ORDER if (table := tables.get(name)) is not None and table.rows}


def terminal_tables(tables: Mapping[str, TextTable]) -> list[TextTable]:
    """The tables of `report_tables` that a terminal shows; the page shows all."""
    return [tables[name] for name in _ORDER if name in tables and name not in _PAGE_ALONE]


def _with_sources(table: TextTable | None, comparison: Comparison, run: RunData) -> TextTable | None:
    """The table of predictions with notes on what they are based on."""
    if table is None:
        return None
    rows = [row for row in comparison.rows.values() if row.prediction_source is not None]
    sources = _cells_by((row.prediction_source, row.cell) for row in rows)
    ratios = _cells_by((row.prediction_contention, row.cell) for row in rows)
    idle = [row.cell for row in rows if row.prediction_contention is None and traits_of(row.strategy).reducer]
    later = "the calibration was made after the start of the run, so these are not forecasts"
    notes = (
        *(f"predicted from the {_SOURCES[source]}: {cells}" for source, cells in sources.items()),
        *(f"with contention as calibrated, {ratio}: {cells}" for ratio, cells in ratios.items()),
        *([f"without contention, as on an idle machine: {', '.join(idle)}"] if idle else []),
        *off_notes(comparison, shared_cores=run.device_type == "cpu"),
        *_engine_notes(run),
        *([later] if comparison.calibrated_later else []),
    )
    return replace(table, notes=(*table.notes, _COMPARED, *notes))


def _cells_by(pairs: Iterable[tuple[str | None, str]]) -> dict[str, str]:
    """The cells of each known value, in the order of the values."""
    found: dict[str, list[str]] = {}
    for value, cell in pairs:
        if value is not None:
            found.setdefault(value, []).append(cell)
    return {value: ", ".join(found[value]) for value in sorted(found)}


def _engine_notes(run: RunData) -> Iterator[str]:
    """The NCCL engine of torch that the prediction of exposed communication assumes, if NCCL was used."""
    ran = {rank.nccl_engine for data in run.measured for _, rank in data.ranks if rank.nccl_engine is not None}
    if SUSPECT in ran:
        yield (
            "exposed is predicted for torch's engine ProcessGroupNCCL, whose all-reduces overlap the backward pass; whether "
            f"those of {SUSPECT}, which cells used, do so is not confirmed on hardware"
        )
    elif ran:
        yield f"exposed is predicted for torch's engine {', '.join(sorted(ran))}, which the cells used"


_NETWORKS = (
    *(f"Ethernet {rate} Gb/s" for rate in (1, 10, 100)),
    *(f"InfiniBand {name}" for name in ("EDR x4 (100 Gb/s)", "HDR x4 (200 Gb/s)", "NDR x4 (400 Gb/s)")),
)
_NVLINK_MODELS = ("V100-SXM2", "A100-SXM4", "H100 SXM5", "B200")  # NVLink 2 to 5
_SHARES = (1.0, 0.5, 0.25)
_MILLISECONDS, _MICROSECONDS = Unit("ms", 1e3, 3), Unit("µs", 1.0, 3)
_MILLISECONDS_FROM_US = 1e4  # time on the slowest link from which on three decimals of a ms suffice for the fastest
_PROJECTED = "Predicted from the link's specification for this many bytes; nothing was measured"


def projected_links() -> dict[str, float]:
    """Specified GB/s in one direction by name: networks, PCIe x16, and all NVLinks of a GPU per generation."""
    networks = links.ETHERNET_GB_PER_S | links.INFINIBAND_GB_PER_S
    rates = {name: networks[name] for name in _NETWORKS}
    rates |= {f"PCIe {generation}.0 x16": links.pcie_gb_per_s(generation) for generation in (3, 4, 5)}
    for name in _NVLINK_MODELS:
        model = links.gpu_model(name)
        assert model is not None
        link = links.model_link(model)
        assert link is not None
        rates[f"{link.name} ({model.title})"] = link.gb_per_s
    return rates


def projection_table(run: RunData) -> TextTable | None:
    """Predicted transfer time on `projected_links` for the gradients and for half and a quarter of their bytes.

    It is of the largest measured device count: DDP's ring all-reduce, else DataParallel's broadcast and reduce by NCCL. None
    without a multi-device cell.
    """
    several = [one for one in run.measured if one.cell.devices > 1]
    moving = [one for one in several if one.cell.traits.reducer or one.cell.traits.peer_copies]
    known = [(data.cell, sizes) for data in moving if (sizes := model_sizes(data)) is not None]
    if not known:
        return None
    cell, sizes = max(known, key=lambda one: (one[0].traits.reducer, one[0].devices))
    by_ring = cell.traits.reducer
    moved_bytes = sizes.gradient_bytes if by_ring else sizes.parameter_bytes

    def predicted_us(share: float, gb_per_s: float) -> float:
        if by_ring:
            return ring_all_reduce_us(share * moved_bytes, cell.devices, gb_per_s)
        return dp_transfer_us(share * moved_bytes, sizes.buffer_bytes, cell.devices, gb_per_s, peer_copies=False)

    rates = projected_links()
    longest_us = predicted_us(1.0, min(rates.values()))
    unit = _MILLISECONDS if longest_us >= _MILLISECONDS_FROM_US else _MICROSECONDS
    rows = [
        {"link": name, "rate": rate, **{str(share): predicted_us(share, rate) for share in _SHARES}}
        for name, rate in rates.items()
    ]
    fields = (
        Field("link", "link", meaning="A link between devices"),
        Field("one way", "rate", Unit("GB/s", 1.0, 3), "Its specified rate in one direction"),
        *(Field(show_bytes(share * moved_bytes), str(share), unit, _PROJECTED) for share in _SHARES),
    )
    what = "ring all-reduce of the gradients" if by_ring else "DataParallel's broadcast and reduce"
    return table_of(
        f"Predicted, not measured: {what} on other links, {counted(cell.devices, 'device')}",
        fields,
        rows,
        [
            "rates: docs/links.md, with sources; a lower bound: no latency, no contention, every hop on this link",
            "half: gradients in 16 bits; a quarter: in 8 bits or compressed 4 times",
        ],
    )
