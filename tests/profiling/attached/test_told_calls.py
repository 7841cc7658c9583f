"""Calls of single modules are told by their classes, which are as before afterwards."""

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from dpscope.profiling.attached.told_calls import ToldCalls
from tests.helpers.attached_scripts import Net, counting_backend


class Sub(Net):
    pass


class OwnCall(Net):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Told:
    """Whose calls were told, in their order, with the number of arguments by position and the names of the others."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, int, list[str]]] = []
        self.of = ToldCalls()

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append((module, len(args), list(kwargs)))

    def watch(self, *modules: nn.Module) -> None:
        for module in modules:
            self.of.tell(module, self.note)

    @property
    def modules(self) -> list[nn.Module]:
        return [module for module, *_ in self.calls]


@pytest.fixture
def told() -> Iterator[Told]:
    found = Told()
    yield found
    found.of.stop()
    for kind in (Net, Sub, nn.Sequential, DataParallel):
        assert "__call__" not in vars(kind)


def inputs() -> Tensor:
    return torch.ones(2, 3)


@pytest.mark.parametrize("make", [Net, Sub, OwnCall, lambda: torch.compile(Net(), backend="eager")])
def test_each_call_is_told_once_and_its_class_is_as_before_afterwards(
    told: Told, make: Callable[[], nn.Module]
) -> None:
    model = make()
    own = vars(type(model)).get("__call__")
    told.watch(model)
    assert torch.equal(model(inputs=inputs()), model(inputs()))
    assert told.calls == [(model, 0, ["inputs"]), (model, 1, [])]
    told.of.stop()
    assert vars(type(model)).get("__call__") is own
    model(inputs())
    assert len(told.calls) == 2


def test_others_of_the_class_and_one_forgotten_are_not_told(told: Told) -> None:
    first, second, other = Net(), Net(), Net()
    told.watch(first, second)
    told.of.forget(first)
    for model in (first, second, other):
        model(inputs())
    assert told.modules == [second]


def test_a_module_whose_class_inherits_from_anothers_is_told_once(told: Told) -> None:
    base, sub = Net(), Sub()
    told.watch(base, sub)
    sub(inputs())
    base(inputs())
    assert told.modules == [sub, base]


def test_what_is_nested_in_a_module_of_its_class_is_not_told(told: Told) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.ReLU())
    told.watch(model)
    model(inputs())
    assert told.modules == [model]


def test_replicas_of_a_module_are_not_the_module(told: Told) -> None:
    model = DataParallel(Net())
    told.watch(model, model.module)
    replica: Any = model.module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.layer = model.module.layer
    replica(inputs())
    assert told.calls == []
    model(inputs())
    assert told.modules == [model, model.module]


def test_a_call_that_somebody_replaced_meanwhile_stays_theirs() -> None:
    told = Told()
    model = Sub()
    told.watch(model)
    ours = Sub.__call__

    def theirs(module: Sub, *args: Any) -> Any:
        return ours(module, *args)

    Sub.__call__ = theirs  # type: ignore[method-assign]
    try:
        model(inputs())
        told.of.stop()
        assert Sub.__call__ is theirs
        model(inputs())  # ours is below theirs still, and tells nothing
        assert told.modules == [model]
    finally:
        del Sub.__call__


def test_a_model_compiled_in_place_is_told_and_one_within_a_compiled_function_is_not(told: Told) -> None:
    in_place, traced = Net(), Sub()
    torch._dynamo.reset()
    in_place.compile(backend="eager")
    told.watch(in_place, traced)

    @torch.compile(backend="eager", fullgraph=True)
    def step(given: Tensor) -> Any:
        return traced(given).sum()

    in_place(inputs())
    step(inputs())
    assert told.modules == [in_place]


def test_what_was_compiled_before_is_not_compiled_again(told: Told) -> None:
    graphs: list[int] = []
    torch._dynamo.reset()
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.ReLU())
    compiled: Any = torch.compile(model, backend=counting_backend(graphs), fullgraph=True)
    for watched in (compiled, model, nn.Sequential()):
        told.watch(watched)
        compiled(inputs())
    told.of.stop()
    compiled(inputs())
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", [Sub, OwnCall])
def test_the_traceback_of_what_a_model_raises_is_as_without_it(told: Told, kind: type[Net]) -> None:
    model = kind()

    def lines() -> list[str]:
        with pytest.raises(RuntimeError) as raised:
            model(torch.ones(2, 4))  # of 3 columns
        return [entry.name for entry in traceback.extract_tb(raised.value.__traceback__)]

    alone = lines()
    told.watch(model)
    assert lines() == alone
    assert told.modules == [model]
