# SPDX-License-Identifier: Apache-2.0
"""Live captions for hundreds of speakers at once, a third of a second at a time."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 12) if DEVICE == "cuda" else (4, 2)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer(nn.Module):
    """Attends to the last seconds, whose keys and values are in a ring."""

    def __init__(self, width: int, speakers: int, frames: int, chunks: int) -> None:
        super().__init__()
        self.heads, self.frames, self.chunks = max(1, width // 64), frames, chunks
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        shape = (2, speakers, self.heads, frames * chunks, width // self.heads)
        self.register_buffer("ring", torch.zeros(shape))

    def forward(self, x: torch.Tensor, chunk: int) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        first = chunk % self.chunks * self.frames
        self.ring[:, :, :, first : first + self.frames] = qkv[1:]
        k, v = self.ring[:, :, :, : min(chunk + 1, self.chunks) * self.frames]
        x = x + self.out(F.scaled_dot_product_attention(qkv[0], k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Listener(nn.Module):
    def __init__(
        self, points: int, width: int, depth: int, signs: int, speakers: int, frames: int, chunks: int
    ) -> None:
        super().__init__()
        self.points = points
        self.register_buffer("window", torch.hann_window(points))
        self.into = nn.Linear(points // 2 + 1, width)
        self.layers = nn.ModuleList(Layer(width, speakers, frames, chunks) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, signs)

    def forward(self, sound: torch.Tensor, chunk: int) -> torch.Tensor:
        """The likeliest sign for each frame, none of which is 0."""
        pieces = sound.float().div(32768).unfold(1, self.points, self.points) * self.window.float()
        pitch = torch.fft.rfft(pieces).abs().add(1e-5).log().to(self.norm.weight.dtype)
        x = self.into(pitch)
        for layer in self.layers:
            x = layer(x, chunk)
        return self.head(self.norm(x)).argmax(dim=-1).to(torch.int16)


class Captions:
    """Reads the signs of a chunk while the GPU works on the next one."""

    def __init__(self, speakers: int, frames: int) -> None:
        pinned = DEVICE == "cuda"
        self.rooms = [torch.zeros(speakers, frames, dtype=torch.int16, pin_memory=pinned) for _ in range(2)]
        self.done = [torch.cuda.Event() for _ in range(2)] if pinned else []
        self.last, self.said = np.zeros(speakers, np.int16), np.zeros(speakers, np.int64)

    def send(self, chunk: int, signs: torch.Tensor) -> None:
        self.rooms[chunk % 2].copy_(signs, non_blocking=True)
        if self.done:
            self.done[chunk % 2].record()

    def read(self, chunk: int) -> None:
        """Signs that are neither none nor the same as the one before are new letters."""
        if self.done:
            self.done[chunk % 2].synchronize()
        signs = self.rooms[chunk % 2].numpy()
        before = np.concatenate((self.last[:, None], signs[:, :-1]), axis=1)
        self.said += ((signs != before) & (signs != 0)).sum(axis=1)
        self.last = signs[:, -1].copy()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    speakers, points, frames, chunks, width, depth, signs = (
        (512, 320, 16, 12, 1024, 12, 500) if DEVICE == "cuda" else (3, 8, 2, 2, 16, 1, 6)
    )
    model = Listener(points, width, depth, signs, speakers, frames, chunks).to(DEVICE, torch.bfloat16).eval()
    sound = torch.randint(-9000, 9000, (4, speakers, frames * points), dtype=torch.int16)
    if DEVICE == "cuda":
        sound = sound.pin_memory()
    captions = Captions(speakers, frames)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        captions.send(step, model(sound[step % 4].to(DEVICE, non_blocking=True), step))
        if step:
            captions.read(step - 1)
    captions.read(STEPS - 1)
    report(began, torch.from_numpy(captions.said).float().mean())


if __name__ == "__main__":
    main()
