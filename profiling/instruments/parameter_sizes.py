"""Sizes of a model's parameters and buffers: what a strategy has to move."""

from collections.abc import Collection, Iterable, Sequence

from torch import Tensor, nn

from dpscope.profiling.records.run import ParameterSizes, TensorSize


def parameter_sizes(model: nn.Module) -> ParameterSizes:
    """The sizes of this model; shared parameters count once."""
    return tensor_sizes(model.parameters(), model.buffers())


def tensor_sizes(
    parameters: Iterable[Tensor], buffers: Iterable[Tensor], trained_ids: Collection[int] = ()
) -> ParameterSizes:
    """The sizes of distinct tensors; those in `trained_ids` have gradients even if they currently require none."""
    all_parameters, all_buffers = list(parameters), list(buffers)
    trained = [one for one in all_parameters if one.requires_grad or id(one) in trained_ids]
    return ParameterSizes(
        parameter_count=sum(parameter.numel() for parameter in all_parameters),
        parameter_bytes=_total_bytes(all_parameters),
        gradient_bytes=_total_bytes(trained),
        buffer_bytes=_total_bytes(all_buffers),
        gradient_elements=sum(parameter.numel() for parameter in trained),
        gradient_shapes=tuple(tuple(parameter.shape) for parameter in trained),
        parameter_tensors=tuple(_tensor_size(parameter) for parameter in all_parameters),
        buffer_tensors=tuple(_tensor_size(buffer) for buffer in all_buffers),
    )


def _total_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensor_size(tensor: Tensor) -> TensorSize:
    return TensorSize(dtype=str(tensor.dtype).removeprefix("torch."), bytes=tensor.numel() * tensor.element_size())
