# SPDX-License-Identifier: Apache-2.0
"""DDP of a large model on few tokens: gradients take longer to send than to compute.

Mended it sends nothing: what is left is the step if transfers took no time.
"""

from contextlib import nullcontext

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=4096), job, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = random_tokens(job, 1, 256)

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
