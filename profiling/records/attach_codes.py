"""Findings about an unchanged script measured by `dpscope attach`."""

from dpscope.profiling.records.finding import FindingCode

WITHOUT_TORCHRUN = "one device without torchrun"
"""The job of `--devices single`, in findings about jobs."""


class AttachCode(FindingCode):
    SCRIPT_ENDED_EARLY = """warning: The script ended before the measurement was complete; the results cover only the steps up
        to then.
        -> attach with fewer --warmup and --steps, or let the script train longer"""
    SHORT_WARM_UP = """warning: The script was measured after fewer than 5 warm-up steps, in which DDP rebuilds its buckets and
        caches fill.
        -> let the script train longer, and attach with --warmup 5 or more"""
    SCRIPT_PROFILES = """warning: The script's own profiler runs in most steps, and only one can run in a process: steps are
        timed with it, which makes them longer, and may not be traced.
        -> disable the script's profiler, or read its traces with `dpscope analyze`"""
    DATA_PARALLEL_DID_NOTHING = """info: The script's nn.DataParallel had at most one GPU, so it only calls its model: the cell
        is a single device.
        -> measure where torch can use several GPUs, or use dpscope's stand-in: dpscope run --strategy dp"""
    BATCH_AS_SEEN = """info: A script's batch size is inferred from what its model is called with: the first dimension of its
        first tensor, or the one number of samples for which all its lists and dictionaries of tensors may stand.
        -> set --batch-size if that is not the number of samples"""
    BATCH_NOT_SEEN = """warning: The batch size could not be inferred, so every step counts as one sample per device: samples
        per second are steps.
        -> set the samples per device and step with --batch-size"""
    BATCHES_DIFFER = """warning: The ranks of a script train on different numbers of samples: those with more are late, and the
        others wait for them. Samples per second count all ranks' samples, and the batch per device is their mean.
        -> give each rank the same number of samples, unless its device is as much faster
        (DistributedSampler gives equal shares)"""
    STEP_CYCLES = """info: A script does different things in different steps, and the same again after a cycle of them (such as a
        GAN whose generator is trained in every fifth step): whole cycles are timed and traced, and times are means over them.
        -> no action needed; a repeat has as many samples as cycles, so more --steps narrow the intervals"""
    STEPS_UNLIKE = """warning: Some steps of a script do more than the others, and the warm-up did not show after how many steps
        they come again: step times are medians of unlike steps, and the traced ones may hold none of the longer.
        -> attach with a --warmup of at least two such cycles and three steps, so that whole cycles are timed and traced"""
    STEPS_LEFT_OUT = """info: Steps with work other than training, such as validation, and steps with another batch size are
        left out.
        -> no action needed"""
    TRACED_BESIDE_OTHER_WORK = """warning: The traced steps include work other than training, such as validation, which makes
        them longer.
        -> attach again with other --warmup or --steps, so that the traced steps fall between two validations"""
    STEPS_OF_FIRST_OPTIMIZER = """info: The script has several optimizers; a step ends with the call of the one that was called
        first, or, where optimizers step within a backward pass, with the model's next call.
        -> no action needed; --steps-by selects another way to count steps"""
    REDUCED_IN_GROUPS = """info: DDP reduces gradients within groups that are smaller than the job.
        -> no action needed; the cell counts all devices of the job"""
    COUNTERS_NOT_READ = """info: DDP's counters were not read or could not be compared, so the trace was not checked against
        them.
        -> no action needed: the bytes that DDP must move are still checked"""
    JOB_NOT_MEASURED = """warning: A job ended before it was measured, so its cell is missing.
        -> read the script's output, fix the cause and attach again"""
    TRAINED_ALONE = """error: Several processes joined a process group but did not communicate: each trained its own model.
        -> wrap the model in DistributedDataParallel or FSDP; PyTorch's examples do so only on GPUs"""
    MODEL_PARALLEL = """warning: The processes probably hold parts of one model (tensor or pipeline parallelism) and train on
        the same samples: samples per second may count each sample several times.
        -> set --batch-size to the samples of a step divided by the number of processes"""
    SAME_INPUTS = """warning: Processes that each hold the whole model trained on the same samples, so samples per second count
        them several times.
        -> give each process its share of the data, as DistributedSampler does; ignore this for random inputs with one seed"""
    NO_SINGLE_DEVICE = """warning: No cell on one device without a wrapper was measured, so efficiency and speedup are missing.
        Under torchrun, frameworks and many scripts wrap even a single process in DDP.
        -> attach with --devices single, which runs the script without torchrun and adds the cell to the folder"""
    HOOK_NOT_KNOWN = """info: The script registers a communication hook with DDP: the bytes that it must move are unknown and
        not checked.
        -> no action needed"""
