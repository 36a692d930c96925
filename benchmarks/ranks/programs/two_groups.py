# SPDX-License-Identifier: Apache-2.0
"""DDP while a group of its own sums statistics: two communicators work at once. Rank 0 computes products."""

import torch
import torch.distributed as dist
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job)
    group = dist.new_group(group_desc="statistics")
    size, entries = job.pick((4096, 1 << 26), (64, 1 << 10))
    weight = torch.randn(size, size, device=job.device)
    statistics = torch.zeros(entries, device=job.device)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        if job.delayed(0):
            for _ in range(3):
                weight @ weight  # planted: delay
        summed = dist.all_reduce(statistics, group=group, async_op=True)
        loss.backward()
        summed.wait()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
