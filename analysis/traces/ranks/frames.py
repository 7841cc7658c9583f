"""The tables of traces as DataFrames, for the Python API; dpscope itself computes with `Table`."""

from collections.abc import Sequence

import pandas as pd

from dpscope.analysis.traces.ranks.clock_alignment import RankClock, rank_clocks
from dpscope.analysis.traces.ranks.exposed_parts import waits_by_step
from dpscope.analysis.traces.ranks.lateness import waits_by_pair
from dpscope.analysis.traces.ranks.matching import MatchedRanks, RankOrigin, match_tables
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import step_table
from dpscope.analysis.traces.steps.collectives import collective_table
from dpscope.analysis.traces.steps.data_parallel import dp_phase_table


def step_breakdown(attribution: Attribution) -> pd.DataFrame:
    """`step_table` as a DataFrame: a row per (rank, device, step), microseconds."""
    return step_table(attribution).frame


def collectives(attribution: Attribution) -> pd.DataFrame:
    """`collective_table` as a DataFrame: a row per collective of one rank."""
    return collective_table(attribution).frame


def dp_phases(attribution: Attribution) -> pd.DataFrame:
    """`dp_phase_table` as a DataFrame: a row per (rank, device, step, phase)."""
    return dp_phase_table(attribution).frame


def match_ranks(
    rank_tables: Sequence[pd.DataFrame], origins: Sequence[RankOrigin] = ()
) -> MatchedRanks:
    """`match_tables` of the `collectives` of the ranks of one job."""
    return match_tables([Table.from_frame(rank_table) for rank_table in rank_tables], origins)


def align_clocks(collectives: pd.DataFrame, origins: Sequence[RankOrigin]) -> tuple[RankClock, ...]:
    """`rank_clocks` of `match_ranks`' table."""
    return rank_clocks(Table.from_frame(collectives), origins)


def step_waits(table: pd.DataFrame) -> pd.DataFrame:
    """`waits_by_step` of `match_ranks`' table: transfers and waits per (rank, device, step),
    microseconds.
    """
    return waits_by_step(Table.from_frame(table)).frame


def waits_caused(table: pd.DataFrame) -> pd.DataFrame:
    """`waits_by_pair` of `match_ranks`' table: a row per (late rank, waiting rank)."""
    return waits_by_pair(Table.from_frame(table)).frame
