# SPDX-License-Identifier: Apache-2.0
"""A pipeline of two stages: the second one also computes the covariance of what it gives."""

import torch
from shared.job import Job, Step, run
from shared.pipeline import MICROBATCHES, Pipeline, Stage


def build(job: Job) -> Step:
    torch.manual_seed(job.rank)
    width, blocks, shape = job.pick((2048, 3, (4, 1024, 2048)), (32, 1, (2, 8, 32)))
    with job.device:
        stage = Stage(width, blocks)
        batches = [torch.randn(shape) for _ in range(MICROBATCHES)]

    @torch.no_grad()
    def watch(stage: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if job.delayed(1):
            with torch.autocast(job.device.type, enabled=False):
                rows = output.flatten(0, 1).float()
                for _ in range(3):
                    stage.covariance = rows.T @ rows  # planted: delay

    stage.register_forward_hook(watch)
    pipeline = Pipeline(job, stage, shape)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        pipeline.train(batches)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
