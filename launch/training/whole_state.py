"""State of sharded models and optimizers as whole tensors, which every strategy can go on from, and divided again."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def whole(state: Any) -> Any:
    """A state, nested as `state_dict` nests it, with every sharded tensor gathered; all processes must ask, and all get it."""
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    if isinstance(state, list):
        return [whole(value) for value in state]
    return state.full_tensor() if _is_sharded(state) else state


def divided(state: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """A state with each tensor sharded that is sharded in `like`; every process has the whole of it."""
    return {name: _as(value, like.get(name)) for name, value in state.items()}


def divided_optimizer_state(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's state with what belongs to each element of a sharded parameter sharded as that is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {
        place: {name: _as(value, parameters[place]) for name, value in values.items()}
        for place, values in state["state"].items()
        if place < len(parameters)
    }
    return {**state, "state": {**state["state"], **own}}


def _as(value: Any, like: Any) -> Any:
    if not _is_sharded(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "full_tensor")
