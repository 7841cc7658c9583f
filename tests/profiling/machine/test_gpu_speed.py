"""Names of GPUs as torch, the driver and people write them."""

import pytest

from dpscope.profiling.machine.gpu_speed import gpu_speed, parse_flops
from dpscope.profiling.records.run import Precision

RATES: dict[tuple[str, Precision], float] = {
    ("NVIDIA H100 80GB HBM3", "tf32"): 495, ("H100 SXM", "bf16"): 989, ("NVIDIA H100 PCIe", "half"): 756,
    ("NVIDIA A100-SXM4-40GB", "tf32"): 156, ("NVIDIA A100 80GB PCIe", "fp32"): 19.5, ("A100", "half"): 312,
    ("Tesla V100-SXM2-16GB", "tf32"): 15.7, ("Tesla T4", "half"): 65, ("NVIDIA L40S", "bf16"): 362,
}  # fmt: skip


def test_rates() -> None:
    speeds = {name: gpu_speed(name) for name, _ in RATES}
    assert {key: speed.tflops(key[1]) for key in RATES if (speed := speeds[key[0]])} == RATES


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", None])
def test_other_gpus_and_their_parts_are_unknown(name: str | None) -> None:
    assert gpu_speed(name) is None


@pytest.mark.parametrize("text", ["", "0", "-1T", "fast", "1T:int8", "1e400", "nan"])
def test_other_text_than_flops_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give the FLOPs of one step on one device, such as"):
        parse_flops(text)
