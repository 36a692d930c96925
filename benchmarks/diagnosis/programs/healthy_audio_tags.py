# SPDX-License-Identifier: Apache-2.0
"""What can be heard in ten seconds of sound: a transformer for spectrograms, trained from sound itself."""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
PATCH = 16 if DEVICE == "cuda" else 2


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class LogMel(nn.Module):
    """Spectrograms with bands that are as wide as ears hear them."""

    def __init__(self, window: int, hop: int, bands: int) -> None:
        super().__init__()
        self.window_size, self.hop = window, hop
        self.register_buffer("window", torch.hann_window(window))
        bins = torch.arange(window // 2 + 1)
        hertz = 700 * (10 ** torch.linspace(0, math.log10(1 + 8000 / 700), bands + 2) - 1)
        middle = hertz / 8000 * (window // 2)
        up = (bins[:, None] - middle[:-2]) / (middle[1:-1] - middle[:-2])
        down = (middle[2:] - bins[:, None]) / (middle[2:] - middle[1:-1])
        self.register_buffer("bank", torch.minimum(up, down).clamp_(min=0))

    @torch.no_grad()
    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        pieces = sound.float().div_(32768).unfold(1, self.window_size, self.hop)
        power = torch.fft.rfft(pieces * self.window).abs().square_()
        return (power @ self.bank).add_(1e-6).log_().to(torch.bfloat16)


class SpecAugment(nn.Module):
    """Hides a stripe of time and one of pitch in each spectrogram."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def hidden(self, rows: int, size: int) -> torch.Tensor:
        width = (self.share * size * torch.rand(rows, 1, device=DEVICE)).ceil()
        first = (size - width) * torch.rand(rows, 1, device=DEVICE)
        places = torch.arange(size, device=DEVICE)
        return (places >= first) & (places < first + width)

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        rows, frames, bands = spectrograms.shape
        hide = self.hidden(rows, frames)[:, :, None] | self.hidden(rows, bands)[:, None]
        return spectrograms.masked_fill(hide, 0.0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SpectrogramTransformer(nn.Module):
    def __init__(self, frames: int, bands: int, width: int, depth: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.places = nn.Parameter(0.02 * torch.randn(frames // PATCH * (bands // PATCH), width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tags)

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        pieces = spectrograms.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        x = self.blocks(self.embed(pieces) + self.places)
        return self.head(self.norm(x).mean(dim=1))


class SoundLoader:
    """Sound in 16 bits, and which of the tags fit; a batch lies ready for the copy to the GPU."""

    def __init__(self, batches: int, rows: int, samples: int, tags: int) -> None:
        self.sound = torch.randint(-9000, 9000, (batches, rows, samples), dtype=torch.int16)
        self.tags = torch.rand(batches, rows, tags) < 0.01
        if DEVICE == "cuda":
            self.sound, self.tags = self.sound.pin_memory(), self.tags.pin_memory()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = step % len(self.sound)
        return self.sound[at].to(DEVICE, non_blocking=True), self.tags[at].to(
            DEVICE, non_blocking=True
        ).float()


def mixup(x: torch.Tensor, y: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.lerp(x.roll(1, 0), x, share.to(x.dtype)), torch.lerp(y.roll(1, 0), y, share)


def main() -> None:
    torch.manual_seed(0)
    rows, window, hop, frames, bands, width, depth, tags = (
        (64, 512, 160, 992, 128, 768, 12, 527) if DEVICE == "cuda" else (3, 16, 4, 6, 4, 16, 1, 5)
    )
    front, augment = LogMel(window, hop, bands).to(DEVICE), SpecAugment(0.2)
    model = SpectrogramTransformer(frames, bands, width, depth, tags).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    loader = SoundLoader(3, rows, window + hop * (frames - 1), tags)
    shares = 0.5 + 0.5 * torch.rand(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        sound, wanted = loader.batch(step)
        x, wanted = mixup(augment(front(sound)), wanted, shares[step])
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(x)
        loss = F.binary_cross_entropy_with_logits(scores.float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
