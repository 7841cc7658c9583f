"""Whether two machines are the same to a clock."""

import msgspec
import pytest
import torch  # noqa: F401 (its first import starts a process, which these tests may not)

from dpscope.profiling.machine.conditions import machine_differences, variable_differences
from dpscope.profiling.machine.environment import collect_environment
from dpscope.profiling.records.run import DeviceState, Environment


@pytest.fixture(scope="module")
def here() -> Environment:
    return msgspec.structs.replace(
        collect_environment(None, on_gpus=False), settings={"NCCL_ALGO": "Ring"}, driver_version="550"
    )


def told(then: Environment, now: Environment, *partly: str) -> list[str]:
    return [str(one) for one in machine_differences(then, now, partly)]


def test_what_a_job_sets_itself_is_no_difference(here: Environment) -> None:
    """A manifest written by a job's process, under torchrun, holds what torchrun and dpscope set."""
    in_job = {
        **here.settings,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "KINETO_LOG_LEVEL": "99",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert variable_differences(here, msgspec.structs.replace(here, settings=in_job)) == []
    ordered = msgspec.structs.replace(here, settings={**in_job, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    (difference,) = variable_differences(here, ordered)
    assert str(difference) == "CUDA_DEVICE_ORDER = PCI_BUS_ID, not FASTEST_FIRST"


def test_a_job_may_be_given_some_of_a_machines_gpus_and_cores(here: Environment) -> None:
    assert told(here, here) == []
    a100, h100 = (DeviceState(index=0, name=name) for name in ("A100", "H100"))
    both = msgspec.structs.replace(here, accelerators=(a100, h100))
    one = msgspec.structs.replace(here, accelerators=(h100,), cpu_count=here.cpu_count + 1)
    cores = f"cores = {here.cpu_count}, not {here.cpu_count + 1}"
    assert told(both, one, "GPUs", "cores") == []
    assert told(both, one, "GPUs") == [cores]
    assert told(both, one) == [cores, "GPUs = 1 x A100, 1 x H100, not 1 x H100"]
    # It may be given less and nothing else.
    assert told(one, both, "GPUs", "cores") == ["GPUs = 1 x H100, not 1 x A100, 1 x H100"]
    assert told(here, one, "GPUs", "cores") == ["GPUs = none, not 1 x H100"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("cpu_name", "processor"),
        ("driver_version", "driver"),
        ("torch_version", "torch"),
        ("cuda_version", "CUDA"),
        ("nccl_version", "NCCL"),
    ],
)
def test_every_version_is_compared_by_everybody(here: Environment, field: str, said: str) -> None:
    older = msgspec.structs.replace(here, **{field: "2.1"})
    expected = [f"{said} = 2.1, not {getattr(here, field) or 'none'}"]
    assert told(older, here) == told(older, here, "GPUs", "cores") == expected
    assert told(here, msgspec.structs.replace(here, hostname="another", memory_bytes=1)) == []
