"""Tables of collectives as one rank's trace gives them, made by hand."""

from collections.abc import Mapping, Sequence

import pandas as pd


def rank_table(
    rank: int, rows: Sequence[Mapping[str, object]], device: int | None = 0
) -> pd.DataFrame:
    defaults: dict[str, object] = {
        "rank": rank, "device": device, "step": 1, "kind": "all_reduce", "group": "0", "sequence": None,
        "bytes": 1_000_000, "group_size": 2, "start_us": 0.0,
    }  # fmt: skip
    table = pd.DataFrame([{**defaults, **row} for row in rows])
    whole = ["rank", "device", "step", "sequence", "bytes", "group_size"]
    table[whole] = table[whole].astype("Int64")
    table[["kind", "group"]] = table[["kind", "group"]].astype("string")
    table[["start_us", "duration_us"]] = table[["start_us", "duration_us"]].astype("Float64")
    return table


def matched_rows(
    *rows: tuple[int, int | None, int | None, float, float | None, float | None],
) -> pd.DataFrame:
    """rank, device, step, start_us, transfer_us, wait_us of one collective each; unmatched if these
    are None, and 50 us long.
    """
    table = pd.DataFrame(
        rows, columns=["rank", "device", "step", "start_us", "transfer_us", "wait_us"]
    )
    table[["rank", "device", "step"]] = table[["rank", "device", "step"]].astype("Int64")
    table = table.astype({"start_us": "float64", "transfer_us": "Float64", "wait_us": "Float64"})
    matched = pd.array(range(len(table)), dtype="Int64")
    return table.assign(
        kind=pd.array(["all_reduce"] * len(table), dtype="string"),
        bytes=pd.array([1_000_000] * len(table), dtype="Int64"),
        match=pd.Series(matched, index=table.index).where(table["wait_us"].notna()),
        duration_us=(table["transfer_us"] + table["wait_us"]).fillna(50.0),
    )


def stretch_rows(*rows: tuple[int, int | None, int | None, float, float]) -> pd.DataFrame:
    """rank, device, step, start_us, end_us, as the second of `step_tables`."""
    table = pd.DataFrame(rows, columns=["rank", "device", "step", "start_us", "end_us"])
    table[["rank", "device", "step"]] = table[["rank", "device", "step"]].astype("Int64")
    return table
