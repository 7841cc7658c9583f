"""Models compiled by torch.compile, as each strategy needs it; what torch counted of compiling in this process.

What is compiled is the function `forward` of a module, not the module: hooks, which FSDP and `replicate` work by, then stay
outside the graph, the module stays the same object with the same names of parameters, and a `Sequential`, whose call
torch.compile passes over inside DDP (torch 2.15), is compiled too.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from dpscope.launch.workload.sharding import block_names
from dpscope.profiling.records.matrix import CompileMode
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.wrapped import Compilation


def compile_model(model: nn.Module, cell: Cell) -> None:
    """Have a model compiled when it first runs, as a cell's options say; called before it is wrapped.

    Under DDP and `replicate` torch cuts the graph by their buckets (DDPOptimizer, torch/_dynamo/backends/distributed.py), so
    that a bucket is reduced while the backward pass of the next part runs; not under torch 2.8's `replicate`. Under FSDP each
    block is compiled by itself, and what is left of the model around the blocks: each is gathered by hooks between the graphs.
    """
    mode = cell.options.compile
    if mode == "off":
        return
    for name in block_names(model) if cell.traits.sharded else ():
        _compile_forward(model.get_submodule(name), mode)
    _compile_forward(model, mode)


def _compile_forward(module: nn.Module, mode: CompileMode) -> None:
    how: dict[str, Any] = {"backend": mode} if mode == "aot_eager" else {"mode": mode}
    module.forward = torch.compile(_of_own_code(module.forward), **how)


def _of_own_code(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a module's `forward`, with a code object that no other function has.

    What torch has compiled is kept by code object: a library's `forward` is one for all its modules, of which torch.compile
    runs those after the eighth, and those after one that it could not capture, without compiling them.
    """

    def call(*inputs: Any, **named: Any) -> Any:
        return forward(*inputs, **named)

    return FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)


def compiled_so_far() -> Compilation:
    """What torch has compiled in this process: seconds, graphs by the frame that they were captured from, parts, breaks."""
    from torch._dynamo.utils import calculate_time_spent, counters

    return Compilation(
        seconds=float(calculate_time_spent().get("total_wall_time", 0.0)),
        graphs=int(counters["stats"]["unique_graphs"]),
        parts=int(counters["aot_autograd"]["total"]),
        breaks=sum(counters["graph_break"].values()),
    )
