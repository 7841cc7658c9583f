"""How the trainings' numbers are obtained, in short."""

LEARNING_MEASURES = (
    (
        "Accuracy and loss",
        "After every epoch on the whole test set, each sample once, shared over the processes and summed exactly. The "
        "accuracy of a training is that of its last epoch, not its best, which would be chosen on the test data. Medians "
        "and ranges are over seeds; trainings without all their epochs are left out.",
    ),
    (
        "Difference of accuracy",
        "Shown if medians lie farther apart than either cell's seeds do. Cells that are alike would be told apart so by "
        "chance in 6% of pairs with 3 seeds, 1.2% with 4, 0.4% with 5 (normal errors, simulated). Fewer than 3 seeds show "
        "no spread, and nothing is judged.",
    ),
    (
        "Training time",
        "Wall time of an epoch's steps, loading included, evaluation not. Time to an accuracy is summed up to and with the "
        "first epoch that reached it, and is unknown unless every seed did. Speedup is the ratio of median epochs with a "
        "95% interval from the spread between seeds; it is not the speedup of steps measured by `dpscope run`.",
    ),
)
