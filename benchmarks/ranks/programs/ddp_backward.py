# SPDX-License-Identifier: Apache-2.0
"""DDP: a hook in the backward of rank 1 computes the covariance of a block's gradient."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = transformer(job)
    tokens = random_tokens(job)
    losses: list[float] = []

    def watch(block: torch.nn.Module, of_inputs: object, of_outputs: tuple[torch.Tensor, ...]) -> None:
        if job.delayed(1):
            rows = of_outputs[0].flatten(0, 1).float()
            block.covariance = rows.T @ rows  # planted: delay

    for block in model.blocks:
        block.register_full_backward_hook(watch)
    model = data_parallel(model, job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

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
