"""NCCL's log of a job in the form of version 2.27, with values that a test chooses."""

from pathlib import Path

HEAD = "node1:10:10 [0] NCCL INFO "
TABLE = (
    "  Algorithm   |              Tree              |              Ring              |",
    "  Protocol    |     LL |  LL128 | Simple |     LL |  LL128 | Simple |",
    "    AllReduce |     6.0/   2.0 |    12.0/  10.0 |    30.0/  12.0 |    14.0/   3.0 |    28.0/  20.0 |    56.0/  25.0 |",
)


def nccl_log(ranks: int, *lines: str, channels: int = 16, table: bool = True) -> str:
    """Text of rank 0's log: version, cost table, channels, communicator, then `lines`."""
    messages = (
        "NCCL version 2.27.5+cuda12.9",
        *(TABLE if table else ()),
        f"{channels} coll channels, 0 collnet channels, 0 nvls channels, {channels} p2p channels, 2 p2p channels per peer",
        f"ncclCommInitRankConfig comm 0x1 rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId a4000 commId 0xabc - Init COMPLETE",
        *lines,
    )
    return "".join(f"{HEAD}{message}\n" for message in messages)


def all_reduce(size_bytes: int, algorithm: str, protocol: str) -> str:
    """The line of one call."""
    return f"AllReduce: {size_bytes} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..15}}"


def written_log(folder: Path, ranks: int, *lines: str, channels: int = 16, table: bool = True) -> Path:
    """The same as a file."""
    path = folder / "nccl.node1.10.log"
    path.write_text(nccl_log(ranks, *lines, channels=channels, table=table))
    return path
