# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on a Hugging Face GPT-2: rank 1 computes ten products between forward and backward."""

import torch
from shared.gpt2 import gpt2, random_ids
from shared.job import Job, Step, run


def build(job: Job) -> Step:
    model = gpt2(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = random_ids(job, 8, 512)
    size = job.pick(4096, 64)
    weight = torch.randn(size, size, device=job.device)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(ids, labels=ids).loss
        if job.delayed(1):
            for _ in range(10):
                weight @ weight  # planted: delay
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
