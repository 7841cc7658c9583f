"""Findings about the plan and the machine, known before a step is measured."""

from dpscope.profiling.records.finding import Code, FindingCode


class PlanCode(FindingCode):
    CPU_OVERSUBSCRIBED = Code(
        "warning",
        meaning="There are more processes than cores: they wait for each other, so the times do not "
        "show scaling.",
        action="use at most as many --devices as there are cores",
    )
    FEW_HOST_CORES = Code(
        "warning",
        meaning="There are fewer host cores than GPUs and loader workers: GPUs wait for the "
        "processes that feed them.",
        action="give the job more cores (with Slurm: --cpus-per-task, to sbatch and to srun), or "
        "use fewer --workers",
    )
    LOADER_WORKERS = Code(
        "info",
        meaning="Loader workers are unevenly shared: DDP has more of them than DP, since each of "
        "its processes has its own, or (a warning) some processes have none.",
        action="set --workers-total, which keeps the total equal, to at least the number of "
        "processes, or to 0",
        other_severity="warning",
    )
    CALIBRATION_FAILED = Code(
        "warning",
        meaning="The calibration before a run's cells failed: the cells are measured, but not "
        "predicted.",
        action="run the same command again, which repeats the calibration; or use dpscope calibrate "
        "--out with the run's folder",
    )
    ESTIMATE_OVER_TIMEOUT = Code(
        "warning",
        meaning="A repeat is estimated to exceed its time limit and would be stopped before it is "
        "measured.",
        action="raise --timeout, or measure fewer steps or smaller batches",
    )
    NO_BASELINE = Code(
        "warning",
        meaning="Nothing was planned or measured on one device without a wrapper, so gain, "
        "efficiency and the subtraction estimates are missing. Under torchrun, many scripts wrap "
        "even a single process in DDP.",
        action="add 1 to --devices, and single to --strategy; for a script, attach with --devices "
        "single, which runs it without torchrun",
    )
    MIXED_HOSTS = Code(
        "warning",
        meaning="The hosts of a run differ: every synchronous step waits for the slowest.",
        action="measure on identical hosts",
    )
    MIXED_COMMITS = Code(
        "warning",
        meaning="The code changed during the run: not all cells were measured with the same code.",
        action="use --fresh to measure all cells with the current code",
    )
    MIXED_DEVICES = Code(
        "warning",
        meaning="The GPUs differ in model, PCIe width or NVLinks, or only some pairs are connected "
        "by NVLink: every synchronous step waits for the slowest.",
        action="measure a uniform subset, chosen with CUDA_VISIBLE_DEVICES",
    )
    NO_PEER_ACCESS = Code(
        "info",
        meaning="Some GPUs cannot access each other's memory: what they exchange goes through host "
        "memory.",
        action="check the IOMMU and ACS settings and the topology (nvidia-smi topo -p2p r); some "
        "GPUs have no peer access at all",
    )
    DEVICE_THROTTLED = Code(
        "warning",
        meaning="Heat or a power limit slows a GPU down, so its times are those of a slower device.",
        action="let it cool or raise its power limit, and measure again",
    )
    BF16_EMULATED = Code(
        "warning",
        meaning="The devices emulate bf16 (GPUs of compute capability below 8.0, such as V100 and "
        "T4; x86 CPUs without AVX512-BF16 or AMX): it saves memory, not time, and is often slower "
        "than fp32.",
        action="measure --amp fp16 on these GPUs, --amp off on these CPUs",
    )
    DEVICE_STATE_UNKNOWN = Code(
        "warning",
        meaning="NVML reports nothing about the GPUs, so it is unknown whether they are throttled, "
        "shared or of different models.",
        action="install nvidia-ml-py and check that nvidia-smi works; NVML reports nothing of "
        "parts of a GPU (MIG)",
    )
    DEVICE_LOST = Code(
        "error",
        meaning="A GPU does not respond to its driver.",
        action="see nvidia-smi and the kernel's log (dmesg, Xid 79); reset the machine, or leave "
        "this GPU out with CUDA_VISIBLE_DEVICES",
    )
    DEVICE_SHARED = Code(
        "warning",
        meaning="Other processes use a GPU, and the measured times include their work.",
        action="stop them, or choose other GPUs with CUDA_VISIBLE_DEVICES",
    )
    SETTINGS_DIFFER = Code(
        "warning",
        meaning="Two measurements that are compared, or a calibration and what it predicts, were "
        "made under different settings, on different machines or by different NCCL engines.",
        action="measure both alike: a change may come from the difference, not from the code",
        other_severity="info",
    )
