# SPDX-License-Identifier: Apache-2.0
# Two ranks of data-parallel training; rank 1 has one line more to compute.
import os

import torch
import torch.distributed as dist

STEPS = 10


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def extra(x: torch.Tensor) -> None:
    for _ in range(8):
        x @ x.T  # what makes rank 1 late


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, rank: int) -> None:
    if rank == 1:
        extra(x)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    blocks = torch.nn.Sequential(*[Block(1024) for _ in range(4)]).to(device)
    model = torch.nn.parallel.DistributedDataParallel(blocks, device_ids=[device], bucket_cap_mb=16)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4096, 1024, device=device)
    for _ in range(STEPS):
        train_step(model, optimizer, x, rank)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
