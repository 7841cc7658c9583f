"""torch's own nn.DataParallel, with dpscope's names and tracer, on two devices: run as a separate
process.

    python -m tests.helpers.data_parallel_scenario GUARD OUT

OUT/results.json: the results and what moved between devices, OUT/*.json.gz the traces with and
without all threads.
"""

import copy
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.helpers.two_devices import NAME, install, move_to_first

WIDE = 1500  # 1500 x 1500 x 4 B = 9 MB: two of them do not fit into one chunk of 10 MiB
SEEN: list[tuple[str, Any, int, bool, str]] = []


class Shifted(nn.Module):
    """Adds a buffer, and notes who runs it: device, thread, autocast."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(8))

    def forward(self, values: Tensor) -> Tensor:
        """`values` and the buffer."""
        dtype = str(torch.get_autocast_dtype(NAME)) if torch.is_autocast_enabled(NAME) else "off"
        SEEN.append(
            (
                self.name,
                values.device.index,
                threading.get_native_id(),
                torch.is_grad_enabled(),
                dtype,
            )
        )
        return values + self.shift


class Checkpointed(nn.Module):
    """Discards activations and recomputes them in backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: Tensor) -> Tensor:
        """Of the inner module."""
        answer: Tensor = checkpoint(
            self.inner, values, use_reentrant=False, preserve_rng_state=False
        )
        return answer


def model(checkpointed: bool = False) -> nn.Module:
    """Two large layers, whose gradients take two chunks, between small ones."""
    torch.manual_seed(0)
    middle: nn.Module = nn.Sequential(
        nn.Linear(4, 8), Shifted("middle"), nn.ReLU(), nn.Linear(8, 8)
    )
    middle = Checkpointed(middle) if checkpointed else middle
    return nn.Sequential(
        middle, nn.Linear(8, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 2)
    )


def wrapped(inner: nn.Module) -> Any:
    from dpscope.launch.workload.strategies import NamedDataParallel

    return NamedDataParallel(inner, device_ids=[0, 1])


def compared(samples: Tensor, checkpointed: bool) -> float:
    """The largest difference of a gradient from that of both halves on the host."""
    own = model(checkpointed)
    host = copy.deepcopy(own)
    move_to_first(own)
    wrapped(own)(samples).square().mean().backward()
    torch.cat([host(half) for half in samples.chunk(2)]).square().mean().backward()  # type: ignore[no-untyped-call]
    pairs: Any = zip(own.parameters(), host.parameters(), strict=True)
    return max(float((one.grad.host - other.grad).abs().max()) for one, other in pairs)


def traced(samples: Tensor, folder: Path, all_threads: bool) -> None:
    from dpscope.profiling.instruments.step_timer import BatchArrived
    from dpscope.profiling.instruments.trace_recorder import StepTrace

    parallel = wrapped(move_to_first(model()))

    def step(batch_arrived: BatchArrived) -> int:
        batch_arrived()
        parallel(samples).square().mean().backward()
        return len(samples)

    path = folder / f"{'all' if all_threads else 'own'}.json.gz"
    StepTrace(1, path, torch.device("cpu"), all_threads, lambda: None).record(step)


def autocast(samples: Tensor) -> dict[str, list[str]]:
    """The dtype in the replicas' threads: of autocast around DataParallel, and of dpscope's wrapper
    within it.
    """
    from dpscope.launch.workload.models import AutocastModel

    results = {}
    for name in ("around", "within"):
        inner = move_to_first(model())
        parallel = wrapped(
            AutocastModel(inner, NAME, torch.bfloat16) if name == "within" else inner
        )
        SEEN.clear()
        around = torch.autocast(NAME, torch.bfloat16, enabled=name == "around")
        with torch.autocast("cpu", torch.bfloat16, enabled=False), torch.no_grad(), around:
            parallel(samples)
        results[name] = [seen[4] for seen in SEEN]
    return results


def main() -> None:
    """Run it all."""
    calls = install(Path(sys.argv[1]))
    out = Path(sys.argv[2])
    samples = torch.randn(6, 4)
    results: dict[str, Any] = {"differences": [compared(samples, False)], "calls": list(calls)}
    results["main_thread"] = threading.get_native_id()
    results["seen"] = [seen for seen in SEEN if seen[1] is not None]
    SEEN.clear()
    results["differences"].append(compared(samples, True))
    results["seen_checkpointed"] = [seen for seen in SEEN if seen[1] is not None]
    results["autocast"] = autocast(samples)
    for all_threads in (True, False):
        traced(samples, out, all_threads)
    (out / "results.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)  # autograd's threads of the devices are never joined


if __name__ == "__main__":
    main()
