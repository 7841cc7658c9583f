"""Links from replayed NVML answers, and the rate that bounds a group of GPUs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpscope.profiling.machine.interconnect import group_rate, interconnect
from dpscope.profiling.machine.link_specifications import (
    gpu_model,
    model_link,
    nvlink,
    pcie_gb_per_s,
    pcie_link,
)
from dpscope.profiling.machine.nvml import NvmlRecorder
from dpscope.profiling.records.links import Interconnect, LinkRate
from tests.helpers.known import known
from tests.helpers.nvml_records import ReplayedNvml
from tests.helpers.paths import DATA

RECORDS = DATA / "nvml"


def recorded(name: str, order: list[int] | None = None) -> Interconnect:
    """The record's links with torch's devices in NVML's order, or in another."""
    nvml = ReplayedNvml(RECORDS / f"{name}.json")
    uuids = [device.uuid or "" for device in interconnect(nvml).devices]
    visible = [uuids[index].removeprefix("GPU-") for index in (order or range(len(uuids)))]
    return interconnect(nvml, visible)


def rate_of(links: Interconnect, devices: int) -> tuple[str, float] | None:
    rate = group_rate(links, range(devices))
    return None if rate is None else (rate.name, round(rate.gb_per_s, 3))


def test_v100_mesh() -> None:
    links = recorded("v100_sxm2_x8")
    assert {(one.nvlink_version, one.active_nvlinks) for one in links.devices} == {(2, 6)}
    assert len(links.pairs) == 28
    near, double, far = (
        {(pair.first, pair.second): pair for pair in links.pairs}[pair]
        for pair in ((0, 1), (0, 3), (0, 7))
    )
    assert (double.direct_nvlinks, near.direct_nvlinks, far.direct_nvlinks) == (2, 1, 0)
    assert (near.peer_access, far.peer_access) == (True, False)
    # No NVLink between 0 and 7: PCIe 3.0 x16 is 8 GT/s x 128/130 / 8 bits x 16 = 15.754 GB/s.
    assert far.rate is not None
    assert far.rate.gb_per_s == pytest.approx(15.754, abs=1e-3)


GROUPS: list[tuple[str, list[int] | None, int, tuple[str, float] | None]] = [
    # V100 mesh. Two GPUs: the one link between them. Four: each has 1 + 1 + 2 links to the others.
    # Eight: all six.
    ("v100_sxm2_x8", None, 2, ("NVLink 2 x1", 25.0)),
    ("v100_sxm2_x8", None, 4, ("NVLink 2 x4", 100.0)),
    ("v100_sxm2_x8", None, 8, ("NVLink 2 x6", 150.0)),
    # 0, 1 and 6 have no ring of NVLinks (6 is joined to neither): PCIe.
    ("v100_sxm2_x8", [0, 1, 6, 2, 3, 4, 5, 7], 3, ("PCIe 3.0 x16", 15.754)),
    ("a100_sxm4_x4", None, 2, ("NVLink 3 x12", 300.0)),
    ("a100_sxm4_x4", None, 4, ("NVLink 3 x12", 300.0)),
    # Bridges help pairs only.
    ("a100_pcie_x4_bridged", None, 2, ("NVLink 3 x12", 300.0)),
    ("a100_pcie_x4_bridged", None, 4, ("PCIe 4.0 x16", 31.508)),
    ("a100_pcie_x4_bridged", [0, 2], 2, ("PCIe 4.0 x16", 31.508)),
    ("l4_x2", None, 2, ("PCIe 4.0 x16", 31.508)),
    ("l4_x2", [1], 2, None),  # torch sees one of the two
    # With any answer of the driver.
    ("h100_sxm5_x2", None, 2, ("NVLink 4 x18", 450.0)),
    ("h200_sxm_x2", None, 2, ("NVLink 4 x18", 450.0)),
]


@pytest.mark.parametrize(("name", "order", "devices", "expected"), GROUPS)
def test_the_rate_that_bounds_a_group(
    name: str, order: list[int] | None, devices: int, expected: tuple[str, float] | None
) -> None:
    assert rate_of(recorded(name, order), devices) == expected


