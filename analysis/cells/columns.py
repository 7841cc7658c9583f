"""The comparison's columns, each declared once: a typed field with its heading, unit and meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dpscope.analysis.text.units import Quantity

Group = Literal[
    "cell", "time", "communication", "estimates", "predictions", "bandwidth", "device", "learning", "checks"
]
Number = float | None
Count = int | None
Text = str | None


@dataclass(frozen=True)
class Column:
    """`name` carries the unit it is stored in; `heading` is what people read; `meaning` is one sentence."""

    name: str
    heading: str
    quantity: Quantity
    group: Group
    meaning: str


@dataclass(frozen=True)
class Ends:
    """Two columns that bound another one: the words in their names before the unit, and their meaning."""

    low: str
    high: str
    meanings: tuple[str, str]

    def of(self, column: str) -> tuple[str, str]:
        """The two columns of a value.

        >>> INTERVAL.of("step_us"), VALUE_RANGE.of("samples_per_s")
        (('step_low_us', 'step_high_us'), ('samples_per_s_min', 'samples_per_s_max'))
        """
        base = column.removesuffix("_us")
        return f"{base}_{self.low}{column[len(base) :]}", f"{base}_{self.high}{column[len(base) :]}"


INTERVAL = Ends("low", "high", ("Lower end of its 95% interval", "Upper end of its 95% interval"))
"""A 95% interval: more samples narrow it."""
RANK_RANGE = Ends("rank_min", "rank_max", ("Smallest mean of a rank and device", "Largest mean of a rank and device"))
"""The smallest and the largest mean of a rank and device."""
VALUE_RANGE = Ends("min", "max", ("Smallest value", "Largest value"))
"""The smallest and the largest of the values behind a mean or median: more values widen it."""


def _column(
    heading: str,
    meaning: str,
    quantity: Quantity = "time",
    default: object = None,
    ends: Sequence[Ends] = (),
    begins: Group | None = None,
    unknown: str | None = None,
) -> Any:
    """A field and the columns that bound it; `begins` is the group of this and the following fields.

    `unknown` declares a mean over whole traced steps of the column of that name in the breakdown: why a trace may lack it.
    """
    content = {"content": (heading, quantity, meaning, ends), "begins": begins, "unknown": unknown}
    return field(default=default, metadata=content)


_OF_GPUS, _NO_RANGE = "a CPU trace does not show it", "the traces hold no range of this phase"


@dataclass(frozen=True)
class Columns:
    """A cell's values, a field for each column; the bounds of some are columns of their own (`Ends`)."""

    cell: str = _column("cell", "Strategy, devices and batch per device", "text")
    strategy: str = _column("strategy", "dp-host is the CPU stand-in for nn.DataParallel", "text")
    devices: int = _column("devices", "Devices the step runs on (CPU: processes or replicas)", "count")
    nodes: int = _column("nodes", "Hosts that its processes run on; 1 for traces alone", "count", default=1)
    batch_size: Count = _column("batch", "Samples per device and step", "count")
    global_batch_size: Count = _column("global batch", "Samples per step over all devices", "count")
    status: str = _column("status", "ok, or what kept the cell from being measured", "text", default="ok")

    # Untraced steps: their time, throughput and scaling.
    step_us: Number = _column("step", "Median untraced step time, waiting for the loader included", begins="time")
    step_low_us: Number = _column("step low", "Lower end of the median's 95% interval, from how repeats differ")
    step_high_us: Number = _column("step high", "Upper end of the median's 95% interval, from how repeats differ")
    step_count: Count = _column("steps", "Timed steps behind the median, all repeats together", "count")
    step_without_wait_us: Number = _column("step w/o loader", "Median step time without the wait for the loader")
    samples_per_s: Number = _column(
        "samples/s", "Global batch over the median step, loader wait included", "rate", ends=(INTERVAL,)
    )
    block_samples_per_s: Number = _column(
        "samples/s of blocks", "Samples of whole blocks over their time, mean", "rate"
    )
    block_samples_per_s_min: Number = _column("samples/s of blocks min", "Slowest block", "rate")
    block_samples_per_s_max: Number = _column("samples/s of blocks max", "Fastest block", "rate")
    steps_per_s: Number = _column("steps/s", "Steps a second, of a script whose batch is not known", "rate")
    tokens_per_s: Number = _column("tokens/s", "Throughput in tokens: samples/s times tokens per sample", "rate")
    samples_per_s_without_wait: Number = _column(
        "samples/s w/o loader", "Global batch over the median step without the wait for the loader", "rate"
    )
    block_count: Count = _column("blocks", "Blocks behind the throughput", "count")
    weak_speedup: Number = _column("weak speedup", "N t_1(b) / t_N(b): same batch per device", "ratio")
    weak_efficiency: Number = _column("weak eff.", "t_1(b) / t_N(b)", "share", ends=(INTERVAL,))
    strong_speedup: Number = _column(
        "strong speedup", "t_1(G) / t_N(G/N): same global batch", "ratio", ends=(INTERVAL,)
    )
    strong_efficiency: Number = _column("strong eff.", "strong speedup / N", "share")
    steps_per_epoch: Count = _column("steps/epoch", "Steps one epoch takes over the whole data set", "count")

    # Traced steps: the ledger with its intervals, and what moves.
    traced_step_us: Number = _column(
        "traced step", "Mean window of the traced steps", ends=(INTERVAL,), begins="communication"
    )
    traced_step_count: Count = _column(
        "traced windows", "Windows behind the means, one per rank, device and step", "count"
    )
    compute_us: Number = _column("compute", "Union of compute per device and step", ends=(INTERVAL,))
    exposed_wait_us: Number = _column(
        "wait", "Exposed communication in which a collective waits for a late rank and none transfers", ends=(INTERVAL,)
    )
    exposed_transfer_us: Number = _column(
        "transfer", "Exposed communication in which at least one matched collective transfers", ends=(INTERVAL,)
    )
    exposed_other_us: Number = _column(
        "other",
        "Exposed communication without a separate wait and transfer: broadcasts, reduces, copies, unmatched collectives",
        ends=(INTERVAL,),
    )
    idle_us: Number = _column("idle", "Neither compute nor communication", ends=(INTERVAL,))
    tracer_us: Number = _column(
        "tracer", "Untraced step minus traced step: negative if tracing slows it", ends=(INTERVAL,)
    )
    slowdown_us: Number = _column("slowdown", "Compute minus that of one device at the same batch", ends=(INTERVAL,))
    contention_us: Number = _column(
        "contention", "What hidden communication costs the compute next to it", ends=(INTERVAL,)
    )
    contention_ratio: Number = _column(
        "contention ratio",
        "Compute next to communication over the same compute on one device, or over the cell's own free kernels",
        "ratio",
        ends=(INTERVAL,),
    )
    other_slowdown_us: Number = _column(
        "other slowdown", "slowdown_us - contention_us: clocks, caches, host", ends=(INTERVAL,)
    )
    communication_us: Number = _column(
        "comm.", "Union of communication (dp-host: host copies)", ends=(RANK_RANGE,), unknown=_OF_GPUS
    )
    hidden_us: Number = _column("hidden", "Communication while the device computes", unknown=_OF_GPUS)
    exposed_us: Number = _column(
        "exposed",
        "Communication while nothing computes: wait, transfer, other",
        ends=(
            INTERVAL,
            RANK_RANGE,
        ),
        unknown=_OF_GPUS,
    )
    transfer_us: Number = _column("all transfers", "Sum over collectives of the shortest rank's duration")
    wait_us: Number = _column("all waiting", "Time in collectives spent waiting for a later rank")
    queue_us: Number = _column("queue", "Time gloo's collectives waited for a worker thread")
    host_copy_us: Number = _column("host copies", "Host copies outside compute and communication", unknown=_OF_GPUS)
    device_copy_us: Number = _column(
        "device copies",
        "Copies within a device, and memsets, outside compute, communication and host copies",
        unknown=_OF_GPUS,
    )
    unlaunched_us: Number = _column("not launched", "Part of idle in which nothing had been launched", unknown=_OF_GPUS)
    critical_device: Count = _column(
        "critical device",
        "Of a process with several devices (DataParallel): the one that is least idle, whose values the row gives",
        "count",
    )
    compute_device_mean_us: Number = _column("compute (mean)", "Compute: mean over all devices")
    communication_device_mean_us: Number = _column("comm. (mean)", "Communication: mean over all devices")
    exposed_device_mean_us: Number = _column("exposed (mean)", "Exposed communication: mean over all devices")
    idle_device_mean_us: Number = _column("idle (mean)", "Idle time: mean over all devices")
    data_us: Number = _column("data", "Compute of the phase that takes a batch from the loader", unknown=_NO_RANGE)
    host_to_device_us: Number = _column("to device", "Time of copying a batch to the device", unknown=_NO_RANGE)
    forward_us: Number = _column("forward", "Compute of the forward pass", unknown=_NO_RANGE)
    backward_us: Number = _column("backward", "Compute of the backward pass, without communication", unknown=_NO_RANGE)
    optimizer_us: Number = _column("optimizer", "Compute of the optimizer's step", unknown=_NO_RANGE)
    communication_share: Number = _column("comm. share", "Communication / traced step", "share")
    exposed_share: Number = _column("exposed share", "Exposed communication / traced step", "share")
    bytes_per_step: Number = _column(
        "bytes/step", "Collectives' buffers per rank and step; DP by copies: bytes a device sends to others", "bytes"
    )
    collectives_per_step: Number = _column("collectives", "Collectives per rank and step", "count")
    algbw_gb_per_s: Number = _column("algbw", "All-reduce bytes / transfer (nccl-tests)", "bandwidth")
    busbw_gb_per_s: Number = _column("busbw", "algbw x 2(N-1)/N (nccl-tests)", "bandwidth")

    # Communication by subtraction and by the ring formula, and how far off they are.
    same_local_batch_us: Number = _column(
        "same local batch", "t_N(b) - t_1(b): added wall time at the same batch per device", begins="estimates"
    )
    same_local_batch_low_us: Number = _column("same local low", INTERVAL.meanings[0])
    same_local_batch_high_us: Number = _column("same local high", INTERVAL.meanings[1])
    same_local_batch_error_exposed_us: Number = _column("minus exposed", "Estimate minus exposed communication")
    same_local_batch_error_communication_us: Number = _column("minus all comm.", "Estimate minus all communication")
    added_idle_us: Number = _column("idle", "Of t_N(b)-t_1(b): change of idle")
    added_tracer_us: Number = _column(
        "tracer", "The part of the untraced t_N(b)-t_1(b) that the traced windows do not explain"
    )
    added_idle_low_us: Number = _column("idle low", "Lower end of that term's 95% interval")
    added_idle_high_us: Number = _column("idle high", "Upper end of that term's 95% interval")
    added_tracer_low_us: Number = _column("tracer low", "Lower end of that term's 95% interval")
    added_tracer_high_us: Number = _column("tracer high", "Upper end of that term's 95% interval")
    added_data_wait_us: Number = _column("loader", "Change of the mean wait for the loader, timed steps")
    compute_spread: Number = _column("compute spread", "(Largest - smallest) / mean compute of a device", "share")
    first_device_excess_us: Number = _column("device 0 excess", "DP: compute of device 0 minus others' mean")
    ideal_split_us: Number = _column(
        "ideal split", "t_N(G/N) - t_1(G)/N: assumes that a step shrinks in proportion to its batch"
    )
    ideal_split_error_exposed_us: Number = _column("minus exposed", "Estimate minus exposed communication")
    ideal_split_error_communication_us: Number = _column("minus all comm.", "Estimate minus all communication")
    same_total_us: Number = _column("same total", "t_N(G/N) - t_1(G): negative once parallel training pays off")
    same_total_error_exposed_us: Number = _column("minus exposed", "Estimate minus exposed communication")
    same_total_error_communication_us: Number = _column("minus all comm.", "Estimate minus all communication")
    ideal_split_local_batch_us: Number = _column(
        "local batch",
        "t_1(b) - t_1(G)/N: the error of ideal split, because a step does not shrink in proportion to its batch",
    )
    same_total_local_batch_us: Number = _column(
        "local batch", "t_1(b) - t_1(G): the error of same total, because it compares different work per device"
    )
    same_local_batch_epoch_us: Number = _column("same local batch", "T_N - T_1/N of an epoch at equal b")
    ideal_split_epoch_us: Number = _column("ideal split", "T_N - T_1(G)/N of an epoch")
    same_total_epoch_us: Number = _column("same total", "T_N - T_1(G) of an epoch")
    exposed_epoch_us: Number = _column("exposed", "Exposed communication of an epoch's steps")
    communication_epoch_us: Number = _column("comm.", "All communication of an epoch's steps")
    ring_us: Number = _column("ring model", "Ring formula of gradients, or of all that FSDP moves")
    ring_error_us: Number = _column("ring error", "Ring prediction minus transfer")
    ring_source: Text = _column(
        "ring's rate",
        "specification: the link's, from --link or NVML; else calibration: its bus bandwidth at its largest size",
        "text",
    )

    # Communication as a calibration or the link's specification predicts it.
    prediction_source: Text = _column("from", "calibration, or the link's specification", "text", begins="predictions")
    prediction_contention: Text = _column(
        "contention",
        "Calibrated slowdown of collectives in flight together and next to compute, if it was used",
        "text",
    )
    predicted_transfer_us: Number = _column("its prediction", "Predicted transfers (DP: all communication)")
    predicted_transfer_error: Number = _column("error", "Predicted over measured, minus 1", "share")
    predicted_exposed_us: Number = _column("its prediction", "Predicted exposed communication")
    predicted_exposed_error: Number = _column("error", "Predicted over measured exposed comm., minus 1", "share")

    # Effective bandwidth three ways, what it compares with, and the utilisation of each.
    wire_bytes_per_step: Number = _column(
        "wire bytes", "Bytes a rank sends per step, by the bus factors", "bytes", begins="bandwidth"
    )
    subtraction_gb_per_s: Number = _column("by subtraction", "Wire bytes / (t_N(b) - t_1(b))", "bandwidth")
    ring_subtraction_gb_per_s: Number = _column(
        "ring by subtraction",
        "Bytes of the ring formula / (t_N(b) - t_1(b)), which per epoch is T_N - T_1/N",
        "bandwidth",
    )
    communication_gb_per_s: Number = _column("by comm.", "Wire bytes / all communication, waits included", "bandwidth")
    transfer_gb_per_s: Number = _column("by transfer", "Bus bandwidth of the all-reduces' transfers", "bandwidth")
    link_gb_per_s: Number = _column("link", "The link's specification, one way (--link, else NVML)", "bandwidth")
    calibrated_gb_per_s: Number = _column("calibrated", "Rate of the same messages in the calibration", "bandwidth")
    subtraction_of_link: Number = _column("subtr. of link", "By subtraction, of the link's specification", "share")
    communication_of_link: Number = _column("comm. of link", "By communication, of the link's specification", "share")
    transfer_of_link: Number = _column("transfer of link", "By transfer, of the link's specification", "share")
    subtraction_of_calibration: Number = _column("subtr. of calib.", "By subtraction, of the calibration", "share")
    communication_of_calibration: Number = _column("comm. of calib.", "By communication, of the calibration", "share")
    transfer_of_calibration: Number = _column("transfer of calib.", "By transfer, of the calibration", "share")

    # How much of a device the step uses, and where the rest goes in points of 100, the traced step.
    flops_per_step: Number = _column(
        "FLOPs/step",
        "Of one device, forward and backward: matrix products, convolutions, attention; two a multiply-add",
        "flops",
        begins="device",
    )
    achieved_tflops: Number = _column(
        "achieved",
        "flops_per_step / step_us of one device, in 1e12 FLOPs per second; of traces alone over traced_step_us",
        "flop_rate",
    )
    mfu: Number = _column("MFU", "Time of those FLOPs at the GPU's specified dense peak / step", "share")
    cpu_peak_tflops: Number = _column(
        "CPU matmul peak",
        "Measured CPU matmul peak in 1e12 FLOPs per second: the fastest product of square matrices in this dtype and with as "
        "many threads that a process of the run timed",
        "flop_rate",
    )
    cpu_peak_share: Number = _column(
        "of CPU matmul peak",
        "achieved_tflops / cpu_peak_tflops: a share of a measured peak, not the MFU of a specified one",
        "share",
    )
    used_points: Number = _column(
        "used",
        "Time of those FLOPs at the peak / traced_step_us; this and the columns below add up to 100, the traced step",
        "points",
    )
    lost_wait_points: Number = _column("wait", "exposed_wait_us / traced_step_us", "points")
    lost_transfer_points: Number = _column("transfer", "exposed_transfer_us / traced_step_us", "points")
    lost_other_points: Number = _column("other", "exposed_other_us / traced_step_us", "points")
    lost_idle_points: Number = _column("idle", "idle_us / traced_step_us", "points")
    lost_contention_points: Number = _column("contention", "contention_us / traced_step_us", "points")
    lost_below_peak_points: Number = _column(
        "below peak", "The rest of 100: compute that runs below the peak, and parts that are not known", "points"
    )

    # Accuracy of what was trained in the same run folder.
    test_accuracy_percent: Number = _column(
        "test accuracy", "After training: median over seeds", "percent", begins="learning"
    )
    test_accuracy_percent_min: Number = _column("accuracy min", "Lowest test accuracy of a seed", "percent")
    test_accuracy_percent_max: Number = _column("accuracy max", "Highest test accuracy of a seed", "percent")
    test_accuracy_seeds: Count = _column("seeds", "Complete trainings behind the accuracy", "count")
    trained_global_batch_size: Count = _column(
        "trained with batch",
        "Global batch of the trainings; where the cell's own was not trained, the one that was",
        "count",
    )

    # What shows whether the other values can be trusted, and memory.
    tracer_cost: Number = _column("tracer cost", "Mean traced step / median untraced step", "ratio", begins="checks")
    counter_span_ratio: Number = _column("span/DDP's", "Communication span by trace / by DDP's counters", "ratio")
    counter_buckets_equal: bool | None = _column("buckets equal", "All-reduce sizes are DDP's bucket sizes", "flag")
    peak_allocated_bytes: Count = _column(
        "peak alloc.", "Largest peak of torch's allocator on a device, tensors; NCCL's buffers lie outside", "bytes"
    )
    state_bytes: Count = _column("state", "Parameters, buffers, optimizer state on a device between steps", "bytes")
    compile_us: Number = _column("compiling", "Longest time that a rank of the cell spent compiling")
    compiled_parts: Count = _column("compiled parts", "Graphs compiled one by one, DDP's for each bucket", "count")
    peak_reserved_bytes: Count = _column(
        "peak reserved",
        "Largest peak of torch's allocator on a device, its reserve; NCCL's buffers lie outside",
        "bytes",
    )


def _columns() -> Iterator[Column]:
    """Every field in order, its bounds behind it."""
    group: Group = "cell"
    for one in fields(Columns):
        group = one.metadata["begins"] or group
        heading, quantity, meaning, bounds = one.metadata["content"]
        yield Column(one.name, heading, quantity, group, meaning)
        for ends in bounds:
            for name, word, what in zip(ends.of(one.name), (ends.low, ends.high), ends.meanings, strict=True):
                yield Column(name, f"{heading} {word.replace('_', ' ')}", quantity, group, what)


COLUMNS = tuple(_columns())
STEP_MEANS: dict[str, str] = {
    one.name: reason for one in fields(Columns) if (reason := one.metadata["unknown"]) is not None
}
"""The means over whole traced steps of columns of the breakdown, each with the reason for a missing value."""
BY_NAME = {column.name: column for column in COLUMNS}
NAMES = tuple(BY_NAME)
