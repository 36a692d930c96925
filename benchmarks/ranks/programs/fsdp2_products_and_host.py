# SPDX-License-Identifier: Apache-2.0
"""The same with a host of rank 0 that is slow as well: a hook before each block works in Python."""

import torch
from shared.gpt2 import gpt2, random_ids
from shared.job import Job, Step, run

NOTE = "what a layer saw " * 1500


def build(job: Job) -> Step:
    model = gpt2(job, layers=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = random_ids(job, 16, 512)
    size = job.pick(4096, 64)
    weight = torch.randn(size, size, device=job.device)

    def watch(block: torch.nn.Module, inputs: object) -> None:
        if job.delayed(0, "host"):
            block.digest = sum(ord(letter) for letter in NOTE)  # planted: host

    for block in model.transformer.h:
        block.register_forward_pre_hook(watch)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(ids, labels=ids).loss
        if job.delayed(1):
            for _ in range(10):
                weight @ weight  # planted: delay
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
