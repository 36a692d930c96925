# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel: all ranks do the same."""

import torch
from shared.job import Job, Step, run
from shared.models import random_tokens, tensor_parallel, transformer


def build(job: Job) -> Step:
    model = tensor_parallel(transformer(job, width=4096), job)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    tokens = random_tokens(job, 4, 1024, seed=1)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
