# SPDX-License-Identifier: Apache-2.0
"""DDP: rank 1 collects garbage after every step, and its vocabulary is many objects."""

import gc

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=1024, blocks=8), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job)
    entries = job.pick(200_000, 1000) if job.rank == 1 else 0
    vocabulary = [{"number": number, "text": [str(number)]} for number in range(entries)]
    losses: list[float] = []

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() + len(vocabulary))
        if job.delayed(1):
            gc.collect()  # planted: delay

    return step


if __name__ == "__main__":
    run(build)
