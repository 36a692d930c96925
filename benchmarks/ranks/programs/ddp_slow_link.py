# SPDX-License-Identifier: Apache-2.0
"""DDP over a link that is too slow: NCCL_P2P_DISABLE=1 sends everything through the host's memory.

Mended it sends nothing: what is left is the step if transfers took no time.
"""

from contextlib import nullcontext

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=1024, blocks=8), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job)

    def step() -> None:
        with nullcontext() if job.planted() else model.no_sync():
            with torch.autocast(job.device.type, torch.bfloat16):
                loss = model(tokens)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
