"""Parses a link's rate as users write it: a number with a unit, or a link's name. Imports no torch."""

import math
import re
from collections.abc import Callable

from dpscope.profiling.machine.link_specifications import ETHERNET_GB_PER_S, INFINIBAND_GB_PER_S, nvlink, pcie_link
from dpscope.profiling.records.links import LinkRate

STATED = "stated by the user"
_BITS = {"b": 1 / 8, "bit": 1 / 8, "bits": 1 / 8, "B": 1.0, "byte": 1.0, "bytes": 1.0}
_SCALES = {"M": 1e-3, "G": 1.0, "T": 1e3}
_RATE = re.compile(r"(?P<number>[\d.,]+(?:[eE][+-]?\d+)?)\s*(?P<scale>[A-Za-z]?)(?P<unit>bits?|bytes?|b|B)(?:/s|ps)")
_BARE = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?")
_PCIE = re.compile(
    r"pci(?:e|-e|\s*express)?\s*(?:gen\s*)?(?P<generation>\d)(?:\.0)?\s*x\s*(?P<lanes>\d+)", re.IGNORECASE
)
_NVLINK = re.compile(r"nvlink\s*(?P<version>\d)(?:\.0)?(?:\s*x\s*(?P<links>\d+))?", re.IGNORECASE)
_ETHERNET = re.compile(r"(?:ethernet\s*)?(?P<rate>\d+)\s*gb?e|ethernet\s*(?P<other>\d+)(?:\s*gb?/s)?", re.IGNORECASE)
_INFINIBAND = re.compile(r"(?:infiniband\s*|ib\s*)?(?P<name>[QFEHNX]DR)(?:\s*x\s*4)?(?:\s*\(.*\))?", re.IGNORECASE)

_NVLINKS_OF_ONE_GPU = {1: 4, 2: 6, 3: 12, 4: 18, 5: 18, 6: 36}
"""Links of the module of each generation: P100, V100, A100, H100, B200, Rubin. Source: NVIDIA's data sheets (docs/links.md)."""

_FORMS = (
    'give a number with a unit (100Gb/s, 12.5GB/s) or a name ("PCIe 4.0 x16", "NVLink 3", "InfiniBand HDR", "100GbE")'
)


def parse_link(text: str) -> LinkRate:
    """The rate in one direction of a text such as ``100Gb/s``, ``12.5GB/s``, ``PCIe 4.0 x16`` or ``NVLink 3``.

    An NVLink generation without a count means all links of that generation's SXM module. Raises ValueError, in one line with the
    valid forms, for a bare number (bits or bytes?), an unknown name or a rate that is not above 0.
    """
    words = text.strip()
    if _BARE.fullmatch(words):
        raise ValueError(
            f"{text!r} has no unit: write {words}GB/s (1e9 bytes a second) or {words}Gb/s (1e9 bits a second)"
        )
    if rate := _RATE.fullmatch(words):
        return _stated(text, rate)
    for pattern, link_of in _NAMED:
        if (match := pattern.fullmatch(words)) and (link := link_of(match)):
            return link
    raise ValueError(f"{text!r} is no link: {_FORMS}")


def _stated(text: str, rate: re.Match[str]) -> LinkRate:
    scale, unit = rate["scale"], rate["unit"]
    if scale not in _SCALES:
        letter = rate["number"]
        raise ValueError(
            f"{text!r} is not clear: write {letter}GB/s (1e9 bytes a second) or {letter}Gb/s (1e9 bits a second)"
        )
    try:
        number = float(rate["number"])
    except ValueError:
        raise ValueError(f"{text!r}: {rate['number']!r} is no number; {_FORMS}") from None
    value = number * _SCALES[scale] * _BITS[unit]
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{text!r} must be above 0; {_FORMS}")
    return LinkRate(gb_per_s=value, name=" ".join(text.split()), source=STATED)


def _pcie(match: re.Match[str]) -> LinkRate | None:
    lanes = int(match["lanes"])
    return pcie_link(int(match["generation"]), lanes) if lanes in (1, 2, 4, 8, 16, 32) else None


def _nvlink(match: re.Match[str]) -> LinkRate | None:
    version = int(match["version"])
    return nvlink(version, int(match["links"] or _NVLINKS_OF_ONE_GPU.get(version, 0)), None)


def _ethernet(match: re.Match[str]) -> LinkRate | None:
    return _by_name(ETHERNET_GB_PER_S, f"Ethernet {match['rate'] or match['other']} Gb/s", "IEEE 802.3")


def _infiniband(match: re.Match[str]) -> LinkRate | None:
    prefix = f"InfiniBand {match['name'].upper()} "
    name = next(name for name in INFINIBAND_GB_PER_S if name.startswith(prefix))
    return _by_name(INFINIBAND_GB_PER_S, name, "InfiniBand Architecture Specification")


def _by_name(rates: dict[str, float], name: str, source: str) -> LinkRate | None:
    return LinkRate(gb_per_s=rates[name], name=name, source=source) if name in rates else None


_NAMED: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], LinkRate | None]], ...] = (
    (_PCIE, _pcie),
    (_NVLINK, _nvlink),
    (_ETHERNET, _ethernet),
    (_INFINIBAND, _infiniband),
)
