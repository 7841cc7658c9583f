"""The stand-in for DataParallel on CPU threads, against one device."""

import pytest
import torch
from torch import Tensor, nn

from dpscope.launch.workload.host_data_parallel import HostDataParallel
from dpscope.launch.workload.strategies import wrap
from dpscope.profiling.store.errors import DpscopeError


def test_one_device_agrees_where_no_batch_norm_looks_across_the_batch() -> None:
    def model() -> nn.Module:
        torch.manual_seed(3)
        layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4)
        return nn.Sequential(*layers).double()

    images, labels = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(4, (6,))
    single, wrapped = model(), HostDataParallel(model(), 2)
    for trained in (single, wrapped):
        nn.functional.cross_entropy(trained(images), labels).backward()  # type: ignore[no-untyped-call]
    for one, many in zip(single.parameters(), wrapped.module.parameters(), strict=True):
        assert one.grad is not None
        assert many.grad is not None
        assert torch.allclose(one.grad, many.grad, rtol=1e-10, atol=1e-12)


def test_running_statistics_are_those_of_replica_zero() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    wrapped = HostDataParallel(norm, 2)
    images = torch.randn(4, 3, 5, 5)
    wrapped(images)
    assert norm.running_mean is not None
    assert torch.allclose(norm.running_mean, 0.1 * images[:2].mean(dim=(0, 2, 3)))
    assert int(norm.num_batches_tracked or 0) == 1
    wrapped.eval()
    before = norm.running_mean.clone()
    wrapped(images)
    assert torch.equal(norm.running_mean, before)


def test_training_follows_the_master_and_counts_its_parameters_once() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 2)
    wrapped = HostDataParallel(linear, 2)
    assert len(list(wrapped.parameters())) == 2
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
    wrapped(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(wrapped(torch.ones(4, 3)), linear(torch.ones(4, 3)))
    assert len(list(wrapped.parameters())) == 2


def test_a_last_batch_smaller_than_the_replicas_is_split_as_dataparallel_does() -> None:
    wrapped = HostDataParallel(nn.Linear(3, 2), 4)
    assert wrapped(torch.ones(1, 3)).shape == (1, 2)
    assert wrapped(torch.ones(5, 3)).shape == (5, 2)


def test_an_error_in_a_replica_reaches_the_caller() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise ArithmeticError("broken on purpose")

    with pytest.raises(ArithmeticError, match="broken on purpose"):
        HostDataParallel(Broken(), 2)(torch.ones(2, 3))


def test_precision_reaches_the_replicas() -> None:
    wrapped = HostDataParallel(nn.Linear(3, 2), 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wrapped(torch.ones(2, 3)).dtype == torch.bfloat16


@pytest.mark.parametrize(("strategy", "devices", "said"), [("dp", 1, "one device"), ("dp", 2, "passes through")])
def test_a_pass_through_is_refused(strategy: str, devices: int, said: str) -> None:
    with pytest.raises(DpscopeError, match=said):
        wrap(nn.Linear(1, 1), strategy, devices, torch.device("cpu"))  # type: ignore[arg-type]
