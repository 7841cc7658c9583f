"""Findings about a run: what was not measured, how far its numbers can be trusted, what they mean."""

from dpscope.profiling.records.finding import FindingCode


class RunCode(FindingCode):
    """Findings about a run: what was not measured, how far its numbers can be trusted, what they mean."""

    CELL_SKIPPED = (
        "cell_skipped",
        "info",
        "A cell of the plan was left out.",
        "no action needed, or choose other cells",
    )
    CELL_OUT_OF_MEMORY = (
        "cell_out_of_memory",
        "error",
        "A cell ran out of memory and was not measured.",
        "read the log of the repeat, use a smaller batch, and run again to retry it",
    )
    CELL_CRASHED = (
        "cell_crashed",
        "error",
        "A process of a cell failed, so the cell was not measured.",
        "read the log of the repeat, fix the cause, and run again to retry it",
    )
    CELL_TIMED_OUT = (
        "cell_timed_out",
        "error",
        "A cell exceeded its time limit and was stopped before it was measured.",
        "read the log of the repeat, fix the cause, and run again to retry it",
    )
    CELL_INTERRUPTED = (
        "cell_interrupted",
        "error",
        "The user stopped a cell before it was measured.",
        "no action needed",
    )
    REPEAT_INCOMPLETE = (
        "repeat_incomplete",
        "error",
        "Files of a repeat were lost after it was measured, so it is left out.",
        "measure the cell again",
    )
    REPEATS_MISSING = (
        "repeats_missing",
        "warning",
        "Some cells rest on fewer repeats than the others.",
        "give the run's command again: it measures what is missing and nothing else",
    )
    SINGLE_REPEAT = (
        "single_repeat",
        "warning",
        "Each cell was measured once, so the spread between repeats is unknown and no comparison has an interval.",
        "measure with --repeats 2 or more",
    )
    FEW_SAMPLES = (
        "few_samples",
        "warning",
        "A cell has too few timed steps for an interval.",
        "time more steps (--steps)",
        "of_many_cells",
    )
    WIDE_SPREAD = (
        "wide_spread",
        "warning",
        "A cell's step times spread widely around their median.",
        "close other programs, raise --steps or --repeats; small differences cannot be trusted",
        "of_many_cells",
    )
    THROUGHPUT_DIFFERS = (
        "throughput_differs",
        "warning",
        "The throughput of whole blocks differs from that of the median step by more than 5%.",
        "tables show the median step's; some steps of the blocks are far longer or shorter, see wide_spread and outliers",
        "of_many_cells",
    )
    REPEATS_DIFFER = (
        "repeats_differ",
        "warning",
        "The repeats of a cell have different medians.",
        "something changed between repeats (clocks, other load): raise --repeats",
        "of_many_cells",
    )
    DRIFT = (
        "drift",
        "warning",
        "Steps grow longer or shorter from the beginning of a repeat to its end.",
        "warm up longer (--warmup), or watch clocks and temperature",
        "of_many_cells",
    )
    OUTLIERS = (
        "outliers",
        "warning",
        "Some steps took far longer than the others of their repeat.",
        "a few outliers do not move the median; if there are many, look for background load (other processes, garbage "
        "collection, checkpoints)",
        "of_many_cells",
    )
    TRACER_COST = (
        "tracer_cost",
        "warning",
        "Tracing made the steps notably slower.",
        "use the untraced step times; of traced times trust only the proportions",
        "of_many_cells",
    )
    NOT_COMPILED = (
        "not_compiled",
        "error",
        "No graph of a cell's model was captured by torch.compile: it ran as if it had not been compiled.",
        "do not treat the cell as compiled; TORCH_LOGS=graph_breaks shows what stops torch.compile",
    )
    COMPILED_LATE = (
        "compiled_late",
        "warning",
        "After warm-up torch.compile was still compiling, so measured steps hold the time of it.",
        "warm up longer (--warmup); if it goes on, TORCH_LOGS=recompiles shows what changes from step to step",
    )
    COUNTERS_NOT_COMPARED = (
        "counters_not_compared",
        "error",
        "DDP's own counters could not be compared with the trace, so the self-check was skipped.",
        "measure the cell again before trusting its communication",
    )
    BUCKET_MISMATCH = (
        "bucket_mismatch",
        "error",
        "The all-reduces in the trace do not have the sizes of DDP's buckets.",
        "trust the cell's communication numbers only after measuring it again without a mismatch",
    )
    SPAN_EXCEEDED = (
        "span_exceeded",
        "error",
        "The all-reduces in the trace take longer than DDP's own communication span.",
        "trust the cell's communication numbers only after measuring it again without a mismatch",
    )
    SPAN_MISMATCH = (
        "span_mismatch",
        "error",
        "The communication span in the trace and DDP's own differ.",
        "trust the cell's communication numbers only after measuring it again without a mismatch",
    )
    ENGINE_HIDES_NOTHING = (
        "engine_hides_nothing",
        "warning",
        "DDP hides none of its communication on torch 2.15's NCCL engine, which may make it wait (not confirmed on hardware).",
        "Measure --nccl-engine default,legacy, or set TORCH_DIST_USE_NCCL2=0, and compare.",
    )
    VARIANT_NOT_KEPT = (
        "variant_not_kept",
        "error",
        "The trace shows that an option of a variant had no effect or another effect.",
        "do not treat the cell as that variant: DDP in this torch did something else",
    )
    STRATEGY_GAP = (
        "strategy_gap",
        "info",
        "How much faster DDP or DataParallel is, with its interval, and where the difference lies.",
        "read the table of DP and DDP for the parts of the difference",
    )
    STRATEGIES_NOT_COMPARED = (
        "strategies_not_compared",
        "info",
        "DP and DDP were measured by too few repeats to say which one is faster.",
        "time two repeats or more (--repeats), of five steps in all or more (--steps)",
    )
    STRATEGY_COST = (
        "strategy_cost",
        "info",
        "What FSDP or replicate costs per step compared with DDP on the same devices, and how much memory it saves per device.",
        "use it if you need the memory it saves, or if it costs no time",
    )
    DDP_ALONE = (
        "ddp_alone",
        "info",
        "What DDP costs on one device, before anything is communicated: its hooks, buckets and copies of gradients.",
        "no action needed; --gradient-as-bucket-view and --static-graph may lower it",
    )
    COMMUNICATION_MEASURED = (
        "communication_measured",
        "info",
        "What a cell's communication takes in a step, how much of it is hidden behind compute and how much is exposed.",
        "at most the exposed time can be saved, and a faster link does not shorten the waiting in it",
        "in_tables",
    )
    ESTIMATES = (
        "estimates",
        "info",
        "How far the subtraction estimates are from what the traces show.",
        "the subtractions include changes of compute and idle time: use the measured columns",
        "in_tables",
    )
    PREDICTION_OFF = (
        "prediction_off",
        None,
        "A predicted communication time is far from the measured one. A warning where the prediction rests on a "
        "calibration.",
        "compare with a cell whose communication does not overlap compute (--overlap off)",
    )
    CALIBRATION_INCOMPLETE = (
        "calibration_incomplete",
        "info",
        "The calibration lacks a collective that the run uses, so exposed communication is not predicted there.",
        "calibrate all that the run uses",
    )
    COLLECTIVE_CLIFF = (
        "collective_cliff",
        "warning",
        "A collective's time on one count and size is far from that of neighbouring sizes and counts; no law extends it.",
        "repeat that measurement; if it stays, avoid the size (another --bucket-mb) or try another protocol (NCCL_PROTO)",
    )
    CALIBRATION_OTHER_ENGINE = (
        "calibration_other_engine",
        "info",
        "Cells ran on a different one of torch's NCCL engines than the calibration that predicts them.",
        "calibrate on the engine that the cells use: run dpscope calibrate with TORCH_DIST_USE_NCCL2=0 (ProcessGroupNCCL) or =1 "
        "(ProcessGroupNCCL2)",
    )
    STRONG_OR_WEAK = (
        "strong_or_weak",
        "info",
        "How strong and weak scaling compare on the same machine.",
        "weak scaling multiplies the global batch by the number of devices, which may need another learning rate; "
        "strong scaling trains as before, with less work per device to hide communication behind",
    )
    TARGET_EFFICIENCY = (
        "target_efficiency",
        None,
        "Up to how many devices the asked efficiency is reached. A warning where it is missed.",
        "use fewer devices, a larger batch per device, or find what the exposed time is spent on",
        "of_many_cells",
    )
    STRAGGLER = (
        "straggler",
        "warning",
        "One rank is late to the collectives, and the others wait for it.",
        "see what that rank does before its first all-reduce: data, other load, a slower device",
    )
    NO_OVERLAP = (
        "no_overlap",
        None,
        "Little of a cell's communication is hidden behind compute. The message gives each reason that the traces show, with its "
        "number. A warning on GPUs, and where the cause lies in the script.",
        "the traces do not show why: compare --overlap on,off and several values of --bucket-mb",
    )
    OVERLAP_SAVES = (
        "overlap_saves",
        "info",
        "What reducing gradients during backward saves or costs.",
        "compare DP with the cell without overlap: that is the fair match",
    )
    VARIANT_SAVES = (
        "variant_saves",
        "info",
        "What an option of a variant saves or costs.",
        "use the option where it saves time and its other effects are acceptable: docs/variants.md",
    )
    CPU_CONCURRENCY = (
        "cpu_concurrency",
        "info",
        "On a CPU, computing and communicating share the cores, so hidden communication slowed both.",
        "measure on GPUs before deciding anything about GPUs",
    )
    DP_HOST_STAND_IN = (
        "dp_host_stand_in",
        "info",
        "dp-host is dpscope's stand-in for nn.DataParallel on a machine without a GPU.",
        "it shows how DP works, not how fast DP is",
    )
    LOADER_WORKERS = (
        "loader_workers",
        "info",
        "Each process has loader workers of its own, so DDP has more of them than DP.",
        "use --workers-total to keep the total equal",
    )
    THREADS = (
        "threads",
        "info",
        "How many threads each process computes with.",
        "no action needed: it makes the strategies comparable",
    )
    THREADS_DIFFER = (
        "threads_differ",
        "warning",
        "The processes of a run's cells compute with different numbers of threads, so step times differ by that too.",
        "set OMP_NUM_THREADS to the same number for every device count, and measure again in another folder",
    )
    SYNTHETIC_EPOCHS = (
        "synthetic_epochs",
        "info",
        "Synthetic epochs hold whole batches only, so they are longer than the data set by up to a batch.",
        "compare epochs of a --samples that every global batch divides, if that difference matters",
    )
    NOTHING_COMPARED = (
        "nothing_compared",
        "warning",
        "No step of two compared runs has an interval, so none can be called slower or faster.",
        "time two repeats or more in both runs (--repeats)",
    )
    PARTLY_COMPARED = (
        "partly_compared",
        "warning",
        "Some steps of two compared runs have no interval, so these can be called neither slower nor faster.",
        "time two repeats or more in both runs (--repeats)",
    )
    CHANGE_NOT_VISIBLE = (
        "change_not_visible",
        "warning",
        "The slowdown that a comparison judges (--fail-over) would not show in some cells: their repeats differ too much.",
        "measure more repeats in both runs (--repeats, --detect), or judge a larger change (--fail-over)",
    )
    CELLS_LOST = (
        "cells_lost",
        "warning",
        "Cells were measured in the first of two compared runs and not in the second: whether they got slower is unknown.",
        "measure the same cells in both runs, or see why they failed there",
    )
