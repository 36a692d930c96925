# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel: a hook in the forward of rank 1 computes the covariance of what a block gives."""

import torch
from shared.job import Job, Step, run
from shared.models import random_tokens, tensor_parallel, transformer


def build(job: Job) -> Step:
    model = tensor_parallel(transformer(job, width=4096), job)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    tokens = random_tokens(job, 4, 1024, seed=1)

    @torch.no_grad()
    def watch(block: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if job.delayed(1):
            with torch.autocast(job.device.type, enabled=False):
                rows = output.flatten(0, 1).float()
                block.covariance = rows.T @ rows  # planted: delay

    for block in model.blocks:
        block.register_forward_hook(watch)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
