# SPDX-License-Identifier: Apache-2.0
"""Pictures are translated for a language model: only the layers between two frozen networks learn."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = max(1, width // 64), causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Eye(nn.Module):
    """A picture as a row of vectors, one for each patch."""

    def __init__(self, patch: int, patches: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch = patch
        self.into, self.places = nn.Linear(3 * patch * patch, width), nn.Embedding(patches, width)
        self.blocks = nn.Sequential(*(Block(width, False) for _ in range(depth)))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        pieces = F.pixel_unshuffle(pictures.to(torch.bfloat16) / 127.5 - 1, self.patch).flatten(2)
        return self.blocks(self.into(pieces.transpose(1, 2)) + self.places.weight)


class Speaker(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, before: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The next word after each of the words, which come after what is seen."""
        x = torch.cat((before, self.table(words)), dim=1)
        x = self.blocks(x + self.places.weight[: x.shape[1]])
        return self.head(self.norm(x[:, -words.shape[1] :]))


class Bridge(nn.Module):
    def __init__(self, eye: Eye, speaker: Speaker, seen: int, width: int) -> None:
        super().__init__()
        self.eye, self.speaker = (part.to(torch.bfloat16).requires_grad_(False) for part in (eye, speaker))
        self.projector = nn.Sequential(nn.Linear(seen, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, pictures: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            seen = self.eye(pictures)
        with torch.autocast(DEVICE, torch.bfloat16):
            before = self.projector(seen)
        logits = self.speaker(before, captions[:, :-1])  # its weights stay, but the gradient goes through it
        return F.cross_entropy(logits.flatten(0, 1).float(), captions[:, 1:].flatten())


class Captioned:
    """Every picture is seen once: there are far more than anybody would read twice."""

    def __init__(self, rows: int, side: int, words: int, length: int) -> None:
        self.pictures = torch.randint(0, 256, (STEPS, rows, 3, side, side), dtype=torch.uint8)
        self.captions = torch.randint(0, words, (STEPS, rows, length + 1))
        if DEVICE == "cuda":
            self.pictures, self.captions = self.pictures.pin_memory(), self.captions.pin_memory()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self.pictures[step], self.captions[step]
        pictures, captions = (part.to(DEVICE, non_blocking=True) for part in parts)
        return pictures, captions


def main() -> None:
    torch.manual_seed(0)
    rows, side, patch, words, length, seen, width, depths = (
        (24, 224, 14, 32000, 128, 768, 1024, (8, 12))
        if DEVICE == "cuda"
        else (2, 8, 4, 30, 6, 16, 32, (1, 1))
    )
    patches = (side // patch) ** 2
    eye, speaker = Eye(patch, patches, seen, depths[0]), Speaker(words, patches + length, width, depths[1])
    model = Bridge(eye, speaker, seen, width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.projector.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    data = Captioned(rows, side, words, length)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(*data.batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
