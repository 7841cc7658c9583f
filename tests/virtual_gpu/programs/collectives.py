"""Each collective between the ranks of a job, its result compared on the host with what it must be.

torchrun --nproc-per-node=N -m tests.virtual_gpu.programs.collectives
"""

import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

COUNT = 24


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = [torch.arange(COUNT, dtype=torch.float32) + 100 * peer for peer in range(ranks)]
    own, total = values[rank].cuda(), torch.stack(values).sum(0)

    for dtype in (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int32,
        torch.int64,
    ):
        reduced = own.cpu().to(dtype).cuda()
        dist.all_reduce(reduced)
        check(f"all_reduce {dtype}", reduced, total.to(dtype))
    extremes = (
        (dist.ReduceOp.MAX, values[-1]),
        (dist.ReduceOp.MIN, values[0]),
        (dist.ReduceOp.AVG, total / ranks),
    )
    for operation, expected in extremes:
        reduced = values[rank].cuda()
        dist.all_reduce(reduced, op=operation)
        check(f"all_reduce {operation}", reduced, expected)
    scaled = values[rank].cuda()
    dist.all_reduce(scaled, op=_make_nccl_premul_sum(0.5))
    check("all_reduce of halves", scaled, total / 2)

    sent = values[rank].cuda()
    dist.broadcast(sent, src=1)
    check("broadcast", sent, values[1])
    gathered = torch.empty(ranks * COUNT, device=device)
    dist.all_gather_into_tensor(gathered, own)
    check("all_gather", gathered, torch.cat(values))
    part = torch.empty(COUNT // ranks, device=device)
    dist.reduce_scatter_tensor(part, own)
    check("reduce_scatter", part, total.chunk(ranks)[rank])
    exchanged = torch.empty(COUNT, device=device)
    dist.all_to_all_single(exchanged, own)
    check("all_to_all", exchanged, torch.cat([value.chunk(ranks)[rank] for value in values]))
    around = torch.empty(COUNT, device=device)
    messages = [
        dist.P2POp(dist.isend, own, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, around, (rank - 1) % ranks),
    ]
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    check("send and receive", around, values[(rank - 1) % ranks])
    pair = dist.new_group([0, 1])
    if rank < 2:
        assert isinstance(pair, dist.ProcessGroup)
        reduced = values[rank].cuda()
        dist.all_reduce(reduced, group=pair)
        check("all_reduce of a group", reduced, values[0] + values[1])
    dist.barrier()
    dist.destroy_process_group()


def check(name: str, result: torch.Tensor, expected: torch.Tensor) -> None:
    found = result.cpu()
    assert torch.equal(found, expected), f"{name}: {found.tolist()} instead of {expected.tolist()}"


if __name__ == "__main__":
    main()
