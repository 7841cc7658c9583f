"""The comparison table's columns: name, heading, unit and meaning, told once for every place that shows them."""

from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.text.units import Quantity

Group = Literal["cell", "time", "communication", "estimates", "predictions", "bandwidth", "learning", "checks"]


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
    """Two columns beside a value that say how far it may lie off, by what stands in their names before the unit."""

    low: str
    high: str

    def of(self, column: str) -> tuple[str, str]:
        """The two columns of a value.

        >>> INTERVAL.of("step_us"), VALUE_RANGE.of("samples_per_s")
        (('step_low_us', 'step_high_us'), ('samples_per_s_min', 'samples_per_s_max'))
        """
        base = column.removesuffix("_us")
        return f"{base}_{self.low}{column[len(base) :]}", f"{base}_{self.high}{column[len(base) :]}"


INTERVAL = Ends("low", "high")
"""A 95% interval: more samples narrow it."""
RANK_RANGE = Ends("rank_min", "rank_max")
"""The smallest and the largest mean of a rank and device."""
VALUE_RANGE = Ends("min", "max")
"""The smallest and the largest of the values behind a mean or median: more values widen it."""
_OF_RANKS = ("Smallest mean of a rank and device", "Largest mean of a rank and device")


def _interval(
    column: str, heading: str, quantity: Quantity, group: Group, what: str = "its 95% interval"
) -> tuple[Column, Column]:
    return _range(column, heading, quantity, group, INTERVAL, f"Lower end of {what}", f"Upper end of {what}")


def _range(
    column: str, heading: str, quantity: Quantity, group: Group, ends: Ends, low: str, high: str
) -> tuple[Column, Column]:
    """The two columns beside a value's, with what each means."""
    names, words = ends.of(column), (ends.low.replace("_", " "), ends.high.replace("_", " "))
    return (
        Column(names[0], f"{heading} {words[0]}", quantity, group, low),
        Column(names[1], f"{heading} {words[1]}", quantity, group, high),
    )


