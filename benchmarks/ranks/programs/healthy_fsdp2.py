# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on a Hugging Face GPT-2: all ranks do the same."""

import torch
from shared.gpt2 import gpt2, random_ids
from shared.job import Job, Step, run


def build(job: Job) -> Step:
    model = gpt2(job, layers=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = random_ids(job, 32, 1024)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
