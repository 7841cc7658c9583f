"""The device that bounds the steps of a process with several devices, as that of `nn.DataParallel`."""

import pandas as pd


def critical_windows(windows: pd.DataFrame) -> pd.DataFrame:
    """Of `step_breakdown`'s rows those of each process's critical device: the one that is least idle, by its mean.

    The devices of a process share their steps, so the busiest one bounds them: DataParallel's first device, for example, sends
    the parameters to all others, and such a copy is recorded on the device that sends. A process with one device keeps all rows.
    """
    processes = [name for name in ("repeat", "rank") if name in windows]
    if windows.groupby(processes, dropna=False)["device"].nunique().le(1).all():
        return windows
    places = [*processes, "device"]
    idle_us = windows.groupby(places, dropna=False)["idle_us"].mean().astype("Float64").reset_index()
    least = idle_us.sort_values("idle_us", kind="stable").drop_duplicates(processes)[places]
    return windows.merge(least, on=places)
