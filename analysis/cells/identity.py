"""Which cell a row is of; what must be known of a cell before its other columns are; its
single-device counterparts.
"""

from dpscope.analysis.cells.view import CellView, Group
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import counted

LOST = "the trace does not show what the strategy must have moved (trace_incomplete)"
NO_SAME_BATCH = "no single-device cell with the same options at this batch per device"
NO_GLOBAL_BATCH = "no single-device cell with the same options at the global batch"

CELL = Group("cell", "The cell")


@CELL.column("cell", "text", "Strategy, devices and batch per device")
def cell(cell: CellView) -> str:
    return cell.data.name


@CELL.column("strategy", "text", "dp-host is the CPU stand-in for nn.DataParallel")
def strategy(cell: CellView) -> str:
    return cell.data.strategy


@CELL.column("devices", "count", "Devices the step runs on (CPU: processes or replicas)")
def devices(cell: CellView) -> int:
    return cell.devices


@CELL.column("nodes", "count", "Hosts that its processes run on; 1 for traces alone")
def nodes(cell: CellView) -> int:
    return cell.data.nodes


@CELL.column("batch", "count", "Samples per device and step")
def batch_size(cell: CellView) -> int:
    return cell.data.cell.batch_size


@CELL.column("global batch", "count", "Samples per step over all devices")
def global_batch_size(cell: CellView) -> int:
    return cell.data.global_batch_size


@CELL.column("status", "text", "ok, or what kept the cell from being measured")
def status(cell: CellView) -> str:
    data = cell.data
    failed = [result for result in data.results if result.status != "ok"]
    if data.measured:
        return "ok" if not failed else f"ok, {counted(len(failed), 'repeat')} {failed[0].status}"
    if data.skip_reason is not None:
        return f"skipped: {data.skip_reason}"
    return failed[-1].status if failed else "not run"


def measured(cell: CellView) -> None:
    """Raises Missing for a planned cell that was not measured."""
    if not cell.data.measured:
        raise Missing(f"not measured: {status(cell)}")


def run_measured(cell: CellView) -> None:
    """Raises Missing for what only a run measures, not traces alone."""
    measured(cell)
    assert cell.data.rank  # raises it


def lost(data: Job) -> str:
    """Why the communication of a cell is not known."""
    return data.why_not_traced or LOST


def communication_shown(cell: CellView) -> None:
    """Raises Missing where the traces do not show what must have moved."""
    measured(cell)
    if cell.devices > 1 and not cell.data.communication_known:
        raise Missing(lost(cell.data))


def communicating(cell: CellView) -> None:
    """Raises Missing where the communication of several devices is not known."""
    communication_shown(cell)
    if cell.devices == 1:
        raise Missing("one device: nothing to communicate")


def on_several_devices(cell: CellView) -> None:
    """Raises Missing for one device, with which others are compared."""
    measured(cell)
    if cell.devices == 1:
        raise Missing("one device: nothing to estimate")


def single_at_same_batch(cell: CellView) -> CellView:
    """The cell of one device at the same batch per device."""
    return _measured_single(cell, batch_size(cell), NO_SAME_BATCH)


def single_at_global_batch(cell: CellView) -> CellView:
    """The cell of one device at the global batch."""
    return _measured_single(cell, global_batch_size(cell), NO_GLOBAL_BATCH)


def _measured_single(cell: CellView, batch: int, none_planned: str) -> CellView:
    """Raises Missing where none was planned, or the planned one was not measured."""
    single = known(cell.singles.get(batch), none_planned)
    if not single.data.measured:
        raise Missing(f"{single.data.name} was not measured ({status(single)})")
    return single
