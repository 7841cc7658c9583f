"""Generated torch.profiler traces whose measures are known: they share no code with what they test.

Each function returns a `GeneratedTrace`: the trace as `json.load` gives it, and an `Expected`: the
collectives by hand, the steps counted on a raster, which `test_expected` holds against steps worked
out by hand.

    generated = dp_trace(devices=4, transport="peer_copy", named_ranges=False)
    write_trace(generated.trace, tmp_path / "node_0.pt.trace.json.gz")
    generated.expected.steps[0, 5].communication_us

`dp_trace`    one process, `nn.DataParallel` on 2 or 4 GPUs
`ddp_trace`   one rank of 2 or 4, NCCL or RCCL; `DdpOptions` names its variants
`gloo_trace`  one rank of 2 or 4 without a GPU
`parallel_trace` one rank of a tensor-parallel, fully sharded, DLRM or pipeline job
`relabel`     any loaded trace with other times, ids, streams and step numbers
`write_ddp_job` every rank of `ddp_trace` into one folder
`write_trace` to `.json` or `.json.gz`, as Kineto writes it, on one line, indented, or cut short
"""

from pathlib import Path

from tests.generated_traces.builder import ZERO_US, Generation
from tests.generated_traces.ddp import DdpOptions, Metadata, ddp_trace
from tests.generated_traces.dp import Inputs, Transport, dp_trace
from tests.generated_traces.gloo import gloo_trace
from tests.generated_traces.model import (
    Expected,
    ExpectedCollective,
    ExpectedPhase,
    ExpectedStep,
    GeneratedTrace,
    Trace,
)
from tests.generated_traces.parallel_jobs import Job, parallel_trace
from tests.generated_traces.relabeling import relabel
from tests.generated_traces.writing import Layout, cut_file, trace_text, write_trace

__all__ = [
    "ZERO_US", "DdpOptions", "Expected", "ExpectedCollective", "ExpectedPhase", "ExpectedStep", "GeneratedTrace", "Generation",
    "Inputs", "Job", "Layout", "Metadata", "Trace", "Transport", "cut_file", "ddp_trace", "dp_trace", "gloo_trace",
    "parallel_trace", "relabel", "trace_text", "write_ddp_job", "write_trace",
]  # fmt: skip


def write_ddp_job(folder: Path, ranks: int = 2, factor: float = 1.0) -> Path:
    """The traces of every rank of a DDP job in `folder`, made where it is not, all times longer by
    a factor; the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        trace = ddp_trace(rank, ranks).trace
        for event in trace["traceEvents"]:
            event.update({name: event[name] * factor for name in ("ts", "dur") if name in event})
        write_trace(trace, folder / f"0_{rank}.pt.trace.json.gz")
    return folder
