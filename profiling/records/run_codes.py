"""Findings about a run: what was not measured, how far its numbers can be trusted, what they
mean.
"""

from dpscope.profiling.records.finding import Code, FindingCode


class RunCode(FindingCode):
    CELL_SKIPPED = Code(
        "info",
        meaning="A cell of the plan was left out.",
        action="choose other cells, such as smaller batches or fewer devices",
    )
    CELL_FAILED = Code(
        "error",
        meaning="A cell was not measured: it ran out of memory, crashed, exceeded its time limit or "
        "was interrupted, as the message states.",
        action="read the log of the repeat, fix the cause, and run again to retry it",
    )
    REPEATS_MISSING = Code(
        "warning",
        meaning="Some cells have fewer repeats than planned, or (an error) files of a measured "
        "repeat were lost, so it is left out.",
        action="run the same command again without --fresh: it measures only what is missing",
        other_severity="error",
    )
    FEW_SAMPLES = Code(
        "warning",
        meaning="A cell has too few timed steps for an interval, or every cell has only one repeat, "
        "so the spread between repeats is unknown and no comparison has an interval.",
        action="measure more steps (--steps)",
        of_many_cells=True,
    )
    WIDE_SPREAD = Code(
        "warning",
        meaning="The machine was not quiet: a cell's step times or the medians of its repeats differ "
        "by more than 10%, some steps took far longer than the others of their repeat, or the "
        "average over all steps is more than 5% from the median step. Tables show medians, which a "
        "few slow steps do not move.",
        action="close other programs and raise --repeats; small differences are not reliable",
        of_many_cells=True,
    )
    DRIFT = Code(
        "warning",
        meaning="Steps become longer or shorter in the course of a repeat, until they were traced, "
        "or within a round of all measured cells. Ratios and efficiency leave out a drift within a "
        "round.",
        action="warm up longer (--warmup), or monitor clocks and temperature",
        of_many_cells=True,
    )
    TRACER_COST = Code(
        "warning",
        meaning="Tracing made the steps considerably slower.",
        action="use the untraced step times; in traced steps rely only on the proportions",
        of_many_cells=True,
    )
    NOT_COMPILED = Code(
        "error",
        meaning="No graph of a cell's model was captured by torch.compile, so it ran uncompiled.",
        action="do not treat the cell as compiled; TORCH_LOGS=graph_breaks shows what stops "
        "torch.compile",
    )
    COMPILED_LATE = Code(
        "warning",
        meaning="Measured steps include compilation by torch.compile, which had not ended after the "
        "warm-up; in trainings (an info) the first epoch always does.",
        action="warm up longer (--warmup); if it persists, TORCH_LOGS=recompiles shows what changes "
        "from step to step",
        other_severity="info",
    )
    COUNTERS_NOT_COMPARED = Code(
        "error",
        meaning="DDP's own counters could not be compared with the trace, so this check was "
        "skipped.",
        action="measure the cell again before trusting its communication",
    )
    COUNTERS_DISAGREE = Code(
        "error",
        meaning="The trace and DDP's own counters disagree: on the sizes of the buckets, or on how "
        "long the communication takes.",
        action="do not trust the cell's communication until it has been measured again without a "
        "mismatch",
    )
    VARIANT_NOT_KEPT = Code(
        "error",
        meaning="The trace shows that an option of a variant had no effect or a different one.",
        action="do not treat the cell as that variant: DDP in this version of torch behaved "
        "differently",
    )
    STRATEGY_GAP = Code(
        "info",
        meaning="How much faster DDP or DataParallel is, with its interval, and where the "
        "difference lies.",
        action="the table of DP and DDP shows the parts of the difference",
    )
    STRATEGY_COST = Code(
        "info",
        meaning="What a strategy costs per step compared with a simpler one, and how much memory "
        "it saves per device: FSDP or replicate compared with DDP, and DDP on one device compared "
        "with the unwrapped model.",
        action="use it if you need the memory that it saves, or if it costs no time",
    )
    PREDICTION_OFF = Code(
        "info",
        meaning="A predicted communication time is far from the measured one. A warning if the "
        "prediction is based on a calibration.",
        action="see the table of collectives for those that are off",
        other_severity="warning",
    )
    ABOVE_PEAK = Code(
        "warning",
        meaning="A cell computes faster than the peak of its device, so its FLOPs, their precision "
        "or the peak do not apply.",
        action="with --flops: check that they are those of one step on one device, and their "
        "precision; without: convolutions may use an algorithm with fewer multiplications than are "
        "counted",
    )
    CALIBRATION_INCOMPLETE = Code(
        "info",
        meaning="The calibration lacks a collective that the run uses, NCCL's choices, or (a "
        "warning) how much collectives and compute slow each other down.",
        action="calibrate all collectives that the run uses",
        other_severity="warning",
    )
    CALIBRATION_NOISY = Code(
        "warning",
        meaning="The calibration was made on a machine that was not quiet: sizes of a collective that "
        "the run uses, predicted from the other sizes, are off by more than 50%.",
        action="close other programs, or raise --iterations, and calibrate again",
    )
    CALIBRATION_RESULTS_WRONG = Code(
        "warning",
        meaning="A calibration was read from a log in which nccl-tests found wrong results, so its "
        "times are those of collectives that did not work.",
        action="find the cause (driver, NCCL, links, memory), repeat the test until nothing is "
        "#wrong, and calibrate from that log",
    )
    STRONG_OR_WEAK = Code(
        "info",
        meaning="How strong and weak scaling compare on the same machine.",
        action="weak scaling multiplies the global batch by the number of devices, which may "
        "require another learning rate; strong scaling keeps the global batch, with less compute "
        "per device to hide communication",
    )
    TARGET_EFFICIENCY = Code(
        "info",
        meaning="Up to how many devices the target efficiency is reached. A warning if it is "
        "missed.",
        action="measure more repeats (--repeats) where it is not significant",
        other_severity="warning",
        of_many_cells=True,
    )
    STRAGGLER = Code(
        "warning",
        meaning="One rank arrives late at the collectives, and the others wait for it.",
        action="check what that rank does before its first all-reduce: data, other load, a slower "
        "device",
    )
    NO_OVERLAP = Code(
        "info",
        meaning="Little of a cell's communication is hidden behind compute. The message gives the "
        "reason that explains most exposed time. A warning on GPUs, and if the script causes it.",
        action="compare --overlap on,off and several values of --bucket-mb",
        script_action="try several values of DDP's bucket_cap_mb",
        other_severity="warning",
    )
    VARIANT_SAVES = Code(
        "info",
        meaning="What an option of a variant saves or costs, such as reducing gradients during the "
        "backward pass.",
        action="use the option where it saves time and its other effects are acceptable: "
        "docs/variants.md",
    )
    THREADS_DIFFER = Code(
        "warning",
        meaning="The processes of a run's cells use different numbers of threads, which also "
        "changes their step times.",
        action="set OMP_NUM_THREADS to the same number for every device count, and measure again in "
        "another folder",
    )
    NOT_COMPARED = Code(
        "warning",
        meaning="Cells of two compared runs cannot be called slower or faster: they have no "
        "interval, were not measured again, their repeats differ too much to show the slowdown that "
        "--fail-over tests for, or one run lacks parts of their traced steps.",
        action="measure the same cells in both runs, with two repeats or more (--repeats)",
    )


class NcclCode(FindingCode):
    """Findings about what NCCL chose: network, transports, algorithms, protocols."""

    SOCKETS_WITH_INFINIBAND = Code(
        "warning",
        meaning="NCCL found InfiniBand or RoCE devices, but ranks communicate over TCP sockets.",
        action="unset NCCL_IB_DISABLE and NCCL_NET, check that NCCL_IB_HCA names active ports on "
        "every host, and run again",
    )
    NO_GPU_DIRECT_RDMA = Code(
        "warning",
        meaning="NCCL uses InfiniBand or RoCE without GPUDirect RDMA: every message is copied "
        "through host memory.",
        action="load nvidia-peermem (or use a driver with DMA-BUF), check NCCL_NET_GDR_LEVEL, and "
        "run again",
    )
    NCCL_LOG_INCOMPLETE = Code(
        "info",
        meaning="Some lines of NCCL's log are cut off, have an unknown form, or state one rank's "
        "share of a collective whose number of ranks is unknown, so choices may be missing.",
        action="write one log per process with NCCL_DEBUG_FILE=nccl.%h.%p.log",
    )
