"""Rates of links as users write them. By hand: 100 Gb/s / 8 = 12.5 GB/s; PCIe 4.0: 16e9 x 128/130 /
8 x 16 lanes.
"""

import pytest

from dpscope.profiling.machine.link_specifications import parse_link

RATES = {
    "100Gb/s": 12.5,
    "100 Gbit/s": 12.5,
    "100Gbps": 12.5,
    "12.5GB/s": 12.5,
    "800 Mb/s": 0.1,
    "200MB/s": 0.2,
    "1.6Tb/s": 200.0,
    "5e1 GB/s": 50.0,
    "PCIe 4.0 x16": 16 * 128 / 130 / 8 * 16,
    "pcie4 x8": 16 * 128 / 130 / 8 * 8,
    "PCIe gen 3 x16": 8 * 128 / 130 / 8 * 16,
    "PCIe 5.0 x16": 32 * 128 / 130 / 8 * 16,
    "NVLink 3": 300.0,  # 12 links of 25 GB/s, an A100's
    "NVLink 3 x4": 100.0,
    "nvlink 4.0": 450.0,  # 18 x 25, an H100's
    "NVLink 5": 900.0,
    "NVLink 6": 1800.0,  # 36 links of 50 GB/s
    "100GbE": 12.5,
    "Ethernet 25 Gb/s": 25 / 8,
    "InfiniBand HDR": 25.0,
    "NDR": 50.0,
    "InfiniBand HDR x4 (200 Gb/s)": 25.0,
}


def test_rates_are_read_in_bytes_of_one_direction_and_a_link_keeps_its_name() -> None:
    assert {text: parse_link(text).gb_per_s for text in RATES} == pytest.approx(RATES)
    assert parse_link("NVLink 3").name == "NVLink 3 x12"
    assert parse_link("PCIe4 x16").name == "PCIe 4.0 x16"
    assert parse_link(" 100Gb/s ").name == "100Gb/s"
    assert parse_link("100Gb/s").source == "stated by the user"


NO_UNIT = r"has no unit: write .*GB/s \(1e9 bytes.*Gb/s \(1e9 bits"
OTHERS = (
    "",
    "fast",
    "PCIe 9.0 x16",
    "PCIe 4.0 x7",
    "NVLink 9",
    "0GB/s",
    "1e-300GB/s",
    "-3GB/s",
    "1.2.3GB/s",
    "nanGB/s",
    "77GbE",
    "100gb/s",
)


def test_a_bare_number_and_other_text_are_refused_in_one_line_with_the_units() -> None:
    expected = dict.fromkeys(
        OTHERS, r"is no link|must be at least 1 byte per second|is no number|is not clear"
    )
    for text, message in {**expected, **dict.fromkeys(("25", "12.5", "1e2"), NO_UNIT)}.items():
        with pytest.raises(ValueError, match=message) as refused:
            parse_link(text)
        assert "GB/s" in str(refused.value)
        assert "\n" not in str(refused.value)
