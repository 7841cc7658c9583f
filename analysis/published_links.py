"""Peak rates of the links of GPUs that have PCIe and nothing else, for judging a stated peak."""

import re
from typing import NamedTuple

_TRANSFERS_PER_S = {3: 8e9, 4: 16e9, 5: 32e9}

_PCIE_ONLY = {
    r"L4|L40|L40S|A10|A10G|RTX 4090|RTX 6000 Ada": 4,
    r"T4|P4|P40": 3,
}
"""Generation of their x16 slot by name; NVIDIA's data sheets of these cards list no NVLink."""


class LinkPeak(NamedTuple):
    gbps: float  # 1e9 B/s, one direction
    name: str


def pcie_gbps(generation: int, lanes: int = 16) -> float:
    """Raw rate of a PCIe link in one direction: transfers/s x 128/130 / 8 bits per lane.

    Source: PCI Express base specification 3.0 to 5.0 (128b/130b coding). Packet headers take some 10% more.
    """
    return _TRANSFERS_PER_S[generation] * lanes * 128 / 130 / 8 / 1e9


def link_peak(hardware: str | None) -> LinkPeak | None:
    """The link between GPUs that are known to have PCIe only; None for any other and for unknown hardware."""
    for names, generation in _PCIE_ONLY.items():
        if hardware and re.search(rf"(?<![\w-])({names})(?![\w-])", hardware):
            return LinkPeak(pcie_gbps(generation), f"PCIe {generation}.0 x16")
    return None
