"""The terms of the report, shown on the page and in docs/glossary.md."""

from collections.abc import Mapping

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
