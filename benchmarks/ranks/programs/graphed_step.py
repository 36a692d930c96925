# SPDX-License-Identifier: Apache-2.0
"""A step in a CUDA graph, all-reduces and all; in the graph of rank 1 there are some products more."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from shared.job import Job, Step, run
from shared.pipeline import Stage


def graphed(job: Job, work: Callable[[], None]) -> Callable[[], None]:
    """Replays what work does; on the CPU it does it anew."""
    if not job.on_gpu:
        return work
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    job.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


def build(job: Job) -> Step:
    torch.manual_seed(0)
    width, blocks, size = job.pick((1024, 6, 4096), (32, 1, 64))
    with job.device:
        model = Stage(width, blocks)
        x = torch.randn(job.pick((8, 1024, width), (2, 8, width)))
        matrix = torch.randn(size, size)
    weights = list(model.parameters())

    def work(delayed: bool) -> None:
        with torch.autocast(job.device.type, torch.bfloat16, cache_enabled=False):
            loss = model(x).float().square().mean()
        if delayed:
            for _ in range(2):
                matrix @ matrix  # planted: delay
        gradients = torch.autograd.grad(loss, weights)
        for gradient in gradients:
            dist.all_reduce(gradient)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-1e-3 / job.world)

    plain, late = (graphed(job, lambda late=late: work(late)) for late in (False, True))

    def step() -> None:
        replay = late if job.delayed(1) else plain
        replay()

    return step


if __name__ == "__main__":
    run(build)
