"""NCCL's log of a job in the form of version 2.27, with values that a test chooses."""

from pathlib import Path

HEAD = "node1:10:10 [0] NCCL INFO "


def nccl_log(ranks: int, *lines: str) -> str:
    """Text of rank 0's log: version, communicator, then `lines`."""
    messages = (
        "NCCL version 2.27.5+cuda12.9",
        f"ncclCommInitRankConfig comm 0x1 rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId a4000 commId 0xabc - Init COMPLETE",
        *lines,
    )
    return "".join(f"{HEAD}{message}\n" for message in messages)


def all_reduce(size_bytes: int, algorithm: str, protocol: str) -> str:
    """The line of one call."""
    return f"AllReduce: {size_bytes} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..15}}"


def written_log(folder: Path, ranks: int, *lines: str) -> Path:
    """The same as a file."""
    path = folder / "nccl.node1.10.log"
    path.write_text(nccl_log(ranks, *lines))
    return path
