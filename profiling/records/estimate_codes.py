"""Findings about tables of epoch times (`dpscope estimate`), which no trace supports."""

from dpscope.profiling.records.finding import FindingCode


class EstimateCode(FindingCode):
    UNKNOWN_COLUMN = """warning: The table has columns that dpscope does not know and does not use.
        -> check their spelling"""
    NOTHING_TO_ESTIMATE = """warning: The table has no row with several devices.
        -> add rows with devices above 1, and keep the single-device rows"""
    ADDED_TIME_UNKNOWN = """warning: The time that several devices add is unknown, or means something else, for the given reason.
        -> set batch_size_is, and time one device at the same batch per device, with the same run, model and dataset"""
    CLOCK_TOO_COARSE = """warning: The clock is too coarse for some values: it leaves open whether a time was added or saved, or a
        quarter of the added time.
        -> time more epochs together, or with a finer clock"""
    SUPERLINEAR_SPEEDUP = """warning: N devices are more than N times as fast as one.
        -> the single-device time includes something the others do not: time both the same way"""
    DP_IS_NO_ALL_REDUCE = """info: DataParallel runs no all-reduce, so the ring volume does not describe it.
        -> model it as broadcast and reduce, or measure DistributedDataParallel"""
