"""Findings about trainings (`dpscope train`) and about whether strategies train the same (`dpscope
equal`).
"""

from dpscope.profiling.records.finding import Code, FindingCode


class LearningCode(FindingCode):
    TRAINING_FAILED = Code(
        "error",
        meaning="A training failed before its last epoch.",
        action="read the log of the training, and train again",
    )
    TRAINING_INCOMPLETE = Code(
        "error",
        meaning="A training did not finish all its epochs and is left out of its cell's accuracy. A "
        "warning where no training has finished an epoch, and only the measured cells are shown.",
        action="repeat the same `dpscope train` command: it resumes where it stopped",
        other_severity="warning",
    )
    TRAINING_DIVERGED = Code(
        "warning",
        meaning="The loss of a training is not finite.",
        action="lower the learning rate (--lr), warm it up (--warmup-epochs), or use bf16 instead "
        "of fp16",
    )
    STILL_LEARNING = Code(
        "warning",
        meaning="Test accuracy rose by a point or more in the last epoch, so the accuracies are not "
        "those of a finished training.",
        action="train for more epochs (--epochs)",
    )
    FEW_SEEDS = Code(
        "warning",
        meaning="Too few seeds to show how much accuracy varies by chance, so no difference is "
        "judged.",
        action="train with more seeds (--seeds 0,1,2)",
    )
    ACCURACY_DIFFERENCE = Code(
        "info",
        meaning="Whether the test accuracy of two cells differs beyond its spread over seeds. A "
        "warning where it is lower.",
        action="train with three seeds or more",
        other_severity="warning",
    )
    UNEXPLAINED_DIFFERENCE = Code(
        "error",
        meaning="Two strategies compute different values, beyond rounding, and no cause was found.",
        action="find what the two compute differently in that step; a loss over a whole batch, and "
        "batch norm without running statistics, differ by design",
    )
    SAMPLES_DIFFER = Code(
        "error",
        meaning="A strategy trains on different samples from the reference.",
        action="check how the sampler splits an epoch: remainders that no rank receives, seeds, "
        "set_epoch at the beginning of every epoch",
    )
    RANKS_APART = Code(
        "error",
        meaning="A rank has different values from the other ranks of its training.",
        action="find out what prevents gradients from being averaged on that rank: no_sync, a "
        "communication hook, a different graph",
    )
    RANDOM_LAYERS_OFF = Code(
        "info",
        meaning="Dropout and similar random layers are disabled for the comparison.",
        action="compare accuracies with these layers: dpscope train; strategies then agree only on average",
    )
    STEPS_NOT_JUDGED = Code(
        "warning",
        meaning="Only the first steps are judged, because rounding grows too large after them. An "
        "error if no step can be judged, so that the comparison shows nothing.",
        action="use --dtype float64, or a smaller --lr",
        other_severity="error",
    )
