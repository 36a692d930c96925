# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel with small kernels: a hook in the forward of rank 0 works in Python."""

import torch
from shared.job import Job, Step, run
from shared.models import random_tokens, tensor_parallel, transformer

NOTE = "what a layer saw " * 1500


def build(job: Job) -> Step:
    model = tensor_parallel(transformer(job, width=1024, blocks=8), job)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    tokens = random_tokens(job, 2, 512, seed=1)

    def watch(block: torch.nn.Module, inputs: object) -> None:
        if job.delayed(0):
            block.digest = sum(ord(letter) for letter in NOTE)  # planted: delay

    for block in model.blocks:
        block.register_forward_pre_hook(watch)

    def step() -> None:
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
