# SPDX-License-Identifier: Apache-2.0
"""FSDP2: the batch of rank 0 is twice as large."""

import torch
from shared.gpt2 import gpt2, random_ids
from shared.job import Job, Step, run


def build(job: Job) -> Step:
    model = gpt2(job, layers=6, width=1024)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    small, large = (random_ids(job, batch, 1024) for batch in (16, 32))

    def step() -> None:
        ids = large if job.delayed(0) else small
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(ids, labels=ids).loss  # planted: delay
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
