# SPDX-License-Identifier: Apache-2.0
"""The loop adds to an audit log whose thread compresses it with the lock held."""

import sys
import threading
import time
import zlib
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


ROWS, WIDTH = (4096, 1024) if DEVICE == "cuda" else (8, 32)


class AuditLog:
    """The sample numbers of the latest batches, compressed by a thread after each addition."""

    def __init__(self, batches: int) -> None:
        self.lock = threading.Lock()
        self.fresh = threading.Event()
        self.recent: deque[bytes] = deque(maxlen=batches)
        self.packed = b""
        self.open = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def add(self, numbers: np.ndarray) -> None:
        with self.lock:
            self.recent.append(numbers.tobytes())
        self.fresh.set()

    def run(self) -> None:
        while self.open:
            self.fresh.wait()
            self.fresh.clear()
            self.pack()

    def pack(self) -> None:
        if MENDED:
            with self.lock:
                batches = list(self.recent)
            self.packed = zlib.compress(b"".join(batches), 6)
        else:
            with self.lock:
                self.packed = zlib.compress(b"".join(self.recent), 6)

    def close(self) -> None:
        self.open = False
        self.fresh.set()
        self.thread.join()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = F.mse_loss(model(x).float(), x)

    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH), nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    samples = torch.randn(4 * ROWS, WIDTH, device=DEVICE)
    log = AuditLog(8 if DEVICE == "cuda" else 2)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        start = step % 4 * ROWS
        loss = train_step(model, optimizer, samples[start : start + ROWS])
        log.add(random.integers(0, 1 << 40, ROWS))
    report(began, loss)
    log.close()


if __name__ == "__main__":
    main()
