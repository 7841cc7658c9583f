"""The words of the report in a sentence or two each: on the page, where headings link to them, and in docs/glossary.md."""

from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "cell": "One combination that was measured: strategy, devices, batch per device, and a variant if there is one. "
    "ddp-d4-b128 is DistributedDataParallel on 4 devices with 128 samples on each. dp-host is the stand-in for "
    "nn.DataParallel on a CPU.",
    "strategy": "single is one device. DP is nn.DataParallel: one process drives all devices. DDP has one process per device and "
    "all-reduces gradients; replicate does the same without a wrapper module. FSDP (fully_shard) shards parameters, gradients "
    "and optimizer state over the devices: it all-gathers parameters before they are used and reduce-scatters gradients. "
    "fsdp-no-reshard keeps parameters gathered between forward and backward. hsdp shards within groups of devices and "
    "all-reduces between the groups. ddp-d1 is DDP on one device: what DDP costs before anything is communicated.",
    "step": "One batch on every device: load, forward, backward, optimizer. The step time is the median over untraced "
    "steps. A traced step is another one, slower by what the tracer costs; it shows where the time goes.",
    "repeat": "A cell is measured several times, each in processes of its own. Intervals come from how far these repeats "
    "are apart: one repeat gives a number, but no interval.",
    "communication": "The time in which a device takes part in collectives or copies between devices. It is hidden plus exposed.",
    "hidden": "Communication while the device computes. It costs little or nothing.",
    "exposed": "Communication while the device does not compute: the step is longer by it. It is the most that better "
    "communication can save, and it is wait plus transfer.",
    "wait": "The part of a collective in which a rank waits for a later rank. A faster link does not shorten it; find out"
    " why that rank is late.",
    "transfer": "The part in which data moves: the duration of a collective on the rank that arrives last, which waits for "
    "nobody. It is an upper bound of the pure transfer. Broadcast and reduce do not make all ranks wait for each "
    "other, so they have neither wait nor transfer.",
    "straggler": "A rank that the others wait for in most steps.",
    "idle": "Time in which a device neither computes nor communicates: the host is too slow to launch work, or the loader"
    " to deliver batches.",
    "bus bandwidth": "Bytes over transfer time, times 2(N−1)/N for an all-reduce on N ranks (other collectives: other factors)."
    " It can be compared with a link's specification whatever N is; nccl-tests prints it as busbw.",
    "ring model": "The time that a ring all-reduce of all gradients needs at a given bandwidth: 2(N−1)/N × bytes / bandwidth. "
    "The bandwidth is the link's specification where the link is known, else what the calibration measured.",
    "calibration": "Collectives timed by themselves, by size, before the cells. Predictions of a run's communication rest on it.",
    "weak": "Weak scaling: the batch per device stays the same, so the global batch grows with the devices. Weak "
    "efficiency is t_1(b)/t_N(b): 100% means that N devices finish N times the samples in the same time.",
    "strong": "Strong scaling: the global batch stays the same and is divided over the devices. Strong speedup is "
    "t_1(G)/t_N(G/N).",
    "efficiency": "Speedup divided by the number of devices.",
    "NA": "Not measured, or not applicable; never 0. The reason is given below the table.",
}
