# SPDX-License-Identifier: Apache-2.0
"""A thread hands over batches through a queue that both ends poll with sleeps of 10 ms."""

import queue
import sys
import threading
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


ROWS, WIDTH = (2048, 1024) if DEVICE == "cuda" else (8, 32)
POLL_S = 0.01


class Feed:
    """Shuffled batches from memory, gathered by a thread."""

    def __init__(self, samples: torch.Tensor, labels: torch.Tensor) -> None:
        self.samples, self.labels = samples, labels
        self.ready: queue.Queue[tuple[torch.Tensor, torch.Tensor]] = queue.Queue(maxsize=2)
        threading.Thread(target=self.produce, daemon=True).start()

    def produce(self) -> None:
        random = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            rows = torch.randint(0, len(self.samples), (ROWS,), generator=random)
            batch = self.samples[rows], self.labels[rows]
            if DEVICE == "cuda":
                batch = batch[0].pin_memory(), batch[1].pin_memory()
            if not MENDED:
                self.wait_for_room()
            self.ready.put(batch)

    def wait_for_room(self) -> None:
        while self.ready.qsize() > 0:
            time.sleep(POLL_S)

    def wait_for_batch(self) -> None:
        while self.ready.empty():
            time.sleep(POLL_S)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(STEPS):
            if not MENDED:
                self.wait_for_batch()
            x, label = self.ready.get()
            yield x.to(DEVICE, non_blocking=True), label.to(DEVICE, non_blocking=True)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual(WIDTH) for _ in range(4)), nn.Linear(WIDTH, 32)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    feed = Feed(torch.randn(8 * ROWS, WIDTH).to(torch.bfloat16), torch.randint(0, 32, (8 * ROWS,)))
    for step, (x, label) in enumerate(feed):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), label)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
