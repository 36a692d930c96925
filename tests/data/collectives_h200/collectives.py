# SPDX-License-Identifier: Apache-2.0
import os  # noqa: I001  these are the lines of the recordings
import torch
import torch.distributed as dist

MB = 1 << 20


def exchange(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def gather_shards(shard: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(2 * shard.numel(), device=shard.device)
    dist.all_gather_into_tensor(whole, shard)
    return whole


def scatter_gradients(whole: torch.Tensor) -> torch.Tensor:
    shard = torch.empty(whole.numel() // 2, device=whole.device)
    dist.reduce_scatter_tensor(shard, whole)
    return shard


def pass_on(x: torch.Tensor, rank: int) -> None:
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def swap(x: torch.Tensor, rank: int) -> torch.Tensor:
    got = torch.empty_like(x)
    other = 1 - rank
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, got, other)])
    for work in works:
        work.wait()
    return got


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    named = dist.new_group([0, 1], group_desc="experts")
    weight = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(4 * MB, device="cuda")
    for step in range(10):
        torch.cuda.nvtx.range_push(f"step {step}")
        y = weight
        for _ in range(4 + 8 * rank):
            y = y @ weight
        exchange(x)
        whole = gather_shards(x[: 2 * MB])
        scatter_gradients(whole)
        pass_on(x[:MB], rank)
        swap(x[:MB], rank)
        dist.broadcast(x, 0)
        dist.reduce(x[: 2 * MB], 0)
        parts = [torch.empty(MB, device="cuda") for _ in range(2)]
        dist.all_to_all(parts, [x[:MB], x[MB : 2 * MB]])
        dist.all_gather(parts, x[:MB])
        dist.all_reduce(x[: 2 * MB], group=named)
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
