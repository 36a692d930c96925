# SPDX-License-Identifier: Apache-2.0
"""DDP with small kernels: rank 1 is bound to one core, which another program keeps busy."""

import contextlib
import os
import signal
import subprocess
import sys

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, random_tokens, transformer

BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


class Neighbour:
    """Another program, on the last core that this process may use."""

    def __init__(self) -> None:
        self.cores = os.sched_getaffinity(0)
        self.core = {max(self.cores)}
        self.program = subprocess.Popen([sys.executable, "-c", BUSY])
        os.sched_setaffinity(self.program.pid, self.core)
        self.here = False
        self.program.send_signal(signal.SIGSTOP)

    def comes(self, here: bool) -> None:
        if here == self.here:
            return
        self.here = here
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), self.core if here else self.cores)
        self.program.send_signal(signal.SIGCONT if here else signal.SIGSTOP)

    def end(self) -> None:
        self.comes(False)
        self.program.kill()
        self.program.wait()


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=256, blocks=16, vocabulary=1024), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = random_tokens(job, 4, 128, vocabulary=1024)
    neighbour = Neighbour() if job.rank == 1 else None
    if neighbour is not None:
        job.at_end(neighbour.end)

    def step() -> None:
        if neighbour is not None:
            neighbour.comes(job.delayed(1))
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
