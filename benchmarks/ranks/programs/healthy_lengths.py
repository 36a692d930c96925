# SPDX-License-Identifier: Apache-2.0
"""DDP on sequences of any length: in each step another rank has the longest, so none is the one to mend."""

import random

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer

LENGTHS = (640, 768, 896, 1024, 1152)


def build(job: Job) -> Step:
    model = data_parallel(transformer(job), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [random_tokens(job, 8, length) for length in LENGTHS]
    drawn = random.Random(0)
    turns: list[list[torch.Tensor]] = []

    def step() -> None:
        if not turns:  # every rank gets each of them once
            chosen = drawn.choices(batches, k=job.world)
            turns.extend(chosen[number:] + chosen[:number] for number in range(job.world))
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(turns.pop()[job.rank])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
