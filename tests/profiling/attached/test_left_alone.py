"""What a measurement changes in torch is as it was once the script is left alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.helpers.attached_scripts import TIMED, WARMUP, WHOLE, Net, attached, train

BY_DEFAULT = 100  # iterations from one reading of DDP's own counters to the next, torch's kDDPRuntimeLoggingSampleRate


@pytest.fixture
def rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[nn.Module, list[int]]]:
    """How often each DDP model was told to read its own counters, in a group of one rank."""
    found: dict[nn.Module, list[int]] = {}
    real = DistributedDataParallel._set_ddp_runtime_logging_sample_rate

    def told(model: DistributedDataParallel, rate: int) -> None:
        found.setdefault(model, []).append(rate)
        real(model, rate)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(DistributedDataParallel, "_set_ddp_runtime_logging_sample_rate", told)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield found
    distributed.destroy_process_group()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.models = nn.ModuleList(DistributedDataParallel(Net()) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second = self.models
        outputs: torch.Tensor = first(inputs) + second(inputs)
        return outputs


@pytest.mark.parametrize("steps", [WHOLE, WARMUP + TIMED - 1], ids=["measured whole", "ended early"])
def test_ddp_reads_its_own_counters_as_often_as_before(
    tmp_path: Path, rates: dict[nn.Module, list[int]], steps: int
) -> None:
    """Of several models, or on one process, no window of its own restores that."""
    with attached(tmp_path / "run", []):
        model = Two()
        train(model, torch.optim.SGD(model.parameters()), steps)
    assert set(rates) == set(model.models)
    for told in rates.values():
        assert told[0] > BY_DEFAULT
        assert told[-1] == BY_DEFAULT
