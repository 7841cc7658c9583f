"""FLOPs of a training step, counted on torch's meta device: from shapes, without computing and
without memory.

And the rate at which a CPU multiplies matrices, measured: what a step's rate is compared with
there.
"""

import copy
import functools
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpscope.launch.workload.input_pipeline import random_batch
from dpscope.launch.workload.nested import called, mapped
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.matrix import Amp
from dpscope.profiling.records.run import Cell, MatmulPeak, Precision, StepFlops
from dpscope.profiling.store.folders import RepeatFolder

_COUNTED = ("aten", "prim", "prims")  # namespaces of torch's operators, which the counter knows


def cell_step_flops(
    repeats: Iterable[RepeatFolder], built: BuiltModel, cell: Cell, amp: Amp
) -> StepFlops:
    """FLOPs of a cell's step as one of its repeats counted them, else counted now, which takes half
    a second.
    """
    stored = (rank.flops for repeat in repeats for rank in repeat.ranks() if rank.flops is not None)
    return next(stored, None) or count_step_flops(
        built, cell.batch_size, amp, cell.options.compile != "off"
    )


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators of other packages, whose FLOPs are unknown."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.foreign: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in _COUNTED:
            self.foreign.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def count_step_flops(
    built: BuiltModel, batch_size: int, amp: Amp, compiled: bool = False
) -> StepFlops:
    """Forward and backward of `built` on one device's batch, with the precision that this process's
    settings allow.

    Matrix products, convolutions and attention count, with two FLOPs per multiply-add, as in
    torch.utils.flop_counter; the rest of a step is memory-bound. Attention counts in full, even if
    a mask omits half of it.
    """
    # takes 0.2 s to import, and only one repeat counts
    from torch.utils.flop_counter import FlopCounterMode

    if compiled:
        return StepFlops(missing="compiled graphs are not counted")
    make_batch = built.make_batch or functools.partial(random_batch, built)
    try:
        with torch.random.fork_rng(devices=[]):
            model = _on_meta(built.model).train()
            inputs, targets = mapped(lambda tensor: tensor.to("meta"), make_batch(0, batch_size))
            with FlopCounterMode(display=False) as counter, _Operators() as operators:
                loss: Tensor = (built.loss or nn.functional.cross_entropy)(
                    called(model, inputs), targets
                )
                loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return StepFlops(
            missing=f"the step does not run on shapes alone ({type(error).__name__}: {reason})"
        )
    if foreign := sorted(operators.foreign):
        return StepFlops(
            missing=f"operators that are not torch's are not counted: {', '.join(foreign)}"
        )
    if (counts := counter.get_flop_counts().get("Global")) is None:
        return StepFlops(missing="the step has no matrix product, convolution or attention")
    return StepFlops(
        total=counter.get_total_flops(),
        convolutions=sum(
            count for operator, count in counts.items() if "convolution" in str(operator)
        ),
        product_precision=_precision(amp, torch.backends.cuda.matmul),
        convolution_precision=_precision(amp, torch.backends.cudnn),
    )


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model with its parameters and buffers on the meta device, without their
    values.
    """
    held: dict[int, Any] = {
        id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()
    }
    for parameter in model.parameters():
        held[id(parameter)] = nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
    return copy.deepcopy(model, held)


def _precision(amp: Amp, backend: Any) -> Precision:
    if amp == "bf16":
        return "bf16"
    if amp == "fp16":
        return "half"
    try:
        tf32 = bool(backend.allow_tf32)
    except RuntimeError:  # torch >= 2.9, once a script has set `fp32_precision`
        tf32 = backend.fp32_precision == "tf32"
    return "tf32" if tf32 else "fp32"


_SIDES = (256, 512, 1024, 2048, 4096)
_LONG_PRODUCT_S = 5e-3  # larger matrices are not tried once a product takes so long
_PRODUCTS = 5


def matmul_peak(amp: Amp) -> MatmulPeak:
    """The highest rate of square matrix products with this process's threads, in the dtype of its
    steps; a quarter of a second.

    Each size counts by the fastest of _PRODUCTS after one untimed, 2 n^3 FLOPs each.
    """
    dtype = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[amp]
    peak_tflops = 0.0
    best_side = _SIDES[0]
    for side in _SIDES:
        first, second, product = (torch.full((side, side), 0.5, dtype=dtype) for _ in range(3))
        took_s = []
        for _ in range(_PRODUCTS + 1):
            began_s = time.perf_counter()
            torch.mm(first, second, out=product)
            took_s.append(time.perf_counter() - began_s)
        shortest_s = min(took_s[1:])
        tflops = 2 * side**3 / shortest_s / 1e12
        if tflops > peak_tflops:
            peak_tflops = tflops
            best_side = side
        if shortest_s > _LONG_PRODUCT_S:
            break
    return MatmulPeak(
        peak_tflops, best_side, str(dtype).removeprefix("torch."), torch.get_num_threads()
    )
