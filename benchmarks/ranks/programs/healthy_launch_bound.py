# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with small kernels: all hosts are the limit alike."""

import torch
from shared.job import Job, Step, run
from shared.models import random_tokens, transformer
from torch.distributed.fsdp import fully_shard


def build(job: Job) -> Step:
    model = transformer(job, width=256, blocks=6, vocabulary=1024)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = random_tokens(job, 4, 128, vocabulary=1024)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
