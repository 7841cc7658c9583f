"""The meanings of the headings of tables whose columns are declared elsewhere without, how numbers are obtained, the glossary."""

from collections.abc import Mapping

from dpscope.analysis.text.text_table import TextTable

LEARNING_MEASURES: dict[str, str] = {
    "Accuracy and loss": "After every epoch on the whole test set, each sample once, shared over the processes and summed "
    "exactly. The accuracy of a training is that of its last epoch, not its best, which would be chosen on the test data. "
    "Medians and ranges are over seeds; trainings without all their epochs are left out.",
    "Difference of accuracy": "Significant if the medians differ by more than either cell's range over seeds. For equal cells "
    "this happens by chance in 6% of pairs with 3 seeds, 1.2% with 4, 0.4% with 5 (normal errors, simulated). Fewer than 3 "
    "seeds show no spread, so nothing is judged.",
    "Training time": "Wall time of an epoch's steps, including loading but not evaluation. Time to an accuracy is the sum up "
    "to and including the first epoch that reached it, and is unknown unless every seed did. Speedup is the ratio of median "
    "epochs with a 95% interval from the spread between seeds; it is not the speedup of steps measured by `dpscope run`.",
}


_DIFFERENCE = {
    "against": "The cell that it is compared with",
    "accuracy": "Median test accuracy over seeds, after the last epoch",
    "difference": "Its median test accuracy minus the other's, in percentage points",
    "seed spread": "The wider of the two ranges over seeds; unknown with fewer than three",
    "seeds": "Complete trainings, of the side with fewer",
    "verdict": "Whether the difference exceeds the spread over seeds",
    "speedup": "Median epoch training time of the other cell over this cell's",
}
_SEEDS = {"low": "Lowest of the seeds", "high": "Highest of the seeds"}
_TERMS = {
    "compute": "Compute on N devices minus compute on one",
    "idle": "Idle on N devices minus idle on one",
    "tracer": "The part of the untraced difference that the traced steps do not explain",
}
_OF_ANY_TABLE = {
    "cell": "Strategy, devices and batch per device, and the variant",
    "low": "Lower end of the 95% interval",
    "high": "Upper end of the 95% interval",
    "error": "Predicted over measured, minus 1",
}
_OF_TABLE: Mapping[str, Mapping[str, str]] = {
    "test_accuracy": {
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
        "epoch": "Median training time of an epoch over all seeds; evaluation is not in it",
        "low": "Shortest epoch",
        "high": "Longest epoch",
        "epochs": "Epochs behind the median, all seeds together",
        "evaluation": "Median time of an evaluation",
        "training": "Training time of all epochs of a seed, median over seeds",
    },
    "time_to_accuracy": {
        **_SEEDS,
        "seeds that reached it": "Of all seeds that were begun",
        "epoch": "The first epoch that reached it, median over seeds",
        "time": "Training time up to and including that epoch without evaluation, median over seeds",
    },
    "costs": {
        "baseline": "The simpler strategy that it is compared with",
        "ratio": "Its median untraced step over the baseline's",
        "saved per device": "Memory of the baseline minus its own",
        "of": "Whether that is of the allocator's peak or of the state between steps",
    },
    "identity": {
        "t_N(b)-t_1(b)": "Median step on N devices minus the median step on one device, at the same batch per device",
        "exposed": "Exposed communication, which one device does not have",
        **_TERMS,
    },
    "reasons": {
        "estimate": "The formula of the subtraction",
        "error": "The estimate minus measured exposed communication",
        "local batch": "Because the step that is subtracted has another batch per device",
        **_TERMS,
    },
    "collectives": {
        "collective": "Kind of the collective",
        "size": "The larger of a rank's input and output buffer",
        "NCCL chose": "Algorithm and protocol in NCCL's log, at this size or at both neighbouring ones",
        "ring": "The ring formula for this size, with the latency per hop of NCCL's cost table",
        "its formula": "The formula of the algorithm that NCCL chose",
        "per step": "Number per rank and step",
        "measured": "Median transfer: the shortest duration over the ranks",
        "predicted": "The model's result for this size",
        "slowest": "Median over the collectives of the longest duration over the ranks, waiting included",
        "calib.": "The slowest rank in the calibration, in which all ranks start together and none waits",
    },
    "scaling": {
        "series": "Strategy, weak (same batch b per device) or strong (same global batch G)",
        "devices": "Devices the step runs on",
        "speedup": "Weak: N t_1(b) / t_N(b). Strong: t_1(G) / t_N(G/N)",
        "eff.": "Speedup over the number of devices",
        "Karp-Flatt": "The serial fraction that would explain this speedup",
    },
    "laws": {
        "series": "The measured series that the law is fitted to",
        "law": "Two device counts: Amdahl or Gustafson; three or more: the universal scalability law",
        "parameter": "A parameter of the law, or its prediction",
        "value": "Fitted to the measured speedups",
    },
    "what_if": {
        "devices": "Devices of the predicted step, with unchanged links",
        "nodes": "Nodes that this many devices are assumed to span",
        "batch": "Batch per device",
        "step": "Predicted: the measured step plus what the replay adds to it",
        "90% band": "Expected to contain the true value in nine cases out of ten",
        "exposed": "Predicted communication that is not hidden behind compute",
        "efficiency": "The step on one device divided by the predicted one, at the same batch per device",
        "bound by": "The largest part of the predicted step",
    },
    "what_if_ledger": {
        "configuration": "The measured base, or what differs from it",
        "step": "Untraced: the base's as measured, the others as predicted",
        "compute": "The base's compute plus its change in the replay",
        "wait": "Exposed: no compute and no transfer run, and a rank waits for a late one",
        "transfer": "Exposed: no compute runs, and a collective transfers",
        "other": "Exposed communication that cannot be split into wait and transfer, such as broadcasts",
        "idle": "Neither compute nor communication",
        "tracer": "Untraced less traced step of the base; negative if tracing slowed it",
    },
    "what_if_savings": {
        "change": "The only thing changed in the replay",
        "saves": "How much shorter the step would be",
        "band": "The saving plus and minus the method's error",
        "significant": "Whether the saving exceeds the method's error on the whole step",
    },
    "what_if_own_error": {
        "measured": "Median untraced step of the cell",
        "predicted": "By replaying the other cell, without using this one's time",
        "perfect scaling": "The error of assuming that the step takes as long as on one device",
        "nothing changes": "The error of assuming that the step takes as long as in the other cell",
    },
}
"""By table and heading, without the unit; what a table lacks is as in any table."""


