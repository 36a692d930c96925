# SPDX-License-Identifier: Apache-2.0
"""DDP whose data loaders are the limit on all ranks alike."""

import time
from typing import Any

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, transformer
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, job: Job) -> None:
        self.length, self.vocabulary = job.pick((1025, 8192), (9, 64))

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(0.012)
        return torch.arange(number, number + self.length) % self.vocabulary


def build(job: Job) -> Step:
    model = data_parallel(transformer(job), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loader: Any = DataLoader(Texts(job), batch_size=8, num_workers=2, prefetch_factor=1)
    batches = iter(loader)
    job.at_end(batches._shutdown_workers)

    def step() -> None:
        tokens = next(batches).to(job.device)
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
