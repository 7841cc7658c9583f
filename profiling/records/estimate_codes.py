"""Findings about tables of epoch times (`dpscope estimate`), which no trace supports."""

from dpscope.profiling.records.finding import Code, FindingCode


class EstimateCode(FindingCode):
    UNKNOWN_COLUMN = Code(
        "warning",
        meaning="The table has columns that dpscope does not know and does not use.",
        action="check their spelling",
    )
    UNKNOWN_STRATEGY = Code(
        "warning",
        meaning="The table has strategies that dpscope does not know. Each is a series; what it moves is "
        "unknown.",
        action="check their spelling",
    )
    NOTHING_TO_ESTIMATE = Code(
        "warning",
        meaning="The table has no row with several devices.",
        action="add rows with devices above 1, and keep the single-device rows",
    )
    ADDED_TIME_UNKNOWN = Code(
        "warning",
        meaning="The time that several devices add is unknown, or means something else, for the given "
        "reason.",
        action="complete the table as the reasons say",
    )
    CLOCK_TOO_COARSE = Code(
        "warning",
        meaning="The clock is too coarse for some values: it leaves open whether a time was added or "
        "saved, or a quarter of the added time.",
        action="time more epochs together, or with a finer clock",
    )
    SUPERLINEAR_SPEEDUP = Code(
        "warning",
        meaning="N devices are more than N times as fast as one.",
        action="the single-device time includes something the others do not: time both the same way",
    )
    DP_IS_NO_ALL_REDUCE = Code(
        "info",
        meaning="DataParallel runs no all-reduce, so the ring volume does not describe it.",
        action="model it as broadcast and reduce, or measure DistributedDataParallel",
    )
