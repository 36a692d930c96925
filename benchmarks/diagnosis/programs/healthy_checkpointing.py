# SPDX-License-Identifier: Apache-2.0
"""One checkpoint in the run: cloned on the GPU, copied on a side stream and saved by a thread."""

import io
import sys
import threading
import time

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


ROWS, WIDTH = (32768, 1024) if DEVICE == "cuda" else (8, 32)


class Checkpoints:
    """Host memory is allocated once; the loop only queues the copies."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.host = {
            name: torch.empty_like(value, device="cpu", pin_memory=DEVICE == "cuda")
            for name, value in model.state_dict().items()
        }
        self.side = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.thread: threading.Thread | None = None
        self.size = 0

    def start(self) -> None:
        copies = {name: value.clone() for name, value in self.model.state_dict().items()}
        if self.side:
            self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for name, value in copies.items():
                self.host[name].copy_(value, non_blocking=True)
                if self.side:
                    value.record_stream(self.side)
        self.thread = threading.Thread(target=self.save)
        self.thread.start()

    def save(self) -> None:
        if self.side:
            self.side.synchronize()
        file = io.BytesIO()
        torch.save(self.host, file)
        self.size = file.tell()

    def finish(self) -> None:
        if self.thread:
            self.thread.join()


def main() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(8)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 64)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    checkpoints = Checkpoints(model)
    x = torch.randn(ROWS, WIDTH, device=DEVICE)
    target = torch.randint(0, 64, (ROWS,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), target)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        if step == STEPS // 2:
            checkpoints.start()
    report(began, loss)
    checkpoints.finish()
    print(f"checkpoint of {checkpoints.size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
