# SPDX-License-Identifier: Apache-2.0
"""A pipeline of two equal stages: each waits for the other at the begin and at the end."""

import torch
from shared.job import Job, Step, run
from shared.pipeline import MICROBATCHES, Pipeline, Stage


def build(job: Job) -> Step:
    torch.manual_seed(job.rank)
    width, blocks, shape = job.pick((2048, 3, (4, 1024, 2048)), (32, 1, (2, 8, 32)))
    with job.device:
        stage = Stage(width, blocks)
        batches = [torch.randn(shape) for _ in range(MICROBATCHES)]
    pipeline = Pipeline(job, stage, shape)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        pipeline.train(batches)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
