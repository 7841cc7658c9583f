"""The setting in a report: the nodes of a run over several nodes, and their network."""

from dataclasses import replace

import msgspec

from dpscope.analysis.report.setting import environment_facts
from dpscope.profiling.records.links import DeviceLinks, Interconnect
from dpscope.profiling.records.run import DeviceState
from tests.helpers.examples import loaded


def test_a_gpu_has_its_clock_under_load_and_its_largest_link() -> None:
    """NVML's environment is of an idle GPU: 210 MHz and PCIe 1.0 are not those of the
    measurement.
    """
    run = loaded()
    idle = DeviceState(
        0, "GPU-a", "NVIDIA H100", 210, max_sm_clock_mhz=1980, pcie_generation=1, pcie_width=16
    )
    slot = DeviceLinks(index=0, uuid="GPU-a", name="NVIDIA H100", torch_index=0, active_nvlinks=18, pcie_generation=5,
                       pcie_width=16, current_pcie_generation=1)  # fmt: skip
    environment = msgspec.structs.replace(
        run.manifest.environment,
        accelerators=(idle,),
        interconnect=Interconnect(devices=(slot,), pairs=()),
    )
    on_gpu = replace(run, recorded=msgspec.structs.replace(run.manifest, environment=environment))
    # no state under load: no clock
    assert dict(environment_facts(on_gpu))["GPU 0"] == "NVIDIA H100, PCIe 5.0 x16"

    def under_load(clock_mhz: int) -> DeviceState:
        return msgspec.structs.replace(
            idle, sm_clock_mhz=clock_mhz, throttle_reasons=("sw_power_cap",)
        )

    cell = next(iter(on_gpu.cells.values()))
    states = ((under_load(1500),), (under_load(1755),))
    ranks = [
        (repeat, msgspec.structs.replace(rank, device_states_after=state))
        for (repeat, rank), state in zip(cell.ranks, states, strict=False)
    ]
    measured = replace(on_gpu, cells={cell.cell.name: replace(cell, ranks=tuple(ranks))})
    assert dict(environment_facts(measured))["GPU 0"] == (
        "NVIDIA H100, SM clock under load 1500 to 1755 of 1980 MHz, PCIe 5.0 x16, throttled under load: sw_power_cap"
    )
