# SPDX-License-Identifier: Apache-2.0
"""DDP: rank 0 alone writes the newest weights of the head to a file, after every step."""

import tempfile
from pathlib import Path

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=1024, blocks=8), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job)
    folder = tempfile.TemporaryDirectory()
    job.at_end(folder.cleanup)
    newest = Path(folder.name, "head.pt")

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if job.delayed(0):
            torch.save(model.module.head.state_dict(), newest)  # planted: delay

    return step


if __name__ == "__main__":
    run(build)
