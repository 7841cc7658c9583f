"""The choice between torch's two NCCL engines. Their behaviour on GPUs is not confirmed on
hardware.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from torch import distributed

from dpscope.launch.jobs import process_group
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.process_group import choose_nccl_engine
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.machine.environment import ENGINE_VARIABLE, default_engine
from dpscope.profiling.store.errors import DpscopeError

c10d = distributed.distributed_c10d
with_both = pytest.mark.skipif(
    not hasattr(c10d, "ProcessGroupNCCL2"), reason="this torch has one engine"
)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    if hasattr(c10d, "_register_builtin_nccl_backend"):
        c10d._register_builtin_nccl_backend()


def maker() -> str:
    """The name of the function that makes groups of the backend "nccl"."""
    return str(distributed.Backend._plugins["NCCL"].creator_fn.__name__)


@with_both
def test_nccl_uses_the_chosen_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, "0")
    choose_nccl_engine("nccl2")
    assert maker() == "_create_nccl2_process_group"
    choose_nccl_engine("legacy")
    assert maker() == "_create_nccl_process_group"
    choose_nccl_engine("default")  # changes nothing
    assert (maker(), os.environ[ENGINE_VARIABLE]) == ("_create_nccl_process_group", "0")
    monkeypatch.delenv(ENGINE_VARIABLE)
    choose_nccl_engine("legacy")
    assert ENGINE_VARIABLE not in os.environ


def test_an_older_torch_only_has_the_legacy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        process_group, "distributed", SimpleNamespace(distributed_c10d=SimpleNamespace())
    )
    choose_nccl_engine("legacy")
    with pytest.raises(
        DpscopeError,
        match=r"--nccl-engine nccl2: torch .* does not have it; omit it, or use legacy",
    ):
        choose_nccl_engine("nccl2")


def torch_with(registered: str = "nccl2", **functions: object) -> SimpleNamespace:
    """torch.distributed with both engines and these functions, and one of the engines
    registered.
    """
    makers = {"nccl": lambda: "NCCL", "nccl2": lambda: "NCCL2"}
    engines = SimpleNamespace(
        ProcessGroupNCCL2=object, _create_nccl2_process_group=makers["nccl2"], **functions
    )
    backend = SimpleNamespace(_plugins={"NCCL": SimpleNamespace(creator_fn=makers[registered])})
    return SimpleNamespace(
        is_available=lambda: True,
        is_nccl_available=lambda: True,
        distributed_c10d=engines,
        Backend=backend,
    )


def test_the_engine_is_registered_with_its_value_of_the_variable_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    seen: list[str | None] = []
    both = torch_with(
        _register_builtin_nccl_backend=lambda: seen.append(os.environ.get(ENGINE_VARIABLE))
    )
    monkeypatch.setattr(process_group, "distributed", both)
    choose_nccl_engine("nccl2")
    choose_nccl_engine("legacy")
    assert (seen, os.environ.get(ENGINE_VARIABLE)) == (["1", "0"], None)
    monkeypatch.setattr(process_group, "distributed", torch_with())  # without the private function
    choose_nccl_engine("nccl2")  # is registered
    with pytest.raises(
        DpscopeError,
        match=r"--nccl-engine legacy: dpscope cannot choose it .* TORCH_DIST_USE_NCCL2=0",
    ):
        choose_nccl_engine("legacy")
    monkeypatch.setattr(process_group, "distributed", torch_with("nccl"))
    choose_nccl_engine("legacy")


def test_the_engine_is_the_one_that_torch_registered() -> None:
    assert default_engine(torch_with("nccl2")) == "ProcessGroupNCCL2"
    assert default_engine(torch_with("nccl")) == "ProcessGroupNCCL"  # 2.14.1 has both
    one = SimpleNamespace(**{**vars(torch_with("nccl")), "distributed_c10d": SimpleNamespace()})
    assert default_engine(one) == "ProcessGroupNCCL"
    one.Backend = SimpleNamespace()  # torch 2.8
    assert default_engine(one) == "ProcessGroupNCCL"
    one.is_nccl_available = lambda: False
    assert default_engine(one) is None


@with_both
@pytest.mark.parametrize(
    ("value", "engine"), [("0", "ProcessGroupNCCL"), ("1", "ProcessGroupNCCL2"), (None, None)]
)
def test_the_engine_of_this_torch_is_known_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, value: str | None, engine: str | None
) -> None:
    """Without the variable, the class is the one that torch makes groups of."""
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(ENGINE_VARIABLE, value)
    c10d._register_builtin_nccl_backend()
    made = {"_create_nccl_process_group": "ProcessGroupNCCL"}.get(maker(), "ProcessGroupNCCL2")
    assert default_engine(distributed) == made == (engine or made)


@with_both
@pytest.mark.process
def test_the_engine_of_a_new_process() -> None:
    """torch reads the variable when it is imported."""
    asks = (
        "from torch import distributed; from dpscope.profiling.machine.environment import default_engine; "
        "print(default_engine(distributed))"
    )
    answer = subprocess.check_output(
        [sys.executable, "-c", asks], env={**os.environ, ENGINE_VARIABLE: "1"}, text=True
    )
    assert answer == "ProcessGroupNCCL2\n"


def test_engines_are_variants_of_ddp_only_and_need_nccl() -> None:
    flags = {"nccl_engine": "legacy,default", "batch_size": "32", "devices": "1,2", "steps": 9}
    config = resolve(load_config(None, flags), Devices(kind="cuda", count=2))
    names = [planned.cell.name for planned in make_plan(config.matrix, 50_000, "cuda")]
    assert names == [
        "single-d1-b32",
        "ddp-d1-b32",
        "dp-d2-b32",
        "ddp-d2-b32",
        "ddp-d2-b32-engine-legacy",
    ]
    with pytest.raises(
        DpscopeError, match=r"--nccl-engine legacy on the CPU: gloo runs there, not NCCL; omit it"
    ):
        resolve(load_config(None, {"nccl_engine": "legacy"}), Devices(kind="cpu", count=None))
    with pytest.raises(DpscopeError, match=r"--nccl-engine fast.*default, legacy, nccl2"):
        load_config(None, {"nccl_engine": "fast"})
