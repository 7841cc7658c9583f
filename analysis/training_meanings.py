"""What the headings of the trainings' tables mean, for the page."""

_CELL_MEANING = {"cell": "Strategy, devices and batch per device, and the variant"}
_SEEDS = {"low": "Lowest of the seeds", "high": "Highest of the seeds"}
_DIFFERENCE = {
    **_CELL_MEANING,
    "against": "The cell that it is judged by",
    "accuracy": "Median test accuracy over seeds, after the last epoch",
    "difference": "Its median test accuracy less the other's, in percentage points",
    "seed spread": "The wider of the two ranges over seeds; unknown with fewer than three",
    "seeds": "Complete trainings, of the side with fewer",
    "verdict": "Whether the difference lies beyond the spread over seeds",
    "speedup": "Median epoch training time of the other over its own",
    "low": "Lower end of the speedup's 95% interval",
    "high": "Upper end of the speedup's 95% interval",
}

TRAINING_MEANINGS = {
    "test_accuracy": {
        **_CELL_MEANING,
        **_SEEDS,
        "accuracy": "Median test accuracy over seeds, after the last epoch",
        "seeds": "Trainings with all their epochs",
        "best": "Highest test accuracy of any epoch, median over seeds: chosen on the test data",
        "train acc.": "Training accuracy of the last epoch, median over seeds",
        "test loss": "Cross-entropy on the test data after the last epoch, median over seeds",
        "epochs": "Epochs of a training",
    },
    "training_speedup": _DIFFERENCE,
    "variant_accuracy": _DIFFERENCE,
    "training_time": {
        **_CELL_MEANING,
        "epoch": "Median training time of an epoch over all seeds; evaluation is not in it",
        "low": "Shortest epoch",
        "high": "Longest epoch",
        "epochs": "Epochs behind the median, all seeds together",
        "evaluation": "Median time of an evaluation",
        "training": "Training time of all epochs of a seed, median over seeds",
    },
    "time_to_accuracy": {
        **_CELL_MEANING,
        **_SEEDS,
        "seeds that reached it": "Of all seeds that were begun",
        "epoch": "The first epoch that reached it, median over seeds",
        "time": "Training time up to and with that epoch, evaluation apart, median over seeds",
    },
}
"""By table and heading, the unit left away."""
