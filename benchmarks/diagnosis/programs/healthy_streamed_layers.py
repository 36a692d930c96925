# SPDX-License-Identifier: Apache-2.0
"""A model larger than its share of the GPU: a layer computes while the next one's weights come."""

import sys
import time

import torch
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (12, 3) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer:
    """The weights of a gated feed-forward layer, in memory of the host that the GPU can read by itself."""

    def __init__(self, width: int, inner: int) -> None:
        self.up = self.keep(torch.empty(2 * inner, width, device=DEVICE).normal_(std=width**-0.5))
        self.down = self.keep(torch.empty(width, inner, device=DEVICE).normal_(std=inner**-0.5))

    @staticmethod
    def keep(weight: torch.Tensor) -> torch.Tensor:
        kept = torch.empty(weight.shape, dtype=torch.bfloat16, pin_memory=DEVICE == "cuda")
        return kept.copy_(weight)


class Room:
    """A place on the GPU for one layer, with the events that tell when it is full and when it is free."""

    def __init__(self, layer: Layer) -> None:
        self.up, self.down = (torch.empty_like(w, device=DEVICE) for w in (layer.up, layer.down))
        if DEVICE == "cuda":
            self.full, self.free = torch.cuda.Event(), torch.cuda.Event()

    def fill(self, layer: Layer) -> None:
        self.up.copy_(layer.up, non_blocking=True)
        self.down.copy_(layer.down, non_blocking=True)


class Streamed:
    """Runs the layers in turn, in two rooms: one computes, the other is filled."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers, self.rooms = layers, [Room(layers[0]), Room(layers[0])]
        self.copies = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.turn = 0
        self.fetch(0)

    def fetch(self, number: int) -> None:
        """Fill the room whose turn comes next, once what computes in it is done."""
        room, layer = self.rooms[number % 2], self.layers[number % len(self.layers)]
        if self.copies is None:
            room.fill(layer)
            return
        self.copies.wait_event(room.free)
        with torch.cuda.stream(self.copies):
            room.fill(layer)
            room.full.record()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for _ in self.layers:
            room = self.rooms[self.turn % 2]
            self.turn += 1
            self.fetch(self.turn)
            if self.copies is not None:
                torch.cuda.current_stream().wait_event(room.full)
            gate, value = F.linear(F.rms_norm(x, x.shape[-1:]), room.up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * value, room.down)
            if self.copies is not None:
                room.free.record()
        return x


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, width, inner, depth = (32768, 3072, 8192, 8) if DEVICE == "cuda" else (4, 8, 16, 2)
    model = Streamed([Layer(width, inner) for _ in range(depth)])
    words = torch.randn(2, rows, width, device=DEVICE, dtype=torch.bfloat16)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x = model(words[step % 2])
    report(began, x.float().square().mean())


if __name__ == "__main__":
    main()
