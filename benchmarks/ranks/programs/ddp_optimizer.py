# SPDX-License-Identifier: Apache-2.0
"""DDP: rank 0 keeps averages of the weights, at several rates of decay."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer

DECAYS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995)


def build(job: Job) -> Step:
    model = data_parallel(transformer(job), job)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    tokens = random_tokens(job)
    averages = [[weight.detach().clone() for weight in weights] for _ in DECAYS] if job.rank == 0 else []

    @torch.no_grad()
    def update() -> None:
        for average, decay in zip(averages, DECAYS, strict=True):
            torch._foreach_lerp_(average, weights, 1 - decay)  # planted: delay

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if job.delayed(0):
            update()

    return step


if __name__ == "__main__":
    run(build)