COLUMNS = (
    Column("cell", "cell", "text", "cell", "Strategy, devices and batch per device"),
    Column("strategy", "strategy", "text", "cell", "dp-host is the CPU stand-in for nn.DataParallel"),
    Column("devices", "devices", "count", "cell", "Devices the step runs on (CPU: processes or replicas)"),
    Column("nodes", "nodes", "count", "cell", "Hosts that its processes run on; 1 for traces alone"),
    Column("batch_size", "batch", "count", "cell", "Samples per device and step"),
    Column("global_batch_size", "global batch", "count", "cell", "Samples per step over all devices"),
    Column("status", "status", "text", "cell", "ok, or what kept the cell from being measured"),
    Column("step_us", "step", "time", "time", "Median untraced step time, waiting for the loader included"),
    *_interval("step_us", "step", "time", "time", "the median's 95% interval, from how repeats differ"),
    Column("step_count", "steps", "count", "time", "Timed steps behind the median, all repeats together"),
    Column(
        "step_without_wait_us", "step w/o loader", "time", "time", "Median step time without the wait for the loader"
    ),
    Column("samples_per_s", "samples/s", "rate", "time", "Global batch over the median step, loader wait included"),
    *_interval("samples_per_s", "samples/s", "rate", "time"),
    Column(
        "block_samples_per_s", "samples/s of blocks", "rate", "time", "Samples of whole blocks over their time, mean"
    ),
    *_range(
        "block_samples_per_s", "samples/s of blocks", "rate", "time", VALUE_RANGE, "Slowest block", "Fastest block"
    ),
    Column("steps_per_s", "steps/s", "rate", "time", "Steps a second, of a script whose batch is not known"),
    Column("tokens_per_s", "tokens/s", "rate", "time", "Throughput in tokens: samples/s times tokens per sample"),
    Column(
        "flops_per_step",
        "FLOPs/step",
        "count",
        "time",
        "Of one device, forward and backward: matrix products, convolutions, attention; two a multiply-add",
    ),
    Column(
        "achieved_tflops", "TFLOP/s", "rate", "time", "flops_per_step / step_us of one device, in 1e12 FLOPs per second"
    ),
    Column("mfu", "MFU", "share", "time", "Time of those FLOPs at the device's specified dense peak / step_us"),
    Column(
        "samples_per_s_without_wait",
        "samples/s w/o loader",
        "rate",
        "time",
        "Global batch over the median step without the wait for the loader",
    ),
    Column("block_count", "blocks", "count", "time", "Blocks behind the throughput"),
    Column("weak_speedup", "weak speedup", "ratio", "time", "N t_1(b) / t_N(b): same batch per device"),
    Column("weak_efficiency", "weak eff.", "share", "time", "t_1(b) / t_N(b)"),
    *_interval("weak_efficiency", "weak eff.", "share", "time"),
    Column("strong_speedup", "strong speedup", "ratio", "time", "t_1(G) / t_N(G/N): same global batch"),
    *_interval("strong_speedup", "strong speedup", "ratio", "time"),
    Column("strong_efficiency", "strong eff.", "share", "time", "strong speedup / N"),
    Column("steps_per_epoch", "steps/epoch", "count", "time", "Steps one epoch takes over the whole data set"),
    Column("traced_step_us", "traced step", "time", "communication", "Mean window of the traced steps"),
    *_interval("traced_step_us", "traced step", "time", "communication"),
    Column("traced_step_count", "traced steps", "count", "communication", "Rows (rank, device, step) behind the means"),
    Column("compute_us", "compute", "time", "communication", "Union of compute per device and step"),
    *_interval("compute_us", "compute", "time", "communication"),
    Column(
        "exposed_wait_us",
        "wait",
        "time",
        "communication",
        "Exposed communication in which a collective waits for a late rank and none transfers",
    ),
    *_interval("exposed_wait_us", "wait", "time", "communication"),
    Column(
        "exposed_transfer_us",
        "transfer",
        "time",
        "communication",
        "Exposed communication in which at least one matched collective transfers",
    ),
    *_interval("exposed_transfer_us", "transfer", "time", "communication"),
    Column(
        "exposed_other_us",
        "other",
        "time",
        "communication",
        "Exposed communication without a separate wait and transfer: broadcasts, reduces, copies, unmatched collectives",
    ),
    *_interval("exposed_other_us", "other", "time", "communication"),
    Column("idle_us", "idle", "time", "communication", "Neither compute nor communication"),
    *_interval("idle_us", "idle", "time", "communication"),
    Column(
        "tracer_us", "tracer", "time", "communication", "Untraced step minus traced step: negative if tracing slows it"
    ),
    *_interval("tracer_us", "tracer", "time", "communication"),
    Column("slowdown_us", "slowdown", "time", "communication", "Compute minus that of one device at the same batch"),
    *_interval("slowdown_us", "slowdown", "time", "communication"),
    Column(
        "contention_us", "contention", "time", "communication", "What hidden communication costs the compute next to it"
    ),
    *_interval("contention_us", "contention", "time", "communication"),
    Column(
        "contention_ratio",
        "contention ratio",
        "ratio",
        "communication",
        "Compute next to communication over the same compute on one device, or over the cell's own free kernels",
    ),
    *_interval("contention_ratio", "contention ratio", "ratio", "communication"),
    Column(
        "other_slowdown_us",
        "other slowdown",
        "time",
        "communication",
        "Slowdown minus contention: clocks, caches, host",
    ),
    *_interval("other_slowdown_us", "other slowdown", "time", "communication"),
    Column("communication_us", "comm.", "time", "communication", "Union of communication (dp-host: host copies)"),
    *_range("communication_us", "comm.", "time", "communication", RANK_RANGE, *_OF_RANKS),
    Column("hidden_us", "hidden", "time", "communication", "Communication while the device computes"),
    Column("exposed_us", "exposed", "time", "communication", "Communication while it does not: wait, transfer, other"),
    *_interval("exposed_us", "exposed", "time", "communication"),
    *_range("exposed_us", "exposed", "time", "communication", RANK_RANGE, *_OF_RANKS),
    Column(
        "transfer_us", "all transfers", "time", "communication", "Sum over collectives of the shortest rank's duration"
    ),
    Column("wait_us", "all waiting", "time", "communication", "Time in collectives spent waiting for a later rank"),
    Column("queue_us", "queue", "time", "communication", "Time gloo's collectives waited for a worker thread"),
    Column(
        "host_copy_us",
        "host copies",
        "time",
        "communication",
        "Copies from or to the host outside compute and communication",
    ),
    Column(
        "device_copy_us",
        "device copies",
        "time",
        "communication",
        "Copies within a device, and memsets, outside compute, communication and host copies",
    ),
    Column(
        "unlaunched_us",
        "not launched",
        "time",
        "communication",
        "Part of idle in which the host had launched nothing to run",
    ),
    Column(
        "critical_device",
        "critical device",
        "count",
        "communication",
        "Of a process with several devices (DataParallel): the one that is least idle, whose values the row gives",
    ),
    *(
        Column(f"{name}_device_mean_us", f"{heading} (mean)", "time", "communication", f"{what}: mean over all devices")
        for name, heading, what in (
            ("compute", "compute", "Compute"),
            ("communication", "comm.", "Communication"),
            ("exposed", "exposed", "Exposed communication"),
            ("idle", "idle", "Idle time"),
        )
    ),
    Column("data_us", "data", "time", "communication", "Compute of the phase that takes a batch from the loader"),
    Column("host_to_device_us", "to device", "time", "communication", "Time of copying a batch to the device"),
    Column("forward_us", "forward", "time", "communication", "Compute of the forward pass"),
    Column("backward_us", "backward", "time", "communication", "Compute of the backward pass, without communication"),
    Column("optimizer_us", "optimizer", "time", "communication", "Compute of the optimizer's step"),
    Column("communication_share", "comm. share", "share", "communication", "Communication / traced step"),
    Column("exposed_share", "exposed share", "share", "communication", "Exposed communication / traced step"),
    Column(
        "bytes_per_step",
        "bytes/step",
        "bytes",
        "communication",
        "Collectives' buffers per rank and step; DP by copies: bytes a device sends to others",
    ),
    Column("collectives_per_step", "collectives", "count", "communication", "Collectives per rank and step"),
    Column("algbw_gb_per_s", "algbw", "bandwidth", "communication", "All-reduce bytes / transfer (nccl-tests)"),
    Column("busbw_gb_per_s", "busbw", "bandwidth", "communication", "algbw x 2(N-1)/N (nccl-tests)"),
    Column(
        "same_local_batch_us",
        "same local batch",
        "time",
        "estimates",
        "t_N(b) - t_1(b): added wall time at the same batch per device",
    ),
    *_interval("same_local_batch_us", "same local", "time", "estimates"),
    Column(
        "same_local_batch_error_exposed_us",
        "minus exposed",
        "time",
        "estimates",
        "The estimate minus exposed communication",
    ),
    Column(
        "same_local_batch_error_communication_us",
        "minus all comm.",
        "time",
        "estimates",
        "The estimate minus all communication",
    ),
    Column("added_idle_us", "idle", "time", "estimates", "Of t_N(b)-t_1(b): change of idle"),
    Column(
        "added_tracer_us",
        "tracer",
        "time",
        "estimates",
        "The part of the untraced t_N(b)-t_1(b) that the traced windows do not explain",
    ),
    *_interval("added_idle_us", "idle", "time", "estimates", "that term's 95% interval"),
    *_interval("added_tracer_us", "tracer", "time", "estimates", "that term's 95% interval"),
    Column("added_data_wait_us", "loader", "time", "estimates", "Change of the mean wait for the loader, timed steps"),
    Column(
        "compute_spread",
        "compute spread",
        "share",
        "estimates",
        "Largest minus smallest mean compute of a device, over their mean",
    ),
    Column(
        "first_device_excess_us",
        "device 0 excess",
        "time",
        "estimates",
        "DP: compute of device 0 minus the mean of the other devices",
    ),
    Column(
        "ideal_split_us",
        "ideal split",
        "time",
        "estimates",
        "t_N(G/N) - t_1(G)/N: assumes that a step shrinks in proportion to its batch",
    ),
    Column(
        "ideal_split_error_exposed_us", "minus exposed", "time", "estimates", "The estimate minus exposed communication"
    ),
    Column(
        "ideal_split_error_communication_us",
        "minus all comm.",
        "time",
        "estimates",
        "The estimate minus all communication",
    ),
    Column(
        "same_total_us",
        "same total",
        "time",
        "estimates",
        "t_N(G/N) - t_1(G): negative as soon as parallel training pays off",
    ),
    Column(
        "same_total_error_exposed_us", "minus exposed", "time", "estimates", "The estimate minus exposed communication"
    ),
    Column(
        "same_total_error_communication_us",
        "minus all comm.",
        "time",
        "estimates",
        "The estimate minus all communication",
    ),
    Column(
        "ideal_split_local_batch_us",
        "local batch",
        "time",
        "estimates",
        "t_1(b) - t_1(G)/N: the error of ideal split, because a step does not shrink in proportion to its batch",
    ),
    Column(
        "same_total_local_batch_us",
        "local batch",
        "time",
        "estimates",
        "t_1(b) - t_1(G): the error of same total, because it compares different work per device",
    ),
    Column("same_local_batch_epoch_us", "same local batch", "time", "estimates", "T_N - T_1/N of an epoch at equal b"),
    Column("ideal_split_epoch_us", "ideal split", "time", "estimates", "T_N - T_1(G)/N of an epoch"),
    Column("same_total_epoch_us", "same total", "time", "estimates", "T_N - T_1(G) of an epoch"),
    Column("exposed_epoch_us", "exposed", "time", "estimates", "Exposed communication of an epoch's steps"),
    Column("communication_epoch_us", "comm.", "time", "estimates", "All communication of an epoch's steps"),
    Column("ring_us", "ring model", "time", "estimates", "Ring formula of gradients, or of all that FSDP moves"),
    Column("ring_error_us", "ring error", "time", "estimates", "Ring prediction minus transfer"),
    Column(
        "ring_source",
        "ring's rate",
        "text",
        "estimates",
        "specification: the link's, from --link or NVML; calibration: the calibrated bus bandwidth, where no link is known",
    ),
    Column("prediction_source", "from", "text", "predictions", "calibration, or the link's specification"),
    Column(
        "prediction_contention",
        "contention",
        "text",
        "predictions",
        "How much collectives in flight together, and computing beside them, slow them by the calibration, where that was used",
    ),
    Column(
        "predicted_transfer_us", "its prediction", "time", "predictions", "Predicted transfers (DP: all communication)"
    ),
    Column("predicted_transfer_error", "error", "share", "predictions", "Predicted over measured, minus 1"),
    Column("predicted_exposed_us", "its prediction", "time", "predictions", "Predicted exposed communication"),
    Column(
        "predicted_exposed_error",
        "error",
        "share",
        "predictions",
        "Predicted over measured exposed communication, minus 1",
    ),
    Column(
        "wire_bytes_per_step", "wire bytes", "bytes", "bandwidth", "Bytes a rank sends per step, by the bus factors"
    ),
    Column("subtraction_gb_per_s", "by subtraction", "bandwidth", "bandwidth", "Wire bytes / (t_N(b) - t_1(b))"),
    Column(
        "ring_subtraction_gb_per_s",
        "ring by subtraction",
        "bandwidth",
        "bandwidth",
        "Bytes of the ring formula / (t_N(b) - t_1(b)), which per epoch is T_N - T_1/N",
    ),
    Column(
        "communication_gb_per_s",
        "by comm.",
        "bandwidth",
        "bandwidth",
        "Wire bytes / all communication, waiting included",
    ),
    Column("transfer_gb_per_s", "by transfer", "bandwidth", "bandwidth", "Bus bandwidth of the all-reduces' transfers"),
    Column("link_gb_per_s", "link", "bandwidth", "bandwidth", "The link's specification, one way (--link, else NVML)"),
    Column(
        "calibrated_gb_per_s", "calibrated", "bandwidth", "bandwidth", "Rate of the same messages in the calibration"
    ),
    Column(
        "subtraction_of_link", "subtr. of link", "share", "bandwidth", "By subtraction, of the link's specification"
    ),
    Column(
        "communication_of_link", "comm. of link", "share", "bandwidth", "By communication, of the link's specification"
    ),
    Column("transfer_of_link", "transfer of link", "share", "bandwidth", "By transfer, of the link's specification"),
    Column(
        "subtraction_of_calibration", "subtr. of calib.", "share", "bandwidth", "By subtraction, of the calibration"
    ),
    Column(
        "communication_of_calibration", "comm. of calib.", "share", "bandwidth", "By communication, of the calibration"
    ),
    Column("transfer_of_calibration", "transfer of calib.", "share", "bandwidth", "By transfer, of the calibration"),
    Column("test_accuracy_percent", "test accuracy", "percent", "learning", "After training: median over seeds"),
    *_range(
        "test_accuracy_percent",
        "accuracy",
        "percent",
        "learning",
        VALUE_RANGE,
        "Lowest test accuracy of a seed",
        "Highest test accuracy of a seed",
    ),
    Column("test_accuracy_seeds", "seeds", "count", "learning", "Complete trainings behind the accuracy"),
    Column(
        "trained_global_batch_size",
        "trained with batch",
        "count",
        "learning",
        "Global batch of the trainings; where the cell's own was not trained, the one that was",
    ),
    Column("tracer_cost", "tracer cost", "ratio", "checks", "Median traced step / median untraced step"),
    Column("counter_span_ratio", "span/DDP's", "ratio", "checks", "Communication span by trace / by DDP's counters"),
    Column("counter_buckets_equal", "buckets equal", "flag", "checks", "All-reduce sizes are DDP's bucket sizes"),
    Column(
        "peak_allocated_bytes",
        "peak alloc.",
        "bytes",
        "checks",
        "Largest peak of torch's allocator on a device, tensors; NCCL's buffers lie outside",
    ),
    Column("state_bytes", "state", "bytes", "checks", "Parameters, buffers, optimizer state on a device between steps"),
    Column("compile_us", "compiling", "time", "checks", "Longest time that a rank of the cell spent compiling"),
    Column("compiled_parts", "compiled parts", "count", "checks", "Graphs compiled one by one, DDP's for each bucket"),
    Column(
        "peak_reserved_bytes",
        "peak reserved",
        "bytes",
        "checks",
        "Largest peak of torch's allocator on a device, its reserve; NCCL's buffers lie outside",
    ),
)
BY_NAME = {column.name: column for column in COLUMNS}
NAMES = tuple(column.name for column in COLUMNS)
