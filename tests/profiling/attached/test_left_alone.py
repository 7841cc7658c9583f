"""What a measurement changes in torch is as it was once the script is left alone."""

import copy
import io
import pickle
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, register_optimizer_step_post_hook

from tests.helpers.attached_scripts import TIMED, UNTIMED, WARMUP, WHOLE, Net, attached, measured, train

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


@pytest.mark.parametrize("steps", [WHOLE, UNTIMED + TIMED - 1], ids=["measured whole", "ended early"])
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


def saved_pickle(model: nn.Module) -> bytes:
    """What torch.save writes of a model beside its tensors."""
    file = io.BytesIO()
    torch.save(model, file)
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)


LOOKS: dict[str, Callable[[nn.Module], object]] = {
    "saved": saved_pickle,
    "pickled": lambda model: len(pickle.dumps(model)),
    "copied": lambda model: sorted(vars(copy.deepcopy(model))),
    "scripted": lambda model: torch.jit.script(model).code,
    "exported": lambda model: str(torch.export.export(model, (torch.ones(2, 3),)).graph),
    "traced for fx": lambda model: str(torch.fx.symbolic_trace(model).graph),
}


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning", "ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("look", list(LOOKS.values()), ids=list(LOOKS))
def test_a_model_that_is_measured_is_saved_and_copied_as_ever(
    tmp_path: Path, look: Callable[[nn.Module], object]
) -> None:
    """Nothing of dpscope is in it: who loads it later need not have it."""
    model = Net()
    alone = look(model)
    with attached(tmp_path, []):
        optimizer = torch.optim.SGD(model.parameters())
        train(model, optimizer, UNTIMED + 2)  # within the timed window
        assert look(model) == alone
        train(model, optimizer, WHOLE - UNTIMED - 2)
    _, _, rank, samples = measured(tmp_path)
    timed = samples[samples["measuring_pass"] == "timed"]
    assert list(timed["samples"]) == [8] * len(timed)
    assert rank.blocks[0].steps == len(timed) >= TIMED - 1  # an export may call the model: that step is left out


def test_a_copy_of_the_model_that_is_trained_is_not_counted_as_the_model(tmp_path: Path) -> None:
    """As of weights that are averaged over steps: the copy is called in each step, too."""
    model = Net()
    with attached(tmp_path, []):
        optimizer = torch.optim.SGD(model.parameters())
        train(model, optimizer, WARMUP)
        copied = copy.deepcopy(model)
        for _ in range(WHOLE - WARMUP):
            copied(torch.ones(8, 3))
            train(model, optimizer, 1)
    _, _, _, samples = measured(tmp_path)
    assert set(samples["samples"]) == {8}


def test_a_hook_that_the_script_has_for_its_optimizers_is_called_at_each_step(tmp_path: Path) -> None:
    """torch walks through its hooks while dpscope takes back its own: nothing may move under it."""
    called: list[Optimizer] = []
    before = dict(_global_optimizer_post_hooks)
    with attached(tmp_path, []) as session:
        theirs = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: called.append(optimizer))
        try:
            model = Net()
            train(model, torch.optim.SGD(model.parameters()), WHOLE + 2)
            assert session.saved
            assert len(called) == WHOLE + 2
        finally:
            theirs.remove()
    assert _global_optimizer_post_hooks == before


RAISING: dict[str, Callable[[], object]] = {
    "a wrapper": lambda: DistributedDataParallel(nn.ReLU()),  # without a parameter
    "a profiler": lambda: torch.autograd.profiler.profile(nothing=True),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("fails", list(RAISING.values()), ids=list(RAISING))
def test_what_torch_refuses_a_script_has_nothing_of_dpscope_in_its_traceback(
    tmp_path: Path, fails: Callable[[], object], rates: object
) -> None:
    def frames() -> list[tuple[str, int | None]]:
        with pytest.raises((RuntimeError, TypeError)) as raised:
            fails()
        return [(entry.filename, entry.lineno) for entry in traceback.extract_tb(raised.value.__traceback__)]

    alone = frames()
    with attached(tmp_path / "run", []):
        assert frames() == alone
