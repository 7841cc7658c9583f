"""The time of the gradients' all-reduce on other links, predicted from their specifications."""

from dpscope.analysis.cells.predicted import model_sizes
from dpscope.analysis.costs.formulas import dp_transfer_us, ring_all_reduce_us
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import Unit, show, show_bytes
from dpscope.profiling.machine.link_specifications import (
    ETHERNET_GB_PER_S,
    INFINIBAND_GB_PER_S,
    gpu_model,
    model_link,
    pcie_gb_per_s,
)
from dpscope.profiling.records.finding import counted

_NETWORKS = (
    *(f"Ethernet {rate} Gb/s" for rate in (1, 10, 100)),
    *(f"InfiniBand {name}" for name in ("EDR x4 (100 Gb/s)", "HDR x4 (200 Gb/s)", "NDR x4 (400 Gb/s)")),
)
_PCIE_GENERATIONS = (3, 4, 5)
_NVLINK_MODELS = ("V100-SXM2", "A100-SXM4", "H100 SXM5", "B200")  # NVLink 2 to 5


def projected_links() -> dict[str, float]:
    """Specified GB/s in one direction by name: networks, PCIe x16, and all NVLinks of a GPU per generation."""
    networks = ETHERNET_GB_PER_S | INFINIBAND_GB_PER_S
    links = {name: networks[name] for name in _NETWORKS}
    links |= {f"PCIe {generation}.0 x16": pcie_gb_per_s(generation) for generation in _PCIE_GENERATIONS}
    for name in _NVLINK_MODELS:
        model = gpu_model(name)
        link = model_link(model) if model is not None else None
        assert model is not None
        assert link is not None
        links[f"{link.name} ({model.title})"] = link.gb_per_s
    return links


_SHARES = (1.0, 0.5, 0.25)
_MILLISECONDS, _MICROSECONDS = Unit("ms", 1e3, 3), Unit("µs", 1.0, 3)
_MILLISECONDS_FROM_US = (
    1e4  # time on the slowest link from which on three decimals of a millisecond suffice for the fastest
)


def projection_table(run: RunData) -> TextTable | None:
    """Predicted transfer time on `projected_links` for the gradients and for half and a quarter of their bytes.

    It is of the largest measured device count: DDP's ring all-reduce, else DataParallel's broadcast and reduce by NCCL. None
    without a multi-device cell.
    """
    known = {data.cell.name: sizes for data in run.measured if (sizes := model_sizes(data)) is not None}
    measured = [data for data in run.measured if data.cell.name in known]
    cells = [
        data
        for data in measured
        if data.cell.devices > 1 and (data.cell.traits.reducer or data.cell.traits.peer_copies)
    ]
    if not cells:
        return None
    data = max(cells, key=lambda one: (one.cell.traits.reducer, one.cell.devices))
    sizes, devices, by_ring = known[data.cell.name], data.cell.devices, data.cell.traits.reducer

    def predicted_us(share: float, gb_per_s: float) -> float:
        if by_ring:
            return ring_all_reduce_us(share * sizes.gradient_bytes, devices, gb_per_s)
        return dp_transfer_us(share * sizes.parameter_bytes, sizes.buffer_bytes, devices, gb_per_s, peer_copies=False)

    what = "ring all-reduce of the gradients" if by_ring else "DataParallel's broadcast and reduce"
    moved = [show_bytes(share * (sizes.gradient_bytes if by_ring else sizes.parameter_bytes)) for share in _SHARES]
    times_us = {
        name: [predicted_us(share, gb_per_s) for share in _SHARES] for name, gb_per_s in projected_links().items()
    }
    unit = _MILLISECONDS if max(map(max, times_us.values())) >= _MILLISECONDS_FROM_US else _MICROSECONDS
    return TextTable(
        title=f"Predicted, not measured: {what} on other links, {counted(devices, 'device')}",
        headings=("link", "one way [GB/s]", *(f"{size} [{unit.label}]" for size in moved)),
        rows=tuple(
            (
                name,
                f"{gb_per_s:.3f}",
                *(show(time_us, unit) for time_us in times_us[name]),
            )
            for name, gb_per_s in projected_links().items()
        ),
        notes=(
            "rates: docs/links.md, with sources; a lower bound: no latency, no contention, every hop on this link",
            "half: gradients in 16 bits; a quarter: in 8 bits or compressed 4 times",
        ),
    )
