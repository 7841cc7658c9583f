"""What a measurement changes in torch: module calls are reported, and everything is restored
afterwards.
"""

import copy
import io
import pickle
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    register_optimizer_step_post_hook,
)

from dpscope.profiling.attached.interception import ModuleCalls
from tests.helpers.attached_scripts import (
    TIMED,
    UNTIMED,
    WARMUP,
    WHOLE,
    Net,
    attached,
    counting_backend,
    measured,
    net_with_sgd,
    train,
)


class Sub(Net):
    pass


class OwnCall(Net):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Recorded:
    """The recorded calls: module, number of positional arguments, names of keyword arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, int, list[str]]] = []
        self.hooks = ModuleCalls()

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append((module, len(args), list(kwargs)))

    def watch(self, *modules: nn.Module) -> None:
        for module in modules:
            self.hooks.add(module, self.note)

    @property
    def modules(self) -> list[nn.Module]:
        return [module for module, *_ in self.calls]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded()
    yield found
    found.hooks.stop()
    for kind in (Net, Sub, nn.Sequential, DataParallel):
        assert "__call__" not in vars(kind)


def inputs() -> Tensor:
    return torch.ones(2, 3)


@pytest.mark.parametrize("make", [Net, Sub, OwnCall, lambda: torch.compile(Net(), backend="eager")])
def test_each_call_is_recorded_once_and_its_class_is_restored(
    recorded: Recorded, make: Callable[[], nn.Module]
) -> None:
    model = make()
    original = vars(type(model)).get("__call__")
    recorded.watch(model)
    assert torch.equal(model(inputs=inputs()), model(inputs()))
    assert recorded.calls == [(model, 0, ["inputs"]), (model, 1, [])]
    recorded.hooks.stop()
    assert vars(type(model)).get("__call__") is original
    model(inputs())
    assert len(recorded.calls) == 2


def test_only_the_watched_modules_of_a_class_are_recorded(recorded: Recorded) -> None:
    """Not others of the class, a removed one or a nested one; one of a subclass once."""
    removed, watched, other, sub = Net(), Net(), Net(), Sub()
    nested = nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.ReLU())
    recorded.watch(removed, watched, sub, nested)
    recorded.hooks.remove(removed)
    for model in (removed, watched, other, sub, nested):
        model(inputs())
    assert recorded.modules == [watched, sub, nested]


def test_replicas_of_a_module_are_not_recorded(recorded: Recorded) -> None:
    model = DataParallel(Net())
    recorded.watch(model, model.module)
    replica: Any = model.module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.layer = model.module.layer
    replica(inputs())
    assert recorded.calls == []
    model(inputs())
    assert recorded.modules == [model, model.module]


def test_a_call_that_the_script_replaced_meanwhile_stays() -> None:
    recorded = Recorded()
    model = Sub()
    recorded.watch(model)
    ours = Sub.__call__

    def theirs(module: Sub, *args: Any) -> Any:
        return ours(module, *args)

    Sub.__call__ = theirs  # type: ignore[method-assign]
    try:
        model(inputs())
        recorded.hooks.stop()
        assert Sub.__call__ is theirs
        model(inputs())  # ours is still below theirs, and records nothing
        assert recorded.modules == [model]
    finally:
        del Sub.__call__


def test_a_model_compiled_in_place_is_recorded_and_one_within_a_compiled_function_is_not(
    recorded: Recorded,
) -> None:
    in_place, traced = Net(), Sub()
    torch._dynamo.reset()
    in_place.compile(backend="eager")
    recorded.watch(in_place, traced)

    @torch.compile(backend="eager", fullgraph=True)
    def step(batch: Tensor) -> Any:
        return traced(batch).sum()

    in_place(inputs())
    step(inputs())
    assert recorded.modules == [in_place]


def test_a_compiled_model_is_not_compiled_again(recorded: Recorded) -> None:
    graphs: list[int] = []
    torch._dynamo.reset()
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.ReLU())
    compiled: Any = torch.compile(model, backend=counting_backend(graphs), fullgraph=True)
    for watched in (compiled, model, nn.Sequential()):
        recorded.watch(watched)
        compiled(inputs())
    recorded.hooks.stop()
    compiled(inputs())
    assert len(graphs) == 1


# torch's kDDPRuntimeLoggingSampleRate: iterations between two readings of DDP's counters
BY_DEFAULT = 100


@pytest.fixture
def rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[nn.Module, list[int]]]:
    """The logging rates set on each DDP model, in a group of one rank."""
    found: dict[nn.Module, list[int]] = {}
    real = DistributedDataParallel._set_ddp_runtime_logging_sample_rate

    def record(model: DistributedDataParallel, rate: int) -> None:
        found.setdefault(model, []).append(rate)
        real(model, rate)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(DistributedDataParallel, "_set_ddp_runtime_logging_sample_rate", record)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
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


@pytest.mark.parametrize(
    "steps", [WHOLE, UNTIMED + TIMED - 1], ids=["measured whole", "ended early"]
)
def test_ddp_reads_its_counters_as_often_as_before(
    tmp_path: Path, rates: dict[nn.Module, list[int]], steps: int
) -> None:
    """No counters window restores the rate with several models or one process."""
    with attached(tmp_path / "run", []):
        model = Two()
        train(model, torch.optim.SGD(model.parameters()), steps)
    assert set(rates) == set(model.models)
    for rate in rates.values():
        assert rate[0] > BY_DEFAULT
        assert rate[-1] == BY_DEFAULT


def saved_pickle(model: nn.Module) -> bytes:
    """What torch.save writes of a model in addition to its tensors."""
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


@pytest.mark.filterwarnings(
    "ignore:.torch.jit:FutureWarning", "ignore:.torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("look", list(LOOKS.values()), ids=list(LOOKS))
def test_a_measured_model_is_saved_and_copied_as_before(
    tmp_path: Path, look: Callable[[nn.Module], object]
) -> None:
    """Loading it does not need dpscope."""
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
    # an export may call the model, which leaves that step out
    assert rank.blocks[0].steps == len(timed) >= TIMED - 1


def test_the_scripts_optimizer_hook_is_called_at_each_step(tmp_path: Path) -> None:
    """torch iterates over its hooks while dpscope removes its hook."""
    called: list[Optimizer] = []
    before = dict(_global_optimizer_post_hooks)
    with attached(tmp_path, []) as session:
        theirs = register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: called.append(optimizer)
        )
        try:
            train(*net_with_sgd(), WHOLE + 2)
            assert session.saved
            assert len(called) == WHOLE + 2
        finally:
            theirs.remove()
    assert _global_optimizer_post_hooks == before


RAISING: dict[str, Callable[[Net], object]] = {
    "a model": lambda model: model(torch.ones(2, 4)),  # of 3 columns
    "a wrapper": lambda model: DistributedDataParallel(nn.ReLU()),  # without a parameter
    "a profiler": lambda model: torch.autograd.profiler.profile(nothing=True),  # type: ignore[call-arg]
    "a backward pass": lambda model: torch.ones(1).backward(),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("fails", list(RAISING.values()), ids=list(RAISING))
@pytest.mark.parametrize("kind", [Net, OwnCall])
def test_an_error_from_torch_has_no_dpscope_frame_in_its_traceback(
    tmp_path: Path, fails: Callable[[Net], object], kind: type[Net], rates: object
) -> None:
    model = kind()

    def frames() -> list[tuple[str, int | None]]:
        with pytest.raises((RuntimeError, TypeError)) as raised:
            fails(model)
        return [
            (entry.filename, entry.lineno)
            for entry in traceback.extract_tb(raised.value.__traceback__)
        ]

    alone = frames()
    with attached(tmp_path / "run", []):
        assert frames() == alone
        # from now on its calls are reported
        train(model, torch.optim.SGD(model.parameters()), WARMUP)
        assert frames() == alone
