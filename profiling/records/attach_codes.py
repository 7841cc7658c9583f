"""Findings about a script that was measured as it is (`dpscope attach`)."""

from dpscope.profiling.records.finding import FindingCode


class AttachCode(FindingCode):
    """Findings about a script that was measured as it is: what could not be seen of it, or not be measured."""

    SCRIPT_ENDED_EARLY = (
        "script_ended_early",
        "warning",
        "The script ended before it was measured whole: what was measured by then is all there is.",
        "attach with fewer --warmup and --steps, or let the script train longer",
    )
    SHORT_WARM_UP = (
        "short_warm_up",
        "warning",
        "The script was measured after fewer than 5 warm-up steps: DDP rebuilds its buckets in them, and caches still fill.",
        "let the script train longer, and attach with --warmup 5 or more",
    )
    SCRIPT_PROFILES = (
        "script_profiles",
        "warning",
        "The script uses a profiler of its own, beside which none of dpscope's can run: its steps are timed and not traced.",
        "switch the script's profiler off, or read its traces with `dpscope analyze`",
    )
    DATA_PARALLEL_DID_NOTHING = (
        "data_parallel_did_nothing",
        "info",
        "The script's nn.DataParallel had one GPU or none, so it only calls its model: the cell is a single device.",
        "measure where torch can use several GPUs, or dpscope's stand-in: dpscope run --strategy dp",
    )
    BATCH_AS_SEEN = (
        "batch_as_seen",
        "info",
        "The batch of a script is what was seen: the first dimension of the first tensor that its model is called with.",
        "say it with --batch-size if that is not the number of samples",
    )
    BATCH_NOT_SEEN = (
        "batch_not_seen",
        "warning",
        "No batch could be seen, so every step counts as one sample of each device: samples per second are steps.",
        "say the samples per device and step with --batch-size",
    )
    STEPS_LEFT_OUT = (
        "steps_left_out",
        "info",
        "Steps in which the script did something beside training, such as validation, or trained on another batch are left out.",
        "nothing to do",
    )
    TRACED_BESIDE_OTHER_WORK = (
        "traced_beside_other_work",
        "warning",
        "The script did something beside training, such as validation, within its traced steps, which are longer for it.",
        "attach again with other --warmup or --steps, so that the traced steps fall between two validations",
    )
    STEPS_OF_FIRST_OPTIMIZER = (
        "steps_of_first_optimizer",
        "info",
        "The script has several optimizers: a step ends when the one that stepped first has stepped.",
        "nothing to do; --steps-by tells steps otherwise",
    )
    REDUCED_IN_GROUPS = (
        "reduced_in_groups",
        "info",
        "DDP reduces gradients within groups that are smaller than the job.",
        "nothing to do; the cell's devices are all of the job's",
    )
    COUNTERS_NOT_READ = (
        "counters_not_read",
        "info",
        "DDP's counters were not read or could not be compared, so the trace was not checked against them.",
        "no action needed: this check is an additional one; the bytes that DDP must move are still checked",
    )
    JOB_NOT_MEASURED = (
        "job_not_measured",
        "warning",
        "A job of a script ended before it was measured, so its cell is missing.",
        "read what the script printed, fix the cause and attach again",
    )
    TRAINED_ALONE = (
        "trained_alone",
        "error",
        "Several processes of a script joined a process group, and none of them communicated: each trained its own model.",
        "wrap the model in DistributedDataParallel or FSDP; PyTorch's examples do it on GPUs only",
    )
    MODEL_PARALLEL = (
        "model_parallel",
        "warning",
        "Processes are likely parts of one model (tensor or pipeline parallelism) that train on the same samples: samples per "
        "second may count each of them several times.",
        "give the samples of a step divided by the processes with --batch-size",
    )
    SAME_INPUTS = (
        "same_inputs",
        "warning",
        "Processes that each have the whole model trained on the same samples, which samples per second count several times.",
        "give each process its share of the data, as DistributedSampler does; ignore this for random inputs of one seed",
    )
    NO_SINGLE_DEVICE = (
        "no_single_device",
        "warning",
        "No cell of one device without a wrapper was measured, so efficiency and speedup are missing. Under torchrun, frameworks "
        "and many scripts wrap one process in DDP, too.",
        "attach with --devices single: it runs the script without torchrun and adds the cell to the folder",
    )
    HOOK_NOT_KNOWN = (
        "hook_not_known",
        "info",
        "DDP has a communication hook of the script's own: how many bytes it must move is not known, and not checked.",
        "nothing to do",
    )
