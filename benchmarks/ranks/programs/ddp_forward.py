# SPDX-License-Identifier: Apache-2.0
"""DDP: a hook in the forward of rank 1 computes the covariance of what a block gives."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = transformer(job)
    tokens = random_tokens(job)

    @torch.no_grad()
    def watch(block: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if job.delayed(1):
            with torch.autocast(job.device.type, enabled=False):
                rows = output.flatten(0, 1).float()
                block.covariance = rows.T @ rows  # planted: delay

    for block in model.blocks:
        block.register_forward_hook(watch)
    model = data_parallel(model, job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
