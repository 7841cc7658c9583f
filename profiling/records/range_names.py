"""Names of the `record_function` ranges that dpscope adds to its traces, shared by the recorder
(launch) and analysis.

A range of `nn.DataParallel` that belongs to one replica ends in `#<replica index>`: replica threads
are new in every step, so that their thread ids do not identify the replica.
"""

PREFIX = "dpscope::"

DATA = PREFIX + "data"
HOST_TO_DEVICE = PREFIX + "host_to_device"
FORWARD = PREFIX + "forward"
BACKWARD = PREFIX + "backward"
OPTIMIZER = PREFIX + "optimizer"

REPLICATE = PREFIX + "dp_replicate"
SCATTER = PREFIX + "dp_scatter"
PARALLEL_APPLY = PREFIX + "dp_parallel_apply"
GATHER = PREFIX + "dp_gather"
GRADIENT_REDUCE = PREFIX + "dp_gradient_reduce"

STEP_PHASES = (DATA, HOST_TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER)
DP_PHASES = (REPLICATE, SCATTER, PARALLEL_APPLY, GATHER, GRADIENT_REDUCE)
DP_COMMUNICATION_PHASES = (REPLICATE, SCATTER, GATHER, GRADIENT_REDUCE)


def replica_range(phase: str, replica: int) -> str:
    """Name of one replica's range of a DP phase, such as ``dpscope::dp_scatter#1``."""
    return f"{phase}#{replica}"


def base_name(range_name: str) -> str:
    """Phase of a range: its name without the replica's index."""
    return range_name.partition("#")[0]
