# SPDX-License-Identifier: Apache-2.0
"""Is a turbine going to fail? Most windows of its sensors are easy: each step learns from the hardest."""

import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (26, 6) if DEVICE == "cuda" else (4, 2)
SHOW_EVERY = 5


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class FailureNet(nn.Module):
    def __init__(self, sensors, points, patch, width, depth):
        super().__init__()
        self.patch, self.into = patch, nn.Linear(sensors * patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(points // patch, width))
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, windows):
        patches = windows.unflatten(1, (-1, self.patch)).flatten(2)
        x = self.layers(self.into(patches) + self.places)
        return self.head(self.norm(x).mean(dim=1))


class Plant:
    """Windows of 16 bits, more in a step than are learned from; they are scaled on the GPU."""

    def __init__(self, batches, pool, points, sensors):
        self.windows = torch.randint(-20000, 20000, (batches, pool, points, sensors), dtype=torch.int16)
        self.fails = (torch.rand(batches, pool) < 0.05).long()
        if DEVICE == "cuda":
            self.windows, self.fails = self.windows.pin_memory(), self.fails.pin_memory()

    def pool(self, step):
        number = step % len(self.windows)
        windows = self.windows[number].to(DEVICE, non_blocking=True).to(torch.bfloat16) / 8192
        return windows, self.fails[number].to(DEVICE, non_blocking=True)


class Progress:
    """Losses are fetched while the GPU goes on, and read steps later."""

    def __init__(self):
        self.room = torch.zeros(1, pin_memory=DEVICE == "cuda")
        self.shown = []

    def send(self, loss):
        self.room.copy_(loss.reshape(1), non_blocking=True)
        self.done = torch.cuda.Event() if DEVICE == "cuda" else None
        if self.done:
            self.done.record()

    def read(self):
        if self.done:
            self.done.synchronize()
        self.shown.append(self.room.item())


def losses_of(model, windows, fails):
    with torch.autocast(DEVICE, torch.bfloat16):
        scores = model(windows)
    return F.cross_entropy(scores.float(), fails, reduction="none")


@torch.no_grad()
def hardest(model, windows, fails, keep):
    """A look at the whole pool without gradients is cheaper than to learn from all of it."""
    picked = losses_of(model, windows, fails).topk(keep, sorted=False).indices
    return windows.index_select(0, picked), fails.index_select(0, picked)


def learn(model, optimizer, windows, fails):
    loss = losses_of(model, windows, fails).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    torch.manual_seed(0)
    pool, keep, points, sensors, patch, width, depth = (
        (1024, 256, 1536, 12, 16, 768, 8) if DEVICE == "cuda" else (8, 2, 16, 3, 4, 16, 1)
    )
    model = FailureNet(sensors, points, patch, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=DEVICE == "cuda")
    plant, progress = Plant(3, pool, points, sensors), Progress()
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        windows, fails = plant.pool(step)
        loss = learn(model, optimizer, *hardest(model, windows, fails, keep))
        if step % SHOW_EVERY == 0:
            progress.send(loss)
        elif step % SHOW_EVERY == 3:
            progress.read()
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - start) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
