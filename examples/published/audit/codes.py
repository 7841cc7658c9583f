"""Findings about values that people derived from epoch times and printed."""

from dpscope.profiling.records.finding import FindingCode


class ClaimCode(FindingCode):
    """Findings about values that people derived from epoch times and printed."""

    DEVICES_COUNTED_TWICE = (
        "devices_counted_twice",
        "warning",
        "A speedup counts the devices twice: it multiplies a ratio of epoch times by their number.",
        "use T_1/T_N for epoch times; N t_1/t_N is for step times",
    )
    NEGATIVE_CLAIM = (
        "negative_claim",
        "warning",
        "A time or a rate is claimed negative.",
        "a negative time or rate shows that the method measures something else: use same_local_batch",
    )
    UNSOUND_SUBTRACTION = (
        "unsound_subtraction",
        "warning",
        "A subtraction at a fixed global batch compares different batches per device.",
        "subtract the time of one device at batch_size / devices",
    )
    BATCH_MEANING_CONTRADICTED = (
        "batch_meaning_contradicted",
        "warning",
        "The values of one study take its batch as global in one place and as per device in another.",
        "decide which one the runs used, by their steps per epoch, and compare at the same batch per device",
    )
    SUBTRACTION_CALLED_MEASURED = (
        "subtraction_called_measured",
        "warning",
        "A value that is called measured is the subtraction itself.",
        "read communication off a trace, and compare the subtraction with that",
    )
    OVERHEAD_AS_SERIAL_FRACTION = (
        "overhead_as_serial_fraction",
        "warning",
        "A communication share is taken as Amdahl's serial fraction.",
        "fit a scaling law to measured speedups, and predict no further than twice the largest count",
    )
    LIMIT_COMPARED_WITH_MEASUREMENT = (
        "limit_compared_with_measurement",
        "warning",
        "A measurement on N devices is compared with the limit for infinitely many.",
        "compare a measurement with a prediction for the same number of devices",
    )
    CLAIM_NOT_REPRODUCED = (
        "claim_not_reproduced",
        "warning",
        "A claimed value is not what its named method gives.",
        "print one digit more than is meant to be used",
    )
    CLAIM_TRUNCATED = (
        "claim_truncated",
        "info",
        "A claimed value's printed digits are cut off and not rounded.",
        "print one digit more than is meant to be used",
    )
    CLAIM_NOT_COMPUTABLE = (
        "claim_not_computable",
        "info",
        "A claimed value cannot be computed from the tables.",
        "add the rows it was derived from, or take it as stated",
    )
    ONE_VOLUME_PER_EPOCH = (
        "one_volume_per_epoch",
        "warning",
        "A bandwidth divides the volume of one step by the time of an epoch.",
        "multiply the volume of a step by the steps of an epoch",
    )
    ELEMENTS_AS_BYTES = (
        "elements_as_bytes",
        "warning",
        "A volume counts elements and calls them bytes.",
        "multiply the volume by 4 bytes",
    )
    IMPOSSIBLE_PEAK = (
        "impossible_peak",
        "warning",
        "A utilisation is of a peak that the hardware does not have.",
        "divide by the peak of the link that is there, or better by a calibrated rate",
    )
    RING_FOR_DP = (
        "ring_for_dp",
        "warning",
        "The ring volume is taken for DataParallel, which runs no all-reduce.",
        "use 2 S a step for DataParallel, or measure DistributedDataParallel",
    )
    VOLUME_MISMATCH = (
        "volume_mismatch",
        "warning",
        "A stated volume is not what a ring all-reduce of the model moves.",
        "take the volume from the parameters: 2(N-1)/N S",
    )
