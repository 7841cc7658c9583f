"""Specified rates of links in one direction, in GB/s (1e9 B/s), with sources, and rates as users
write them. Imports no torch.

Vendors often print the sum of both directions; a collective's bus bandwidth is bounded by one.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.profiling.records.links import LinkRate

PCIE_SOURCE = "PCI Express Base Specification"
_PCIE_LANES = {1: (2.5, 8 / 10), 2: (5.0, 8 / 10), 3: (8.0, 128 / 130), 4: (16.0, 128 / 130), 5: (32.0, 128 / 130),
               6: (64.0, 242 / 256)}  # fmt: skip
"""Per generation: transfers per second in 1e9 (one bit each), and the share of bits that remains
after coding.

Generation 6 sends units of 256 B, of which 242 B hold data and link layer and the rest checks.
Packet headers take about another 10%.
"""

_PCIE_WIDTHS = (1, 2, 4, 8, 16, 32)  # lanes

NVLINK_SOURCE = "NVIDIA's architecture white papers (P100, V100, A100, H100, Blackwell, Rubin)"
NVLINK_GB_PER_S = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0, 6: 50.0}
"""One link, one direction, by generation."""

_HALF_WIDTH = re.compile(r"A40\b|RTX A(4500|5000|5500|6000)|RTX 3090")
HALF_WIDTH_GB_PER_S = 14.0625
"""A third-generation link of cards with a GA102 chip. Source: NVIDIA Ampere GA102 GPU
Architecture.
"""

ETHERNET_GB_PER_S = {f"Ethernet {rate} Gb/s": rate / 8 for rate in (1, 10, 25, 40, 100, 200, 400)}
"""Source: IEEE 802.3; rates of frames, of which headers take 2 to 6%."""

INFINIBAND_GB_PER_S = {
    f"InfiniBand {name} x4 ({rate} Gb/s)": rate / 8
    for name, rate in (
        ("QDR", 32),
        ("FDR", 54.5),
        ("EDR", 100),
        ("HDR", 200),
        ("NDR", 400),
        ("XDR", 800),
    )
}
"""Source: InfiniBand Architecture Specification; four lanes, without coding."""


def pcie_gb_per_s(generation: int, lanes: int = 16) -> float:
    """Rate of a PCIe link in one direction: transfers per second x coding / 8 bits, times lanes."""
    rate, coding = _PCIE_LANES[generation]
    return rate * coding / 8 * lanes


def pcie_link(generation: int | None, lanes: int | None) -> LinkRate | None:
    """A PCIe link by generation (1 to 6) and lanes; None if either is unknown."""
    if generation not in _PCIE_LANES or not lanes:
        return None
    name = f"PCIe {generation}.0 x{lanes}"
    return LinkRate(gb_per_s=pcie_gb_per_s(generation, lanes), name=name, source=PCIE_SOURCE)


def nvlink(version: int | None, links: int, device_name: str | None) -> LinkRate | None:
    """A number of NVLinks of a generation (1 to 6) on a GPU of this name; None for no links or an
    unknown generation.
    """
    if version not in NVLINK_GB_PER_S or links < 1:
        return None
    half = version == 3 and device_name is not None and _HALF_WIDTH.search(device_name) is not None
    each = HALF_WIDTH_GB_PER_S if half else NVLINK_GB_PER_S[version]
    source = "NVIDIA Ampere GA102 GPU Architecture" if half else NVLINK_SOURCE
    return LinkRate(gb_per_s=each * links, name=f"NVLink {version} x{links}", source=source)


@dataclass(frozen=True)
class GpuModel:
    title: str
    pattern: str  # of NVML's name for it
    pcie_generation: int
    nvlink: tuple[int, int] | None = None  # generation and number of links
    bridged: bool = False  # NVLinks only where a bridge is fitted between two cards
    other_source: str = ""  # than the data sheet of this title

    @property
    def source(self) -> str:
        return self.other_source or f"NVIDIA {self.title} data sheet"


GPU_MODELS: Sequence[GpuModel] = (
    GpuModel("P100 SXM2", r"P100-SXM2", 3, (1, 4), other_source="NVIDIA Tesla P100 white paper"),
    GpuModel("P100 PCIe", r"P100-PCIE", 3),
    GpuModel("P4, P40", r"P4|P40", 3),
    GpuModel(
        "V100 SXM2, SXM3", r"V100-SXM[23]", 3, (2, 6), other_source="NVIDIA Tesla V100 white paper"
    ),
    GpuModel("V100 PCIe", r"V100S?-PCIE", 3),
    GpuModel("T4", r"T4", 3),
    GpuModel("A100 SXM4", r"A100-SXM4", 4, (3, 12)),
    GpuModel("A100 PCIe", r"A100-PCIE|A100 80GB PCIe", 4, (3, 12), bridged=True),
    GpuModel("A30", r"A30", 4, (3, 4), bridged=True),
    GpuModel("A40", r"A40", 4, (3, 4), bridged=True),
    GpuModel("A10, A10G", r"A10|A10G", 4),
    GpuModel("RTX A6000", r"RTX A6000", 4, (3, 4), bridged=True),
    GpuModel(
        "GeForce RTX 3090",
        r"RTX 3090",
        4,
        (3, 4),
        bridged=True,
        other_source="NVIDIA Ampere GA102 GPU Architecture",
    ),
    GpuModel("GeForce RTX 4090", r"RTX 4090", 4, other_source="NVIDIA Ada GPU Architecture"),
    GpuModel("RTX 6000 Ada", r"RTX 6000 Ada", 4),
    GpuModel("L4", r"L4", 4),
    GpuModel("L40, L40S", r"L40|L40S", 4),
    GpuModel("H100 SXM5", r"H100 80GB HBM3|H100-SXM5|H100 SXM5?", 5, (4, 18)),
    GpuModel("H100 PCIe", r"H100 PCIe", 5, (4, 12), bridged=True),
    GpuModel("H100 NVL", r"H100 NVL", 5, (4, 12), bridged=True),
    GpuModel("H200 SXM", r"H200|H200 SXM", 5, (4, 18)),
    GpuModel("H200 NVL", r"H200 NVL", 5, (4, 18), bridged=True),
    GpuModel("B200 SXM", r"B200", 5, (5, 18)),
    GpuModel(
        "Rubin",
        r"Rubin(?: GPU)?|VR200",
        6,
        (6, 36),
        other_source="NVIDIA Vera Rubin NVL72 product page: 3.6 TB/s a GPU, 36 links",
    ),
)
"""All models have 16 PCIe lanes. A missing model is not an error: NVML reports its links."""


def gpu_model(name: str | None) -> GpuModel | None:
    """The model named in a text such as NVML's "NVIDIA A100-SXM4-40GB" or "8x L40S", by the longest
    match.
    """
    matches = []
    for index, model in enumerate(GPU_MODELS):
        if match := re.search(rf"(?<![\w-])({model.pattern})(?:-\d+GB)?(?![\w-])", name or ""):
            matches.append((len(match[1]), index))
    return GPU_MODELS[max(matches)[1]] if matches else None


def model_link(model: GpuModel) -> LinkRate | None:
    """The link between GPUs of one server if it follows from the model; None for cards that may
    have a bridge.
    """
    if model.bridged:
        return None
    version, links = model.nvlink or (None, 0)
    return nvlink(version, links, model.title) or pcie_link(model.pcie_generation, 16)


STATED = "stated by the user"
_BITS = {"b": 1 / 8, "bit": 1 / 8, "bits": 1 / 8, "B": 1.0, "byte": 1.0, "bytes": 1.0}
_SCALES = {"M": 1e-3, "G": 1.0, "T": 1e3}
_SLOWEST_GB_PER_S = 1e-9  # one byte per second: less is a typing error
_RATE = re.compile(
    r"(?P<number>[\d.,]+(?:[eE][+-]?\d+)?)\s*(?P<scale>[A-Za-z]?)(?P<unit>bits?|bytes?|b|B)(?:/s|ps)"
)
_BARE = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?")
_PCIE = re.compile(
    r"pci(?:e|-e|\s*express)?\s*(?:gen\s*)?(?P<generation>\d)(?:\.0)?\s*x\s*(?P<lanes>\d+)",
    re.IGNORECASE,
)
_NVLINK = re.compile(r"nvlink\s*(?P<version>\d)(?:\.0)?(?:\s*x\s*(?P<links>\d+))?", re.IGNORECASE)
_ETHERNET = re.compile(
    r"(?:ethernet\s*)?(?P<rate>\d+)\s*gb?e|ethernet\s*(?P<other>\d+)(?:\s*gb?/s)?", re.IGNORECASE
)
_INFINIBAND = re.compile(
    r"(?:infiniband\s*|ib\s*)?(?P<name>[QFEHNX]DR)(?:\s*x\s*4)?(?:\s*\(.*\))?", re.IGNORECASE
)

_NVLINKS_OF_ONE_GPU = {1: 4, 2: 6, 3: 12, 4: 18, 5: 18, 6: 36}
"""Links of the module of each generation: P100, V100, A100, H100, B200, Rubin. Source: NVIDIA's
data sheets (docs/calibration.md).
"""

_BOTH_UNITS = "write {0}GB/s (1e9 bytes a second) or {0}Gb/s (1e9 bits a second)"
_FORMS = 'give a number with a unit (100Gb/s, 12.5GB/s) or a name ("PCIe 4.0 x16", "NVLink 3", "InfiniBand HDR", "100GbE")'


def parse_link(text: str) -> LinkRate:
    """The rate in one direction of a text such as ``100Gb/s``, ``12.5GB/s``, ``PCIe 4.0 x16`` or
    ``NVLink 3``.

    An NVLink generation without a count means all links of that generation's SXM module. Raises
    ValueError, in one line with the valid forms, for a bare number (bits or bytes?), an unknown
    name or a rate that is not above 0.
    """
    words = text.strip()
    if _BARE.fullmatch(words):
        raise ValueError(f"{text} has no unit: {_BOTH_UNITS.format(words)}")
    if rate := _RATE.fullmatch(words):
        return _stated(text, rate)
    link = _named_link(words)
    if link is None:
        raise ValueError(f"{text} is no link: {_FORMS}")
    return link


def _named_link(words: str) -> LinkRate | None:
    """The link of this name; None if there is none."""
    if pcie := _PCIE.fullmatch(words):
        lanes = int(pcie["lanes"])
        if lanes not in _PCIE_WIDTHS:
            return None
        return pcie_link(int(pcie["generation"]), lanes)
    if nvlinks := _NVLINK.fullmatch(words):
        version = int(nvlinks["version"])
        # without a number all links of a module
        links = nvlinks["links"] or _NVLINKS_OF_ONE_GPU.get(version, 0)
        return nvlink(version, int(links), None)
    if ethernet := _ETHERNET.fullmatch(words):
        name = f"Ethernet {ethernet['rate'] or ethernet['other']} Gb/s"
        rate = ETHERNET_GB_PER_S.get(name)
        return None if rate is None else LinkRate(rate, name, "IEEE 802.3")
    if infiniband := _INFINIBAND.fullmatch(words):
        start = f"InfiniBand {infiniband['name'].upper()} "
        name = next(name for name in INFINIBAND_GB_PER_S if name.startswith(start))
        return LinkRate(INFINIBAND_GB_PER_S[name], name, "InfiniBand Architecture Specification")
    return None


def _stated(text: str, rate: re.Match[str]) -> LinkRate:
    given = rate["number"]
    scale = rate["scale"]
    if scale not in _SCALES:
        raise ValueError(f"{text} is not clear: {_BOTH_UNITS.format(given)}")
    try:
        value = float(given) * _SCALES[scale] * _BITS[rate["unit"]]
    except ValueError:
        raise ValueError(f"{text}: {given} is no number; {_FORMS}") from None
    if not _SLOWEST_GB_PER_S <= value < math.inf:
        raise ValueError(f"{text} must be at least 1 byte per second; {_FORMS}")
    return LinkRate(gb_per_s=value, name=" ".join(text.split()), source=STATED)
