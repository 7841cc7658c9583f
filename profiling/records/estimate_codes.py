"""Findings about tables of epoch times (`dpscope estimate`), which no trace supports."""

from dpscope.profiling.records.finding import FindingCode


class EstimateCode(FindingCode):
    UNKNOWN_COLUMN = """warning: The table has columns that dpscope does not know and does not use.
        -> check their spelling"""
    RESOLUTION_UNKNOWN = """info: The table does not give its clock's resolution, so times are taken as exact.
        -> add resolution_s, the last printed digit or the clock's resolution in seconds"""
    NOTHING_TO_ESTIMATE = """warning: The table has no row with several devices.
        -> add rows with devices above 1, and keep the single-device rows"""
    OUT_OF_MEMORY = """info: Some rows ran out of memory and have no time, so their comparisons are unknown.
        -> compare at the largest batch that fits on one device"""
    BATCH_MEANING_UNKNOWN = """warning: Some rows do not say whether their batch is global or per device.
        -> set batch_size_is to global or per_device; a sound baseline depends on it"""
    STEPS_CONTRADICT_BATCH = """warning: The number of steps contradicts a row's batch_size_is.
        -> correct batch_size_is or the steps"""
    EPOCH_LENGTH_UNKNOWN = """warning: An epoch may hold the same samples on several devices as on one, or the same steps, and
        thus N times the samples.
        -> add a column samples_per_epoch or steps_per_epoch"""
    BATCH_EXCEEDS_DATASET = """warning: A batch is larger than the data set, so no step had the batch that the table gives.
        -> remove these rows, or correct their batch size"""
    RUNS_DIFFER = """warning: Runs of the same setting have different times.
        -> add a column nodes if their numbers of nodes differ; else repeat each run and show the spread, as smaller differences
        may be chance"""
    CLOCK_TOO_COARSE = """warning: The clock is too coarse for some values: it leaves open whether a time was added or saved, or a
        quarter of the added time.
        -> time more epochs together, or with a finer clock"""
    NO_SAME_LOCAL_BASELINE = """warning: No single-device time at the same batch per device was measured, so the added time is
        unknown.
        -> time one device at the same batch per device, with the same run, model and dataset"""
    SUPERLINEAR_SPEEDUP = """warning: N devices are more than N times as fast as one.
        -> the single-device time includes something the others do not: time both the same way"""
    DP_IS_NO_ALL_REDUCE = """info: DataParallel runs no all-reduce, so the ring volume does not describe it.
        -> model it as broadcast and reduce, or measure DistributedDataParallel"""
    TIMES_TYPED = """warning: Times were typed by hand, and the output of the runs is not available.
        -> publish the output of the runs"""
    UNEVEN_EPOCH = """info: The last batch of an epoch is far from full, so N devices take more than 1/N of the steps.
        -> compare times per step, or samples that divide by the global batch"""
    NEGATIVE_COMMUNICATION = """warning: A subtraction gives a negative time, so it cannot be communication.
        -> compare with one device at the same batch per device (same_local_batch)"""
