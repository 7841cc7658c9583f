"""Tables of collectives as one rank's trace gives them, made by hand."""

from collections.abc import Mapping, Sequence

import pandas as pd


def rank_table(rank: int, rows: Sequence[Mapping[str, object]], device: int | None = 0) -> pd.DataFrame:
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
