"""Findings about the plan and the machine, known before a step is measured."""

from dpscope.profiling.records.finding import FindingCode


class PlanCode(FindingCode):
    CPU_OVERSUBSCRIBED = """warning: There are more processes than cores: they wait for each other, so the times do not show
        scaling.
        -> use at most as many --devices as there are cores"""
    FEW_HOST_CORES = """warning: There are fewer host cores than GPUs and loader workers: GPUs wait for the processes that feed
        them.
        -> Give the job more cores (with Slurm: --cpus-per-task, to sbatch and to srun), or use fewer --workers."""
    CORES_OVERSUBSCRIBED = """warning: A calibration ran more processes than there are cores: they waited for cores, not only
        for data.
        -> calibrate at most as many processes as there are cores (--devices)"""
    CALIBRATION_FAILED = """warning: The calibration before a run's cells failed: the cells are measured, but not predicted.
        -> Run the same command again, which repeats the calibration; or use dpscope calibrate --out with the run's folder."""
    CONTENTION_NOT_TIMED = """warning: A calibration timed the collectives, but not how much collectives and compute slow each
        other down.
        -> predictions for cells that overlap assume no slowdown; to time it, use dpscope calibrate --out with the run's
        folder"""
    LOADER_WORKERS_UNEVEN = """warning: There are fewer loader workers than processes, so some processes load their batches
        inside the step.
        -> set --workers-total to at least the number of processes, or to 0"""
    ESTIMATE_OVER_TIMEOUT = """warning: A repeat is estimated to exceed its time limit and would be stopped before it is
        measured.
        -> Raise --timeout, or measure fewer steps or smaller batches."""
    NO_BASELINE = """warning: Cells on several devices are planned but none on one: gain, efficiency and subtraction estimates
        will be NA.
        -> add 1 to --devices, and single to --strategy"""
    MIXED_HOSTS = """warning: The hosts of a run differ: every synchronous step waits for the slowest.
        -> Measure on identical hosts."""
    MIXED_COMMITS = """warning: The code changed during the run: not all cells were measured with the same code.
        -> Use --fresh to measure all cells with the current code."""
    MIXED_DEVICES = """warning: The GPUs are of different models: every synchronous step waits for the slowest.
        -> Measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES."""
    MIXED_LINKS = """warning: The GPUs' PCIe links have different widths: every synchronous step waits for the slowest device.
        -> Measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES."""
    MIXED_NVLINKS = """warning: The GPUs have different numbers of active NVLinks, or only some pairs are connected by NVLink:
        every synchronous step waits for the slowest.
        -> Measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES."""
    NO_PEER_ACCESS = """info: Some GPUs cannot access each other's memory: what they exchange goes through host memory.
        -> Check the IOMMU/ACS settings and the topology (nvidia-smi topo -p2p r); some GPUs have no peer access at all."""
    DEVICE_THROTTLED = """warning: Heat or a power limit slows a GPU down, so its times are those of a slower device.
        -> Let it cool or raise its power limit, and measure again."""
    BF16_EMULATED = """warning: The devices emulate bf16 (GPUs of compute capability below 8.0, such as V100 and T4; x86 CPUs
        without AVX512-BF16 or AMX): it saves memory, not time, and is often slower than fp32.
        -> Measure --amp fp16 on these GPUs, --amp off on these CPUs."""
    DEVICE_POWER_CAPPED = """info: A GPU runs at its power limit, as busy GPUs usually do.
        -> No action needed; compare runs only under the same power limit (nvidia-smi -q -d POWER)."""
    DEVICE_STATE_UNKNOWN = """warning: NVML reports nothing about the GPUs, so it is unknown whether they are throttled, shared
        or of different models.
        -> Install nvidia-ml-py and check that nvidia-smi works; for parts of a GPU (MIG) no action is needed."""
    DEVICE_LOST = """error: A GPU does not respond to its driver.
        -> See nvidia-smi and the kernel's log (dmesg, Xid 79); reset the machine, or leave this GPU out with
        CUDA_VISIBLE_DEVICES."""
    DEVICE_SHARED = """warning: Other processes use a GPU, and the measured times include their work.
        -> Stop them, or choose other GPUs with CUDA_VISIBLE_DEVICES."""
    SETTINGS_DIFFER = """warning: Two compared measurements were made under different settings or on different machines.
        -> a change may come from that rather than from the code"""
