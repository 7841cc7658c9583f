"""What the gradients' all-reduce would take on other links: predicted from specifications, not measured."""

from typing import NamedTuple

from dpscope.analysis.cost_models import dp_transfer_us, ring_all_reduce_us
from dpscope.analysis.predictions import model_sizes
from dpscope.analysis.run_analysis import RunData
from dpscope.analysis.tables import TextTable
from dpscope.analysis.units import Unit, show, show_bytes
from dpscope.profiling.link_specifications import NVLINK_GBPS, pcie_gbps


class Link(NamedTuple):
    """A link's specification in one direction."""

    name: str
    gbps: float  # 1e9 B/s


LINKS = (
    Link("Ethernet 1 Gb/s", 1 / 8),
    Link("Ethernet 10 Gb/s", 10 / 8),
    Link("Ethernet 100 Gb/s", 100 / 8),
    Link("InfiniBand EDR 100 Gb/s", 100 / 8),
    Link("InfiniBand HDR 200 Gb/s", 200 / 8),
    Link("InfiniBand NDR 400 Gb/s", 400 / 8),
    Link("PCIe 3.0 x16", pcie_gbps(3)),
    Link("PCIe 4.0 x16", pcie_gbps(4)),
    Link("PCIe 5.0 x16", pcie_gbps(5)),
    Link("NVLink 2 (V100, 6 links)", 6 * NVLINK_GBPS[2]),
    Link("NVLink 3 (A100, 12 links)", 12 * NVLINK_GBPS[3]),
    Link("NVLink 4 (H100, 18 links)", 18 * NVLINK_GBPS[4]),
    Link("NVLink 5 (B200, 18 links)", 18 * NVLINK_GBPS[5]),
)
"""Ethernet: IEEE 802.3; InfiniBand: IBTA roadmap, 4 lanes; PCIe: base specifications 3.0 to 5.0; NVLink: NVIDIA's data sheets of
the GPUs named, which give both directions together: 300, 600, 900, 1800 GB/s."""

_SHARES = (1.0, 0.5, 0.25)


def projection_table(run: RunData) -> TextTable | None:
    """Predicted transfer time on LINKS for the gradients and for half and a quarter of their bytes.

    Of the largest measured device count: DDP's ring all-reduce, else DataParallel's broadcast and reduce by NCCL. None
    without a multi-device cell.
    """
    cells = [data for data in run.measured if data.cell.devices > 1 and data.cell.strategy in ("ddp", "dp")]
    if not cells:
        return None
    data = max(cells, key=lambda one: (one.cell.strategy == "ddp", one.cell.devices))
    sizes, devices, by_ring = model_sizes(data), data.cell.devices, data.cell.strategy == "ddp"
    milliseconds = Unit("ms", 1e3, 3)

    def predicted_us(share: float, gbps: float) -> float:
        if by_ring:
            return ring_all_reduce_us(share * sizes.gradient_bytes, devices, gbps)
        return dp_transfer_us(share * sizes.parameter_bytes, sizes.buffer_bytes, devices, gbps, peer_copies=False)

    what = "ring all-reduce of the gradients" if by_ring else "DataParallel's broadcast and reduce"
    moved = [show_bytes(share * (sizes.gradient_bytes if by_ring else sizes.parameter_bytes)) for share in _SHARES]
    return TextTable(
        title=f"Predicted, not measured: {what} on other links, {devices} devices",
        headings=("link", "one way [GB/s]", *(f"{size} [ms]" for size in moved)),
        rows=tuple(
            (
                link.name,
                f"{link.gbps:.3f}",
                *(show(predicted_us(share, link.gbps), milliseconds) for share in _SHARES),
            )
            for link in LINKS
        ),
        notes=(
            "a lower bound: the specification's rate, no latency, no contention, every hop on this link",
            "half: gradients in 16 bits; a quarter: in 8 bits or compressed 4 times",
        ),
    )
