"""Findings about a run: what was not measured, how far its numbers can be trusted, what they mean."""

from dpscope.profiling.records.finding import FindingCode


class RunCode(FindingCode):
    """Findings about a run: what was not measured, how far its numbers can be trusted, what they mean."""

    CELL_SKIPPED = (
        "cell_skipped",
        "info",
        "A cell of the plan was left out.",
        "nothing to do, or choose other cells",
    )
    CELL_OUT_OF_MEMORY = (
        "cell_out_of_memory",
        "error",
        "A cell's memory did not suffice, so that it was not measured.",
        "read the log of the repeat, use a smaller batch, and run again to retry it",
    )
    CELL_CRASHED = (
        "cell_crashed",
        "error",
        "A process of a cell ended with an error, so that the cell was not measured.",
        "read the log of the repeat, mend the cause, and run again to retry it",
    )
    CELL_TIMED_OUT = (
        "cell_timed_out",
        "error",
        "A cell took longer than its time limit and was ended, unmeasured.",
        "read the log of the repeat, mend the cause, and run again to retry it",
    )
    CELL_INTERRUPTED = (
        "cell_interrupted",
        "error",
        "A cell was stopped by its user, so that it was not measured.",
        "nothing is to be mended",
    )
    REPEAT_INCOMPLETE = (
        "repeat_incomplete",
        "error",
        "Files of a repeat were lost after it was measured, so that it is left out.",
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
        "Each cell was measured once, so how far repeats lie apart is unknown: there is no interval and no verdict.",
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
        "medians bear a few; if there are many, find what interrupts (other processes, checkpoints, garbage "
        "collection)",
        "of_many_cells",
    )
    TRACER_COST = (
        "tracer_cost",
        "warning",
        "Tracing made the steps notably slower.",
        "trust the untraced step times; traced times are right in proportion only",
        "of_many_cells",
    )
    COUNTERS_NOT_COMPARED = (
        "counters_not_compared",
        "error",
        "DDP's own counters could not be compared with the trace, so the self-check did not take place.",
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
    VARIANT_NOT_KEPT = (
        "variant_not_kept",
        "error",
        "The trace shows that an option of a variant had no effect or another effect.",
        "do not read the cell as that variant: this torch's DDP did something else",
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
    COMMUNICATION_MEASURED = (
        "communication_measured",
        "info",
        "What a cell's communication takes in a step, how much of it is hidden behind compute and how much is exposed.",
        "exposed time is what faster links, larger batches or more overlap could win",
        "in_tables",
    )
    ESTIMATES = (
        "estimates",
        "info",
        "How far the subtraction estimates are from what the traces show.",
        "the subtractions also hold what compute and idle time changed: use the measured columns",
        "in_tables",
    )
    PREDICTION_OFF = (
        "prediction_off",
        None,
        "A predicted communication time is far from the measured one. A warning where the prediction rests on a "
        "calibration.",
        "compare with a cell whose communication does not run under compute (--overlap off)",
    )
    CALIBRATION_INCOMPLETE = (
        "calibration_incomplete",
        "info",
        "The calibration lacks a collective that the run uses, so exposed communication is not predicted there.",
        "calibrate all that the run uses",
    )
    STRONG_OR_WEAK = (
        "strong_or_weak",
        "info",
        "How strong and weak scaling compare on the same machine.",
        "weak scaling multiplies the global batch by the number of devices, which may need another learning rate; "
        "strong scaling trains as before, with less work per device to hide communication behind",
    )
    AMDAHL_MISUSE = (
        "amdahl_misuse",
        "info",
        "What Amdahl's law gives with the exposed share as its serial fraction, which it is not.",
        "do not compute speedups so: exposed communication is a cost added to each step on N devices, not work "
        "that one device does alone; it is not there at N = 1, it changes with N, and it is not all that is added",
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
    OVERLAP_SAVES = (
        "overlap_saves",
        "info",
        "What reducing gradients during backward saves or costs.",
        "set DP beside the cell without overlap for a fair match",
    )
    VARIANT_SAVES = (
        "variant_saves",
        "info",
        "What an option of a variant saves or costs.",
        "use the option where it saves and where what else it changes is welcome: docs/variants.md",
    )
    CPU_CONCURRENCY = (
        "cpu_concurrency",
        "info",
        "On the CPU computing and communicating share the cores, so hidden communication slowed both.",
        "measure on GPUs before deciding anything about GPUs",
    )
    DP_HOST_STAND_IN = (
        "dp_host_stand_in",
        "info",
        "dp-host is dpscope's stand-in for nn.DataParallel on a machine without a GPU.",
        "read it for how DP works, not for how fast DP is",
    )
    LOADER_WORKERS = (
        "loader_workers",
        "info",
        "Each process has loader workers of its own, so DDP has more of them than DP.",
        "give --workers-total to hold the sum equal",
    )
    THREADS = (
        "threads",
        "info",
        "How many threads each process computes with.",
        "nothing to do: it makes the strategies comparable",
    )
    SYNTHETIC_EPOCHS = (
        "synthetic_epochs",
        "info",
        "Synthetic epochs hold whole batches only, so they are longer than the data set by up to a batch.",
        "compare epochs of a --samples that every global batch divides, if that much matters",
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
    CELLS_LOST = (
        "cells_lost",
        "warning",
        "Cells were measured in the first of two compared runs and not in the second: whether they got slower is unknown.",
        "measure the same cells in both runs, or see why they failed there",
    )