def test_generations_switches_and_cards_without_links() -> None:
    switched = recorded("a100_sxm4_x4")
    # NVML answers 5 (3.1) for an A100
    assert {one.nvlink_version for one in switched.devices} == {3}
    assert all(
        pair.through_nvswitch and pair.direct_nvlinks == 0 and pair.peer_access
        for pair in switched.pairs
    )
    # at idle the current one is 1
    assert {one.pcie_generation for one in switched.devices} == {4}
    plain = recorded("l4_x2")
    assert {(one.active_nvlinks, one.nvlink_version) for one in plain.devices} == {(0, None)}
    assert [pair.peer_access for pair in plain.pairs] == [False]
    for name in ("h100_sxm5_x2", "h200_sxm_x2"):
        assert {(one.nvlink_version, one.active_nvlinks) for one in recorded(name).devices} == {
            (4, 18)
        }
    across = recorded("a100_pcie_x4_bridged", [0, 2])
    assert [one.torch_index for one in across.devices] == [0, None, 1, None]


class InVirtualMachine(ReplayedNvml):
    """A record as in a virtual machine: kind and address of the NVLinks' far ends are unknown or
    not supported.
    """

    def __init__(self, path: Path, kind: int | None, bus_id: str | None) -> None:
        super().__init__(path)
        self.kind, self.bus_id = kind, bus_id

    def _or_not_supported(self, answer: object) -> Any:
        if answer is None:
            raise self.NVMLError("Not Supported")
        return answer

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, *_: object) -> Any:  # noqa: N802 (NVML's names)
        return self._or_not_supported(self.kind)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, *_: object) -> Any:  # noqa: N802
        return self._or_not_supported(
            None if self.bus_id is None else SimpleNamespace(busId=self.bus_id)
        )


def in_virtual_machine(name: str, kind: int | None, bus_id: str | None) -> Interconnect:
    nvml = InVirtualMachine(RECORDS / f"{name}.json", kind, bus_id)
    return interconnect(nvml, [device.uuid or "" for device in interconnect(nvml).devices])


@pytest.mark.parametrize(
    ("kind", "bus_id"), [(None, None), (255, None), (255, "00000000:00:00.0"), (2, None)]
)
def test_switches_hidden_by_a_virtual_machine_are_detected(
    kind: int | None, bus_id: str | None
) -> None:
    """18 links of 25 GB/s are 450; by PCIe 5.0 x16 it would be 63. 12 links of an A100 are 300."""
    for name, expected in (
        ("h100_sxm5_x2", ("NVLink 4 x18", 450.0)),
        ("a100_sxm4_x4", ("NVLink 3 x12", 300.0)),
    ):
        links = in_virtual_machine(name, kind, bus_id)
        assert all(pair.through_nvswitch and pair.direct_nvlinks == 0 for pair in links.pairs)
        assert rate_of(links, 2) == expected


class WithDeadLinks(ReplayedNvml):
    """A record as if the second GPU had eight links left."""

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> Any:  # noqa: N802
        recorded = super().__getattr__("nvmlDeviceGetNvLinkState")
        return recorded(handle, link) if handle != "gpu1" or link < 8 else 0


def test_a_pair_on_a_switch_has_the_links_of_the_gpu_with_fewer() -> None:
    links = interconnect(WithDeadLinks(RECORDS / "a100_sxm4_x4.json"))
    rates = {(pair.first, pair.second): known(pair.rate).name for pair in links.pairs}
    assert {rates[0, 1], rates[1, 2], rates[1, 3]} == {"NVLink 3 x8"}
    assert rates[0, 2] == "NVLink 3 x12"


def test_links_to_gpus_lead_to_no_switch() -> None:
    """Kind 0 is a GPU, which this container cannot use; a link of unknown kind to a visible GPU
    (here GPU 0) is direct.
    """
    links = in_virtual_machine("a100_pcie_x4_bridged", 0, "00000000:7F:00.0")
    assert not any(pair.through_nvswitch for pair in links.pairs)
    assert rate_of(links, 2) == ("PCIe 4.0 x16", 31.508)
    first = ReplayedNvml(RECORDS / "a100_pcie_x4_bridged.json").nvmlDeviceGetPciInfo("gpu0")
    links = in_virtual_machine("a100_pcie_x4_bridged", None, first.busId)
    assert len(links.pairs) == 6
    assert not any(pair.through_nvswitch for pair in links.pairs)


