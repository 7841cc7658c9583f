"""Variants before anything runs: what is requested, refused, planned and stored, and how batches
are cut.
"""

from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import torch
from torch import nn

from dpscope.analysis.runs.counter_check import check_counters
from dpscope.analysis.runs.traffic_check import reduced_bytes
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.input_pipeline import MicroBatching, open_stream
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.matrix import CommHook
from dpscope.profiling.records.run import Cell, CellOptions, DdpCounters, ParameterSizes
from dpscope.profiling.records.strategies import ddp_arguments, powersgd_elements
from tests.helpers.run_cells import traced_table

HOST = Devices(kind="cpu", count=None)


# of options that are no list of words
ANOTHER_VALUE = {"bucket_mb": 5.0, "accumulate": 2, "amp": "bf16", "ddp_args": "a=1"}


def test_every_option_stands_in_the_name_of_its_cell() -> None:
    """Cells of one name would share a folder."""
    names = {""}
    for option, kind in get_type_hints(CellOptions).items():
        default = getattr(CellOptions(), option)
        others = [value for value in get_args(kind) if value != default]
        changed: dict[str, Any] = {option: ANOTHER_VALUE.get(option, others and others[0])}
        names.add(CellOptions(**changed).name)
    assert len(names) == 1 + len(CellOptions.__struct_fields__), "add it to CellOptions.name"


def test_what_older_versions_stored_still_loads() -> None:
    cell = msgspec.json.decode(
        b'{"strategy": "ddp", "devices": 2, "batch_size": 8, "variant": ""}', type=Cell
    )
    assert (cell.name, cell.options) == ("ddp-d2-b8", CellOptions())
    assert msgspec.json.decode(b"{}", type=RunConfig) == RunConfig()
    sizes = b'{"parameter_count": 1, "parameter_bytes": 4, "gradient_bytes": 4, "buffer_bytes": 0}'
    assert msgspec.json.decode(sizes, type=ParameterSizes).gradient_elements is None


def test_a_stored_variant_names_its_options() -> None:
    cell = Cell(
        strategy="ddp", devices=2, batch_size=8, options=CellOptions(bucket_mb=5.0, accumulate=2)
    )
    assert cell.variant == "bucket-5mb-accumulate-2"
    assert msgspec.json.decode(msgspec.json.encode(cell), type=Cell) == cell
    with pytest.raises(ValueError, match="does not name the options"):
        Cell(strategy="ddp", devices=2, batch_size=8, variant="overlap-off")


@pytest.mark.parametrize("data", ["synthetic", "fake"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_dataparallels_micro_batches_are_the_ranks_micro_batches(data: str, count: int) -> None:
    built = BuiltModel(model=nn.Identity(), input_shape=(3, 4, 4), classes=4)
    config = load_config(
        None, {"samples": 20, "data": data, **({"workers": 0} if data == "fake" else {})}
    )
    options = CellOptions(accumulate=count)

    def parts(strategy: str, rank: int, shares: int) -> list[list[torch.Tensor]]:
        cell = Cell(strategy=strategy, devices=2, batch_size=6, options=options)  # type: ignore[arg-type]
        stream = open_stream(config.workload, cell, built, rank, torch.device("cpu"))
        cut = MicroBatching(count=count, shares=shares).cut
        # over smaller last batches
        return [[images for images, _ in cut(*stream.next_batch())] for _ in range(4)]

    whole, ranks = parts("dp-host", 0, 2), [parts("ddp", rank, 1) for rank in (0, 1)]
    assert not torch.equal(ranks[0][0][0], ranks[1][0][0])
    for step, of_dp in enumerate(whole):
        of_ranks = [torch.cat(both) for both in zip(ranks[0][step], ranks[1][step], strict=True)]
        assert len(of_dp) == len(of_ranks) == count
        assert all(torch.equal(one, other) for one, other in zip(of_dp, of_ranks, strict=True))


def test_counters_count_what_a_hook_compresses() -> None:
    """Buckets of 800 and 1,800 B go as 400 and 900 B; 9.8 ms of all-reduces in DDP's 15 ms, casts
    and copies included.
    """
    counters = [
        DdpCounters(
            step=3, forward_compute_us=1, backward_compute_us=1, backward_comm_us=15_000, overlap_us=0,
            bucket_bytes=(800, 1800),
        )
    ]  # fmt: skip
    rows = (
        {
            "rank": 0, "device": 0, "step": 3, "kind": "all_reduce", "bytes": size, "start_us": start,
            "duration_us": duration,
        }
        for size, start, duration in ((400, 0.0, 3000.0), (900, 5000.0, 4800.0))
    )  # fmt: skip
    table = traced_table("collectives", rows)
    check = check_counters(counters, table, rank=0, sent_share=0.5)
    assert (check.steps, check.buckets_equal, check.spans_agree, check.union_within_span) == (
        1,
        True,
        True,
        True,
    )
    check = check_counters(counters, table, rank=0, reduction_ends_us={3: [9_800.0]})
    assert (check.buckets_equal, check.spans_agree) == (False, False)
    # less than what it is to hold
    short = [msgspec.structs.replace(counters[0], backward_comm_us=8_000)]
    assert not check_counters(short, table, rank=0, sent_share=0.5).spans_agree


def test_further_arguments_of_ddp_are_read_as_json() -> None:
    assert ddp_arguments("bucket_cap_mb_list=[1,25] batched_grad_copy=true mixed_precision=bf16") == {
        "bucket_cap_mb_list": [1, 25], "batched_grad_copy": True, "mixed_precision": "bf16",
    }  # fmt: skip


def test_powersgd_sends_factors_where_they_are_less_than_half() -> None:
    """64 x 3 x 3 x 3 is 64 x 27 = 1,728 elements, sent as 64 + 27 = 91; a 4 x 4 matrix stays (2 x 8
    is not below 16), as does a vector of 64 and a scalar."""
    assert powersgd_elements(((64, 3, 3, 3), (4, 4), (64,), ())) == 91 + 16 + 64 + 1
    sizes = ParameterSizes(
        parameter_count=1792, parameter_bytes=7168, gradient_bytes=7168, buffer_bytes=0, gradient_elements=1792,
        gradient_shapes=((64, 3, 3, 3), (64,)),
    )  # fmt: skip
    sent = {
        hook: reduced_bytes(
            Cell(strategy="ddp", devices=2, batch_size=8, options=CellOptions(comm_hook=hook)),
            sizes,
        )
        for hook in get_args(CommHook)
    }
    assert sent == {"none": 7168, "fp16": 3584, "bf16": 3584, "powersgd": 4 * (91 + 64)}
    mixed = CellOptions(ddp_args="mixed_precision=bf16")
    assert (
        reduced_bytes(Cell(strategy="ddp", devices=2, batch_size=8, options=mixed), sizes) == 3584
    )
