"""Findings about what NCCL chose, from its own log (`--nccl-log`, `dpscope calibrate` on GPUs)."""

from dpscope.profiling.records.finding import FindingCode


class NcclCode(FindingCode):
    """Findings about what NCCL chose: network, transports, protocols, channels."""

    SOCKETS_WITH_INFINIBAND = (
        "sockets_with_infiniband",
        "warning",
        "NCCL found InfiniBand or RoCE devices, but ranks communicate over TCP sockets.",
        "unset NCCL_IB_DISABLE and NCCL_NET, check that NCCL_IB_HCA names active ports on every host, and run again",
    )
    NO_GPU_DIRECT_RDMA = (
        "no_gpu_direct_rdma",
        "warning",
        "NCCL uses InfiniBand or RoCE without GPUDirect RDMA: every message is copied through host memory.",
        "load nvidia-peermem (or use a driver with DMA-BUF), check NCCL_NET_GDR_LEVEL, and run again",
    )
    SHARED_MEMORY_WITH_PEER_ACCESS = (
        "shared_memory_with_peer_access",
        "warning",
        "GPUs of a host communicate through host memory (SHM), although peer-to-peer access between GPUs is possible.",
        "unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, and check peer access with dpscope doctor and nvidia-smi topo -p2p r",
    )
    PROTOCOL_SLOWS_SMALLER_BUCKET = (
        "protocol_slows_smaller_bucket",
        "warning",
        "NCCL changes its algorithm or protocol between two sizes of all-reduce, and the smaller one takes longer.",
        "choose a bucket_cap_mb that avoids the smaller size, or compare NCCL_PROTO=Simple and NCCL_ALGO=Ring",
    )
    FEWER_CHANNELS_THAN_LINKS = (
        "fewer_channels_than_links",
        "info",
        "NCCL uses fewer channels than there are links or network ports, so some of them carry no data.",
        "compare with NCCL_MIN_NCHANNELS set to the number of links; unset NCCL_MAX_NCHANNELS",
    )
    NCCL_LOG_INCOMPLETE = (
        "nccl_log_incomplete",
        "info",
        "Some lines of NCCL's log are cut off or have an unknown form, so choices may be missing.",
        "write one log per process with NCCL_DEBUG_FILE=nccl.%h.%p.log",
    )
    NCCL_CHOICES_NOT_READ = (
        "nccl_choices_not_read",
        "info",
        "The calibration did not record which algorithms NCCL chose.",
        "unset NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE and calibrate again, or pass a log with --nccl-log",
    )
