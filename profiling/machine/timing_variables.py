"""Which of the recorded environment variables times may depend on. Imports no torch."""

from dpscope.profiling.records.run import Environment

_SET_FOR_JOBS = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # by dpscope
    "CUDA_MODULE_LOADING": "LAZY",  # by torch, once it uses CUDA
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # by torchrun
}
"""What a job's processes have of a variable that nobody set."""

_OF_NO_EFFECT_PREFIXES = ("KINETO_", "NCCL_DEBUG", "TORCH_LOGS")
_OF_NO_EFFECT = (
    "CUDA_CACHE_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",  # which GPUs; that they are alike is checked
    "MKL_NUM_THREADS",  # dpscope sets the threads itself, and torchrun the variable
    "OMP_NUM_THREADS",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_HOME",
    "TORCH_SHOW_CPP_STACKTRACES",
)
"""Variables that are recorded and that no time depends on."""


def timing_variables(environment: Environment) -> dict[str, str]:
    """The variables that a job's processes had and that times may depend on."""
    settings = {**_SET_FOR_JOBS, **environment.settings}
    return {
        name: value
        for name, value in settings.items()
        if name not in _OF_NO_EFFECT and not name.startswith(_OF_NO_EFFECT_PREFIXES)
    }
