"""Findings about what is planned and about the machine, known before a step is measured."""

from dpscope.profiling.records.finding import FindingCode


class PlanCode(FindingCode):
    """Findings about what is planned and about the machine, known before a step is measured."""

    CPU_OVERSUBSCRIBED = (
        "cpu_oversubscribed",
        "warning",
        "More processes than cores: they wait for each other, so the times do not show scaling.",
        "use no more --devices than there are cores",
    )
    FEW_HOST_CORES = (
        "few_host_cores",
        "warning",
        "There are fewer host cores than GPUs and loader workers: GPUs wait for the processes that feed them.",
        "Give the job more cores (with Slurm: --cpus-per-task, to sbatch and to srun), or use fewer --workers.",
    )
    CORES_OVERSUBSCRIBED = (
        "cores_oversubscribed",
        "warning",
        "A calibration ran more processes than there are cores: they waited for cores, not only for data.",
        "calibrate no more processes than there are cores (--devices)",
    )
    CALIBRATION_FAILED = (
        "calibration_failed",
        "warning",
        "The calibration that a run makes before its cells failed: the cells are measured, but not predicted.",
        "Run the same command again, which then calibrates; or use dpscope calibrate --out with the run's folder.",
    )
    CONTENTION_NOT_TIMED = (
        "contention_not_timed",
        "warning",
        "A calibration timed the collectives, but not how collectives and computing slow each other.",
        "predictions of cells that overlap assume no such slowdown; to time it again, use dpscope calibrate --out with the run's "
        "folder",
    )
    LOADER_WORKERS_UNEVEN = (
        "loader_workers_uneven",
        "warning",
        "There are fewer loader workers than processes, so some processes load their batches inside the step.",
        "use a --workers-total of at least one for each process, or 0",
    )
    ESTIMATE_OVER_TIMEOUT = (
        "estimate_over_timeout",
        "warning",
        "A repeat is estimated to exceed its time limit, and would be stopped before it is measured.",
        "Raise --timeout, or measure fewer steps or smaller batches.",
    )
    NO_BASELINE = (
        "no_baseline",
        "warning",
        "Cells on several devices are planned and none on one: gain, efficiency and subtraction estimates will be NA.",
        "add 1 to --devices, and single to --strategy",
    )
    MIXED_HOSTS = (
        "mixed_hosts",
        "warning",
        "The hosts of a run differ: every synchronous step waits for the slowest.",
        "Measure on identical hosts.",
    )
    MIXED_COMMITS = (
        "mixed_commits",
        "warning",
        "The code changed while the run was under way: its cells were not all measured of the same code.",
        "Use --fresh to measure all cells of the code as it is now.",
    )
    MIXED_DEVICES = (
        "mixed_devices",
        "warning",
        "The GPUs are of different models: every synchronous step waits for the slowest.",
        "Measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES.",
    )
    MIXED_LINKS = (
        "mixed_links",
        "warning",
        "The GPUs' PCIe links have different widths: every synchronous step waits for the slowest device.",
        "Measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES.",
    )
    MIXED_NVLINKS = (
        "mixed_nvlinks",
        "warning",
        "The GPUs have different numbers of active NVLinks: every synchronous step waits for the slowest device.",
        "Measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES.",
    )
    DEVICE_THROTTLED = (
        "device_throttled",
        "warning",
        "A GPU is slowed down by heat or a power limit, so its times are those of a slower device.",
        "Let it cool or raise its power limit, and measure again.",
    )
    BF16_EMULATED = (
        "bf16_emulated",
        "warning",
        "The GPUs compute bf16 by emulation (before compute capability 8.0, as V100 and T4): it saves memory, not time.",
        "Measure --amp fp16 on these GPUs.",
    )
    DEVICE_POWER_CAPPED = (
        "device_power_capped",
        "info",
        "A GPU is held at its power limit, as busy GPUs usually are.",
        "No action needed; compare runs only under the same power limit (nvidia-smi -q -d POWER).",
    )
    DEVICE_STATE_UNKNOWN = (
        "device_state_unknown",
        "warning",
        "NVML says nothing about the GPUs, so it is unknown whether they are slowed down, shared or unlike each other.",
        "Install nvidia-ml-py and see that nvidia-smi works; for parts of a GPU (MIG) no action is needed.",
    )
    DEVICE_LOST = (
        "device_lost",
        "error",
        "A GPU does not answer its driver.",
        "See nvidia-smi and the kernel's log (dmesg, Xid 79); reset the machine, or leave this GPU out with "
        "CUDA_VISIBLE_DEVICES.",
    )
    DEVICE_SHARED = (
        "device_shared",
        "warning",
        "Other processes use a GPU, and their work is part of the measured times.",
        "Stop them, or choose other GPUs with CUDA_VISIBLE_DEVICES.",
    )
    SETTINGS_DIFFER = (
        "settings_differ",
        "warning",
        "Two measurements that are compared were made under different settings or on different machines.",
        "a change may come from that and not from the code",
    )
