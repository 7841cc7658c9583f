import pytest
import torch

from dpscope.profiling.instruments.step_timer import StepTimer


def test_two_arrivals_within_a_step_are_not_attributed_to_two_steps() -> None:
    timer = StepTimer(torch.device("cpu"))
    timer.boundary()
    timer.batch_arrived()
    timer.batch_arrived()
    timer.boundary()
    with pytest.raises(ValueError, match="longer"):
        timer.data_waits_us()