def meanings(name: str, table: TextTable) -> tuple[str, ...]:
    """A sentence for each heading of a report's table, empty if there is none; a column's own comes first."""
    known = {**_OF_ANY_TABLE, **_OF_TABLE.get(name, {})}
    own = table.meanings or ("",) * len(table.headings)
    return tuple(
        one or known.get(heading.partition(" [")[0], "") for one, heading in zip(own, table.headings, strict=True)
    )


MEASURES: dict[str, str] = {
    "Step time and throughput": "From an untraced pass: device events on GPUs, the wall clock on CPUs; the throughput from "
    "one block of steps between two synchronisations. Medians over all repeats; every 95% interval is based on the "
    "differences between the cell's repeats and, if those are few, also between those of other cells. With fewer than five "
    "steps, or one repeat of every cell, no interval is given and nothing is compared.",
    "Compute, communication, exposed, hidden, idle": "From torch.profiler's traces of other steps. K is the union of compute "
    "kernels, C that of communication kernels and copies between devices, per device and step window. Communication is |C|, "
    "hidden |C ∩ K|, exposed |C \\ K|, compute |K|, idle the rest. Step = compute + exposed + idle. On a CPU, K are the "
    "operators of all threads and C gloo's ranges, which share the cores, so hidden there means concurrent.",
    "Transfer and wait": "A collective is matched across ranks by its sequence number or order. Transfer is the shortest of "
    "its durations, because the last rank to arrive does not wait; wait is a rank's duration minus transfer. Broadcasts and "
    "reduces have neither, because they do not make all ranks wait for each other.",
    "algbw and busbw": "Bytes over transfer, and that times 2(N−1)/N for an all-reduce, (N−1)/N for all-gather, "
    "reduce-scatter and all-to-all, 1 for the others: nccl-tests' definitions. GB/s is 1e9 bytes per second.",
    "DataParallel's phases": "A device event belongs to the phase in which it was launched. The parts of the waterfall are "
    "each phase's exposed communication, excluding what an earlier phase covers, so that they add up.",
    "Subtraction estimates": "t_N(b) − t_1(b), t_N(G/N) − t_1(G)/N and t_N(G/N) − t_1(G), with b the batch per device and G = "
    "N b. They include changes of compute and idle time, miss what overlap hides, and can be negative. They are shown for "
    "comparison, not as results.",
    "Predictions": "From a calibration of this machine if there is one (alpha + S/B per collective, fitted), else from the "
    "ring model without latency at the link's specification, a lower bound. They use the run's message sizes and, for exposed "
    "communication, the times at which its buckets were ready.",
    "The timeline": "The middle one of the whole traced steps of the first repeat. Ranks of one host share its clock; the "
    "clocks of other hosts are aligned on the ends of collectives, which all ranks finish together; the remaining difference "
    "is stated.",
    "NA": "Not measured or not applicable, never 0. The reason is below the table and in comparison.csv.",
}