def test_unknown_stays_unknown() -> None:
    assert interconnect(None) == Interconnect()
    assert group_rate(Interconnect(), range(2)) is None
    assert [one.torch_index for one in recorded("l4_x2", [1]).devices] == [None, 0]
    assert pcie_link(None, 16) is None
    assert pcie_link(4, None) is None
    assert nvlink(None, 4, "NVIDIA B300") is None
    assert nvlink(9, 18, "NVIDIA next") is None
    assert gpu_model("NVIDIA next") is None
    assert gpu_model(None) is None


def test_a_record_of_a_replay_is_the_record(tmp_path: Path) -> None:
    recorder = NvmlRecorder(ReplayedNvml(RECORDS / "a100_pcie_x4_bridged.json"))
    first = interconnect(recorder)
    (tmp_path / "again.json").write_text(recorder.to_json())
    assert interconnect(ReplayedNvml(tmp_path / "again.json")) == first
    assert len(first.pairs) == 6


@pytest.mark.parametrize(
    ("generation", "lanes", "gb_per_s"),
    # 2.5 GT/s x 8/10 / 8 = 0.25 GB/s a lane; 5 x 8/10 / 8 = 0.5; 8 x 128/130 / 8 = 0.98462; 64 x
    # 242/256 / 8 = 7.5625
    [
        (1, 1, 0.25),
        (2, 4, 2.0),
        (3, 1, 0.98462),
        (4, 8, 15.75385),
        (5, 16, 63.01538),
        (6, 16, 121.0),
    ],
)
def test_pcie_rates(generation: int, lanes: int, gb_per_s: float) -> None:
    assert pcie_gb_per_s(generation, lanes) == pytest.approx(gb_per_s, rel=1e-5)


MODELS = {
    "NVIDIA A100-SXM4-40GB": ("A100 SXM4", 300.0), "NVIDIA A100-PCIE-40GB": ("A100 PCIe", None),
    "NVIDIA A100 80GB PCIe": ("A100 PCIe", None), "Tesla V100-SXM2-16GB": ("V100 SXM2, SXM3", 150.0),
    "Tesla V100-PCIE-32GB": ("V100 PCIe", 15.754), "NVIDIA L4": ("L4", 31.508),
    "8x L40S, one server": ("L40, L40S", 31.508), "NVIDIA H100 80GB HBM3": ("H100 SXM5", 450.0),
    "NVIDIA H100 NVL": ("H100 NVL", None), "NVIDIA H200": ("H200 SXM", 450.0), "NVIDIA H200 NVL": ("H200 NVL", None),
    "NVIDIA B200": ("B200 SXM", 900.0), "NVIDIA Rubin": ("Rubin", 1800.0),
}  # fmt: skip


def test_models_by_name() -> None:
    models = {name: known(gpu_model(name)) for name in MODELS}
    rates = {name: model_link(model) for name, model in models.items()}
    found = {
        name: (models[name].title, rate and round(rate.gb_per_s, 3)) for name, rate in rates.items()
    }
    assert found == MODELS


def test_the_sixth_generation(tmp_path: Path) -> None:
    """Rubin (architecture 13) reports 8 for NVLink 6: 50 GB/s per link and direction; older GPUs
    are limited to their newest.
    """
    calls = json.loads((RECORDS / "h200_sxm_x2.json").read_text())
    versions = {}
    for architecture in (13, 9):
        for call in calls:
            if call["call"] == "nvmlDeviceGetNvLinkVersion":
                call["answer"] = 8
            if call["call"] == "nvmlDeviceGetArchitecture":
                call["answer"] = architecture
        (tmp_path / "nvml.json").write_text(json.dumps(calls))
        devices = interconnect(ReplayedNvml(tmp_path / "nvml.json")).devices
        versions[architecture] = {one.nvlink_version for one in devices}
    assert versions == {13: {6}, 9: {4}}
    assert known(nvlink(6, 36, "NVIDIA Rubin")).gb_per_s == 36 * 50.0


def test_cards_with_half_width_links() -> None:
    # 4 links of 14.0625 GB/s: 56.25 GB/s one way, 112.5 both ways as the data sheets print it.
    assert nvlink(3, 4, "NVIDIA A40") == LinkRate(
        56.25, "NVLink 3 x4", "NVIDIA Ampere GA102 GPU Architecture"
    )
