# SPDX-License-Identifier: Apache-2.0
"""DDP with small kernels: rank 1 writes a text for its log between forward and backward, in Python."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer

WORDS = ("loss", "rate", "norm", "scale", "tokens")


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=256, blocks=16, vocabulary=1024), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job, 4, 128, vocabulary=1024)
    log: list[str] = []

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        if job.delayed(1):
            log.append(" ".join(WORDS[number % len(WORDS)] for number in range(100_000)))  # planted: delay
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.clear()

    return step


if __name__ == "__main__":
    run(build)
