"""nn.DataParallel through its real path on one GPU: `device_ids=[0, 0]`, two replicas on the same device."""

from pathlib import Path

import torch
from torch import Tensor, nn

from dpscope.launch.acceptance.measures import trace_events
from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, none_of
from dpscope.launch.acceptance.workplace import Workplace
from dpscope.launch.workload.strategies import NamedDataParallel
from dpscope.profiling.instruments.step_timer import BatchArrived, StepCounts
from dpscope.profiling.instruments.trace_recorder import record_trace
from dpscope.profiling.records.range_names import GATHER, PARALLEL_APPLY, REPLICATE, SCATTER


def two_replicas(place: Workplace) -> list[CheckVerdict]:
    """Loss and gradients are those of the model alone; the four phases are in the trace."""
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    samples = torch.randn(64, 256, device=device)
    wrapped: nn.Module = NamedDataParallel(model, device_ids=[0, 0])
    alone, together = _gradients(model, model, samples), _gradients(wrapped, model, samples)
    largest = max(float(one.abs().max()) for one in alone)
    difference = max(float((one - other).abs().max()) for one, other in zip(alone, together, strict=True))

    def step(batch_arrived: BatchArrived) -> StepCounts:
        batch_arrived()
        _gradients(wrapped, model, samples)
        return StepCounts(samples=64)

    path = place.folder / "0_0.pt.trace.json.gz"
    record_trace(step, 1, path, device, all_threads=True, synchronise=lambda: torch.cuda.synchronize(device))
    return [
        at_most("i.gradients_differ", difference / largest, 1e-4, "%", "from those of the model alone"),
        none_of("i.phases_missing", missing_phases(path)),
    ]


def _gradients(run: nn.Module, model: nn.Module, samples: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    run(samples).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def missing_phases(path: Path) -> list[str]:
    """The phases of DataParallel that a trace does not name."""
    names = {str(one.get("name")) for one in trace_events(path)}
    return [phase for phase in (SCATTER, REPLICATE, PARALLEL_APPLY, GATHER) if phase not in names]
