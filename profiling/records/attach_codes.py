"""Findings about an unchanged script measured by `dpscope attach`."""

from dpscope.profiling.records.finding import Code, FindingCode

WITHOUT_TORCHRUN = "one device without torchrun"
"""The job of `--devices single`, in findings about jobs."""


class AttachCode(FindingCode):
    SCRIPT_ENDED_EARLY = Code(
        "warning",
        meaning="The script ended before the measurement was complete; the results cover only the "
        "steps up to then.",
        action="attach with fewer --warmup and --steps, or let the script train longer",
    )
    SCRIPT_PROFILES = Code(
        "warning",
        meaning="The script's own profiler runs in most steps, and only one can run in a process: "
        "steps are timed with it, which makes them longer, and may not be traced.",
        action="disable the script's profiler, or read its traces with `dpscope analyze`",
    )
    BATCH_AS_SEEN = Code(
        "info",
        meaning="A script's batch size is inferred from what its model is called with: the first "
        "dimension of its first tensor, or the one that the tensors of a dictionary or list share.",
        action="set --batch-size if that is not the number of samples",
    )
    BATCH_NOT_SEEN = Code(
        "warning",
        meaning="The batch size could not be inferred, so every step counts as one sample per "
        "device: samples per second are steps.",
        action="set the samples per device and step with --batch-size",
    )
    BATCHES_DIFFER = Code(
        "warning",
        meaning="The ranks of a script train on different numbers of samples: those with more are "
        "late, and the others wait for them. Samples per second count all ranks' samples, and the "
        "batch per device is their mean.",
        action="give each rank the same number of samples (DistributedSampler gives equal shares), "
        "unless its device is as much faster",
    )
    STEPS_UNLIKE = Code(
        "warning",
        meaning="Some steps of a script do more than the others. Step times are medians of unlike "
        "steps, and perhaps none of the longer steps was traced.",
        action="end a step after a whole cycle of unlike ones: take the cycles from watch_steps "
        "and attach with --steps-by call",
    )
    STEPS_LEFT_OUT = Code(
        "info",
        meaning="Steps with work other than training, such as validation, and steps with another "
        "batch size are left out.",
        action="raise --steps if too few steps are left",
    )
    TRACED_BESIDE_OTHER_WORK = Code(
        "warning",
        meaning="The traced steps include work other than training, such as validation, which makes "
        "them longer.",
        action="attach again with other --warmup or --steps, so that the traced steps fall between "
        "two validations",
    )
    JOB_NOT_MEASURED = Code(
        "warning",
        meaning="A job ended before it was measured, so its cell is missing.",
        action="read the script's output, fix the cause and attach again",
    )
    TRAINED_ALONE = Code(
        "error",
        meaning="Several processes joined a process group but did not communicate: each trained its "
        "own model.",
        action="wrap the model in DistributedDataParallel or FSDP; PyTorch's examples do so only on "
        "GPUs",
    )
    SAME_INPUTS = Code(
        "warning",
        meaning="Processes trained on the same samples, so samples per second count them several "
        "times: each holds the whole model, or (tensor or pipeline parallelism) a part of one.",
        action="give each process its share of the data, as DistributedSampler does; ignore this "
        "for random inputs with one seed",
    )
