# SPDX-License-Identifier: Apache-2.0
"""DDP: all ranks do the same."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job)
    losses: list[float] = []

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    return step


if __name__ == "__main__":
    run(build)
