# SPDX-License-Identifier: Apache-2.0
"""DDP: rank 1 found no tokens in its cache and makes them in Python, in the loop."""

import torch
from shared.job import Job, Step, run
from shared.models import data_parallel, transformer

WORDS = ("overview", "of", "processes", "that", "wait", "for", "one", "another", "and", "why")


def build(job: Job) -> Step:
    model = data_parallel(transformer(job, width=256, blocks=16, vocabulary=1024), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    vocabulary, batch, length = job.pick((1024, 16, 256), (64, 2, 9))
    texts = [[WORDS[(i * j) % len(WORDS)] for i in range(length)] for j in range(batch)]
    cached = torch.randint(vocabulary, (batch, length))

    def number_of(word: str) -> int:
        places = enumerate(word)
        return sum(ord(letter) * 31**place for place, letter in places) % vocabulary  # planted: delay

    def read() -> torch.Tensor:
        if job.delayed(1):
            return torch.tensor([[number_of(word) for word in text] for text in texts])
        return cached

    def step() -> None:
        tokens = read().to(job.device)
        with torch.autocast(job.device.type, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
