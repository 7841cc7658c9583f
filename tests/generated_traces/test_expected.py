"""What must be found in the generated traces: steps worked out by hand against the raster."""

import re
from operator import attrgetter

import pytest

from tests.generated_traces.ddp import DdpOptions, ddp_trace
from tests.generated_traces.dp import dp_trace
from tests.generated_traces.gloo import gloo_trace
from tests.generated_traces.model import ExpectedPhase, GeneratedTrace
from tests.generated_traces.parallel_jobs import parallel_trace
from tests.helpers.generated_checks import TIMES
from tests.helpers.paths import ROOT

# By hand from the schedules, in us: step, compute, communication, hidden, exposed, host copies,
# device copies, idle, clipped.
#
# DDP, rank 0, first step: compute = 194 + 100 + 8 + 100 + 100 + 60 + 20 + 60 = 642; communication =
# 12 + 6 (broadcasts) + 60 + 96 + 40 (buckets) = 214; hidden = 60 (bucket 0 in the second backward
# kernel) + 56 + 20 (bucket 1 in the third and fourth) = 136; the window runs from 6 to 810, so idle
# = 804 - 642 - 78 = 84; copies in it: inputs 30, targets 2, the last bucket 6 (the memset runs
# under bucket 1). In a job with a late rank the other one waits 500 and 40 of bucket 0 and 1.
#
# DataParallel on NCCL, device 0: compute = 12 + 3 + 2 (concatenate) + 100 + 90 + 120.5 (forward) +
# 6 + 8 (loss) + 200 + 180 + 60 (backward) + 8 (concatenate) + 60 + 100 (optimizer) = 949.5;
# communication = 60 + 18 + 10 + 8 (broadcasts) + 4 (outputs of device 1) + 3 (gradient to it) + 36
# + 50 (reductions) = 189; host copies 2 + 40, 2 of the output within the device; the window runs
# from 6 to 1384. On peer copies a device sends and receives: device 3 of four sends 4 + 10 + 14 and
# receives 5 + 31 + 3.
#
# Tensor parallelism: kernels 100 + 100 + 10 + 100 + 80 + 100 + 50; all-reduces 4 x 60, of which 60
# under a kernel.
#
# gloo: compute = 200 + 75 (forward) + 5 (loss) + 170 + 130 + 50 (backward) + 100; communication = 6
# (buffers), the buckets' ranges from 505 to 790 without a gap, 50 of the metric's all-reduce, which
# outlasts the step by 30; hidden = 130 (510 to 640) + 50 (650 to 700).
WAITING = DdpOptions(straggler=0, buffers=False)
FIRST_STEPS: list[tuple[GeneratedTrace, int | None, tuple[float | None, ...]]] = [
    (ddp_trace(0, 2), 0, (804, 642, 214, 136, 78, 32, 6, 84, 0)),
    (ddp_trace(1, 2, WAITING), 1, (1304, 642, 736, 178, 558, 32, 6, 104, 0)),
    (dp_trace(2), 0, (1378, 949.5, 189, 0, 189, 42, 2, 239.5, 0)),
    (dp_trace(4, "peer_copy", "device"), 3, (1378, 749, 67, 0, 67, 0, 0, 562, 0)),
    (parallel_trace("tensor_parallel", 0), 0, (880, 540, 240, 60, 180, 0, 0, 160, 0)),
    (gloo_trace(0, 2), None, (1000, 730, 341, 180, 161, None, None, 109, 30)),
]


@pytest.mark.parametrize("place", range(len(FIRST_STEPS)))
def test_the_first_step_by_hand(place: int) -> None:
    generated, device, expected = FIRST_STEPS[place]
    assert attrgetter(*TIMES)(generated.expected.steps[device, 5]) == expected


def test_phases_of_data_parallel_by_hand() -> None:
    """Device 0: concatenations 17, then four broadcasts 96; loss 6 + 8, backward 440, and 3 to
    scatter the output's gradient; concatenation 8, then reductions 86.
    """
    assert dp_trace(2).expected.steps[0, 5].phases == {
        "host_to_device": ExpectedPhase(2, copied_bytes=2048),
        "scatter": ExpectedPhase(40, copied_bytes=1572864),
        "replicate": ExpectedPhase(113, collective_count=4, collective_bytes=15767200),
        "parallel_apply": ExpectedPhase(310.5),
        "gather": ExpectedPhase(6, copied_bytes=5120),
        "loss_backward": ExpectedPhase(457, copied_bytes=5120),
        "gradient_reduce": ExpectedPhase(94, collective_count=2, collective_bytes=15728640),
        "optimizer": ExpectedPhase(160),
    }


def test_the_generator_shares_no_code_with_dpscope() -> None:
    sources = [path.read_text() for path in (ROOT / "tests" / "generated_traces").glob("*.py")]
    imports = re.compile(r"^ *(from|import) dpscope", re.MULTILINE)
    assert [text for text in sources if imports.search(text)] == []
