"""Findings about a run: what was not measured, how far its numbers can be trusted, what they
mean.
"""

from dpscope.profiling.records.finding import FindingCode


class RunCode(FindingCode):
    CELL_SKIPPED = (
        "info: A cell of the plan was left out. -> no action needed, or choose other cells"
    )
    CELL_OUT_OF_MEMORY = """error: A cell ran out of memory and was not measured.
        -> read the log of the repeat, use a smaller batch, and run again to retry it"""
    CELL_CRASHED = """error: A process of a cell failed, so the cell was not measured.
        -> read the log of the repeat, fix the cause, and run again to retry it"""
    CELL_TIMED_OUT = """error: A cell exceeded its time limit and was stopped before it was measured.
        -> read the log of the repeat, fix the cause, and run again to retry it"""
    CELL_INTERRUPTED = "error: The user stopped a cell before it was measured. -> run it again if this cell is needed"
    REPEAT_INCOMPLETE = """error: Files of a repeat were lost after it was measured, so it is left out.
        -> measure the cell again"""
    REPEATS_MISSING = """warning: Some cells have fewer repeats than others.
        -> run the same command again: it measures only what is missing"""
    SINGLE_REPEAT = """warning: Each cell was measured once, so the spread between repeats is unknown and no comparison has an
        interval.
        -> measure with --repeats 2 or more"""
    FEW_SAMPLES = """warning (of_many_cells): A cell has too few timed steps for an interval.
        -> time more steps (--steps)"""
    WIDE_SPREAD = """warning (of_many_cells): A cell's step times vary widely around their median.
        -> close other programs and raise --steps or --repeats; small differences are not reliable"""
    THROUGHPUT_DIFFERS = """warning (of_many_cells): The throughput of whole blocks differs from that of the median step by more
        than 5%.
        -> tables show that of the median step; some steps are far longer or shorter, see wide_spread and outliers"""
    REPEATS_DIFFER = """warning (of_many_cells): The repeats of a cell have different medians.
        -> something changed between repeats (clocks, other load): raise --repeats"""
    DRIFT = """warning (of_many_cells): Steps become longer or shorter in the course of a repeat.
        -> warm up longer (--warmup), or monitor clocks and temperature"""
    OUTLIERS = """warning (of_many_cells): Some steps took far longer than the others of their repeat.
        -> a few outliers do not move the median; if there are many, look for background load (other processes, garbage
        collection, checkpoints)"""
    TRACER_COST = """warning (of_many_cells): Tracing made the steps considerably slower.
        -> use the untraced step times; in traced steps rely only on the proportions"""
    NOT_COMPILED = """error: No graph of a cell's model was captured by torch.compile, so it ran uncompiled.
        -> do not treat the cell as compiled; TORCH_LOGS=graph_breaks shows what stops torch.compile"""
    COMPILED_LATE = """warning: Compilation by torch.compile had not ended after warm-up, so the measured steps include it.
        -> warm up longer (--warmup); if it persists, TORCH_LOGS=recompiles shows what changes from step to step"""
    COUNTERS_NOT_COMPARED = """error: DDP's own counters could not be compared with the trace, so the self-check was skipped.
        -> measure the cell again before trusting its communication"""
    BUCKET_MISMATCH = """error: The all-reduces in the trace do not have the sizes of DDP's buckets.
        -> trust the cell's communication numbers only after measuring it again without a mismatch"""
    SPAN_EXCEEDED = """error: The all-reduces in the trace take longer than DDP's own communication span.
        -> trust the cell's communication numbers only after measuring it again without a mismatch"""
    SPAN_MISMATCH = """error: The communication span in the trace and DDP's own differ.
        -> trust the cell's communication numbers only after measuring it again without a mismatch"""
    ENGINE_HIDES_NOTHING = """warning: DDP hides none of its communication on torch 2.15's NCCL engine, which may make it wait
        (not confirmed on hardware).
        -> Measure --nccl-engine default,legacy, or set TORCH_DIST_USE_NCCL2=0, and compare."""
    VARIANT_NOT_KEPT = """error: The trace shows that an option of a variant had no effect or a different one.
        -> do not treat the cell as that variant: DDP in this version of torch behaved differently"""
    STRATEGY_GAP = """info: How much faster DDP or DataParallel is, with its interval, and where the difference lies.
        -> the table of DP and DDP shows the parts of the difference"""
    STRATEGIES_NOT_COMPARED = """info: DP and DDP were measured with too few repeats to determine which one is faster.
        -> time at least two repeats (--repeats) with at least five steps in total (--steps)"""
    STRATEGY_COST = """info: What FSDP or replicate costs per step compared with DDP on the same devices, and how much memory it
        saves per device.
        -> use it if you need the memory that it saves, or if it costs no time"""
    DDP_ALONE = """info: What DDP costs on one device, before anything is communicated: its hooks, buckets and copies of
        gradients.
        -> no action needed; --gradient-as-bucket-view and --static-graph may lower it"""
    COMMUNICATION_MEASURED = """info (in_tables): How long a cell communicates in a step, and how much of that is hidden behind
        compute or exposed.
        -> at most the exposed time can be saved, and a faster link does not shorten the waiting in it"""
    ESTIMATES = """info (in_tables): How far the subtraction estimates are from the measured values.
        -> the subtractions include changes of compute and idle time: use the measured columns"""
    PREDICTION_OFF = """varying: A predicted communication time is far from the measured one. A warning if the prediction is
        based on a calibration.
        -> compare with a cell whose communication does not overlap compute (--overlap off)"""
    ABOVE_PEAK = """warning: A cell computes faster than the peak of its device, so its FLOPs, their precision or the peak do
        not apply.
        -> with --flops: check that they are those of one step on one device, and their precision; without: convolutions may use
        an algorithm with fewer multiplications than are counted"""
    CALIBRATION_INCOMPLETE = """info: The calibration lacks a collective that the run uses, so exposed communication is not
        predicted there.
        -> calibrate all collectives that the run uses"""
    CALIBRATION_RESULTS_WRONG = """warning: A calibration was read from a log in which nccl-tests found wrong results, so its
        times are those of collectives that did not work.
        -> find the cause (driver, NCCL, links, memory), repeat the test until nothing is #wrong, and calibrate from that log"""
    COLLECTIVE_CLIFF = """warning: A collective's time at one device count and size is far from that at neighbouring ones, and
        cannot be extrapolated.
        -> repeat that measurement; if it persists, avoid the size (another --bucket-mb) or try another protocol (NCCL_PROTO)"""
    CALIBRATION_OTHER_ENGINE = """info: Cells used a different NCCL engine of torch than the calibration that predicts them.
        -> calibrate with the engine that the cells use: run dpscope calibrate with TORCH_DIST_USE_NCCL2=0 (ProcessGroupNCCL) or
        =1 (ProcessGroupNCCL2)"""
    STRONG_OR_WEAK = """info: How strong and weak scaling compare on the same machine.
        -> weak scaling multiplies the global batch by the number of devices, which may require another learning rate; strong
        scaling keeps the global batch, with less compute per device to hide communication"""
    TARGET_EFFICIENCY = """varying (of_many_cells): Up to how many devices the target efficiency is reached. A warning if it is
        missed.
        -> use fewer devices, a larger batch per device, or find out what the exposed time is spent on"""
    STRAGGLER = """warning: One rank arrives late at the collectives, and the others wait for it.
        -> check what that rank does before its first all-reduce: data, other load, a slower device"""
    NO_OVERLAP = """varying: Little of a cell's communication is hidden behind compute. The message lists each reason that the
        traces show, with the measured number. A warning on GPUs, and if the script causes it.
        -> the traces do not show why: compare --overlap on,off and several values of --bucket-mb"""
    OVERLAP_SAVES = """info: What reducing gradients during the backward pass saves or costs.
        -> compare DP with the cell without overlap, since DP does not overlap either"""
    VARIANT_SAVES = """info: What an option of a variant saves or costs.
        -> use the option where it saves time and its other effects are acceptable: docs/variants.md"""
    CPU_CONCURRENCY = """info: On a CPU, compute and communication share the cores, so hidden communication slows both.
        -> measure on GPUs before drawing conclusions about GPUs"""
    DP_HOST_STAND_IN = """info: dp-host is dpscope's stand-in for nn.DataParallel on a machine without a GPU.
        -> it shows how DP works, not how fast DP is"""
    LOADER_WORKERS = """info: Each process has its own loader workers, so DDP has more of them than DP.
        -> use --workers-total to keep the total equal"""
    THREADS = """info: How many threads each process computes with.
        -> no action needed: it makes the strategies comparable"""
    THREADS_DIFFER = """warning: The processes of a run's cells use different numbers of threads, which also changes their step
        times.
        -> set OMP_NUM_THREADS to the same number for every device count, and measure again in another folder"""
    SYNTHETIC_EPOCHS = """info: Synthetic epochs consist of whole batches, so they are longer than the data set by up to one
        batch.
        -> if that matters, choose --samples divisible by every global batch"""
    NOT_COMPARED = """warning: Step times of two compared runs have no interval, so they can be called neither slower nor
        faster.
        -> time two repeats or more in both runs (--repeats)"""
    CHANGE_NOT_VISIBLE = """warning: The slowdown that --fail-over tests for could not be detected in some cells: their repeats
        differ too much.
        -> measure more repeats in both runs (--repeats, --detect), or test for a larger change (--fail-over)"""
    CELLS_LOST = """warning: Cells were measured in the first of two compared runs but not in the second: whether they became
        slower is unknown.
        -> measure the same cells in both runs, or find out why they failed in the second"""


class NcclCode(FindingCode):
    """Findings about what NCCL chose: network, transports, algorithms, protocols."""

    SOCKETS_WITH_INFINIBAND = """warning: NCCL found InfiniBand or RoCE devices, but ranks communicate over TCP sockets.
        -> unset NCCL_IB_DISABLE and NCCL_NET, check that NCCL_IB_HCA names active ports on every host, and run again"""
    NO_GPU_DIRECT_RDMA = """warning: NCCL uses InfiniBand or RoCE without GPUDirect RDMA: every message is copied through host
        memory.
        -> load nvidia-peermem (or use a driver with DMA-BUF), check NCCL_NET_GDR_LEVEL, and run again"""
    NCCL_LOG_INCOMPLETE = """info: Some lines of NCCL's log are cut off, have an unknown form, or state one rank's share of
        a collective whose number of ranks is unknown, so choices may be missing.
        -> write one log per process with NCCL_DEBUG_FILE=nccl.%h.%p.log"""
    NCCL_CHOICES_NOT_READ = """info: The calibration did not record which algorithms NCCL chose.
        -> unset NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE and calibrate again, or pass a log with --nccl-log"""
