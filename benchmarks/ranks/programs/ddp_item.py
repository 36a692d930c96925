# SPDX-License-Identifier: Apache-2.0
"""DDP: rank 0 reads the norm of each gradient for its log."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=1024, blocks=8), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job)
    norms: dict[str, float] = {}

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        if job.delayed(0):
            for name, weight in model.named_parameters():
                norms[name] = weight.grad.norm().item()  # planted: delay
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
