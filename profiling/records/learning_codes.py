"""Findings about trainings (`dpscope train`) and about whether strategies train the same (`dpscope
equal`).
"""

from dpscope.profiling.records.finding import FindingCode


class LearningCode(FindingCode):
    LEARNING_RATE_NOT_SCALED = """info: Scaling of the learning rate was requested, but no cell has a larger global batch.
        -> Use --scaling weak, with which the global batch grows with the devices."""
    MILESTONE_AFTER_THE_END = """warning: The learning rate has a milestone after the last epoch, which has no effect.
        -> use milestones below the number of epochs, or more --epochs"""
    WARMUP_TO_THE_END = """warning: The learning rate's warm-up lasts to the end of the training.
        -> use fewer --warmup-epochs"""
    SAMPLES_PADDED = """info: Some samples are used twice in an epoch, to give all processes equally many.
        -> no action needed; a data set size divisible by the number of devices needs no padding"""
    COMPILED_WHILE_TRAINING = """info: The times of a training's first epoch and of its evaluation include compilation by
        torch.compile.
        -> no action needed with many epochs, whose median excludes the first; compare total times over equally many epochs"""
    TRAINING_FAILED = "error: A training failed before its last epoch. -> read the log of the training, and train again"
    TRAINING_INCOMPLETE = """warning: A training did not finish all its epochs and is left out of its cell's accuracy.
        -> run the same `dpscope train` command again: it resumes where it stopped"""
    NO_EPOCH = """warning: No training in the run folder has finished an epoch; only the measured cells are shown.
        -> run the same `dpscope train` command again and let it finish an epoch"""
    TRAINING_DIVERGED = """warning: The loss of a training is not finite.
        -> lower the learning rate (--lr), warm it up (--warmup-epochs), or use bf16 instead of fp16"""
    ACCURACY_NOT_PERCENT = """warning: No test accuracy is above 1%, so the values are probably fractions.
        -> train.json needs accuracies in percent: multiply them by 100"""
    FEW_SEEDS = """warning: Too few seeds to show how much accuracy varies by chance, so no difference is judged.
        -> train with more seeds (--seeds 0,1,2)"""
    ACCURACY_DIFFERENCE = """varying: Whether the test accuracy of two cells differs beyond its spread over seeds. A warning
        where it is lower.
        -> train with three seeds or more"""
    BATCH_NORM_BY_SHARE = """info: Two strategies differ only through what is computed over a batch, such as batch norm, because
        each device computes it over its own share.
        -> expected; --freeze-batch-norm compares without it"""
    UNEXPLAINED_DIFFERENCE = """error: Two strategies compute different values, beyond rounding, and no cause was found.
        -> find what the two compute differently in that step"""
    SAMPLES_DIFFER = """error: A strategy trains on different samples from the reference.
        -> check how the sampler splits an epoch: remainders that no rank receives, seeds, set_epoch at the beginning of every
        epoch"""
    RANKS_APART = """error: A rank has different values from the other ranks of its training.
        -> find out what prevents gradients from being averaged on that rank: no_sync, a communication hook, a different
        graph"""
    RANDOM_LAYERS_OFF = """info: Dropout and similar random layers are disabled for the comparison.
        -> no action needed; with random layers, strategies agree only on average"""
    NOTHING_JUDGED = """error: No step can be judged, so the comparison shows nothing.
        -> check that the loss is finite; use --dtype float64, or a smaller --lr"""
    ROUNDING_GROWS = """warning: Only the first steps are judged, because rounding grows too large after them.
        -> use --dtype float64, or a smaller --lr"""