# The terms of the report, shown on the page and in docs/glossary.md.
GLOSSARY: Mapping[str, str] = {
    "cell": "One measured combination of strategy, devices, batch per device and, if any, a variant. "
    "ddp-d4-b128 is DistributedDataParallel on 4 devices with 128 samples on each. dp-host is the stand-in for "
    "nn.DataParallel on a CPU.",
    "strategy": "single is one device. DP is nn.DataParallel: one process drives all devices. DDP runs one process per device "
    "and all-reduces gradients; replicate does the same without a wrapper module. FSDP (fully_shard) shards parameters, "
    "gradients and optimizer state over the devices: it all-gathers parameters before use and reduce-scatters gradients. "
    "fsdp-no-reshard keeps parameters gathered between forward and backward. hsdp shards within groups of devices and "
    "all-reduces between the groups. ddp-d1 is DDP on one device: the cost of DDP before anything is communicated.",
    "step": "One batch on every device: load, forward, backward, optimizer. The step time is the median over untraced "
    "steps. Traced steps are measured separately; they are slower because of the tracer, and show where the time goes.",
    "repeat": "One of several measurements of a cell, each in new processes. Intervals are based on the differences between "
    "repeats: one repeat gives a number, but no interval.",
    "communication": "The time in which a device takes part in collectives or copies between devices: hidden plus exposed.",
    "hidden": "Communication while the device computes. It costs little or nothing.",
    "exposed": "Communication while the device does not compute, which lengthens the step. It is the most that better "
    "communication can save, and consists of wait, transfer and other.",
    "wait": "The part of a collective in which a rank waits for a later rank. A faster link does not shorten it; find out"
    " why that rank is late.",
    "transfer": "The part of a collective in which data move: its duration on the rank that arrives last and so does not wait, "
    "an upper bound of the pure transfer. Broadcast and reduce do not make all ranks wait for each other, so they have "
    "neither wait nor transfer.",
    "straggler": "A rank that the others wait for in most steps.",
    "idle": "Time in which a device neither computes nor communicates: the host is too slow to launch work, or the loader"
    " to deliver batches.",
    "bus bandwidth": "Bytes over transfer time, times 2(N−1)/N for an all-reduce on N ranks (other collectives: other factors)."
    " It can be compared with a link's specification for any N; nccl-tests prints it as busbw.",
    "ring model": "The time that a ring all-reduce of all gradients needs at a given bandwidth: 2(N−1)/N × bytes / bandwidth. "
    "The bandwidth is the link's specification if the link is known, else the calibrated one.",
    "calibration": "Collectives timed alone, by size, before the cells. Predictions of a run's communication are based on it.",
    "weak": "Weak scaling: the batch per device stays the same, so the global batch grows with the devices. Weak "
    "efficiency is t_1(b)/t_N(b): 100% means that N devices finish N times the samples in the same time.",
    "strong": "Strong scaling: the global batch stays the same and is divided over the devices. Strong speedup is "
    "t_1(G)/t_N(G/N).",
    "efficiency": "Speedup divided by the number of devices.",
    "NA": "Not measured, or not applicable; never 0. The reason is given below the table.",
}
