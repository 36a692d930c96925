# SPDX-License-Identifier: Apache-2.0
"""DDP on images: those of rank 1 are copied from pageable memory, those of the others from pinned memory."""

import torch
import torch.nn.functional as F
from shared.job import Job, Step, run
from shared.models import Block, data_parallel
from torch import Tensor, nn

CLASSES, PATCH = 1000, 16


class Vision(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, width)
        self.blocks = nn.Sequential(*(Block(width, 64) for _ in range(blocks)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        squares = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
        x = self.patches(squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        return self.head(self.blocks(x).mean(1))


def build(job: Job) -> Step:
    torch.manual_seed(0)
    batch, side, width, blocks = job.pick((256, 224, 512, 4), (2, 32, 64, 1))
    with job.device:
        model = Vision(width, blocks)
    model = data_parallel(model, job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    pageable = torch.randn(batch, 3, side, side)
    pinned = pageable.pin_memory() if job.on_gpu else pageable
    labels = torch.randint(CLASSES, (batch,), device=job.device)

    def step() -> None:
        images = pageable if job.delayed(1) else pinned
        images = images.to(job.device, non_blocking=True)  # planted: delay
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
