# SPDX-License-Identifier: Apache-2.0
"""Training steps of whole models, for `roofline` and its accuracy study.

    profiling-lab record --work -o gpt.sqlite benchmarks/roofline_models.py gpt --layers 24
    profiling-lab roofline gpt.sqlite

With --counters only the last step is between cudaProfilerStart and cudaProfilerStop, for ncu.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        qkv = self.qkv(x)
        q, k, v = qkv.view(batch, rows, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed = mixed.transpose(1, 2).reshape(batch, rows, width)
        return self.out(mixed)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed)
        normed = self.norm2(x)
        hidden = self.up(normed)
        hidden = F.gelu(hidden)
        return x + self.down(hidden)


class Gpt(nn.Module):
    """The sizes of GPT-2 medium; its embedding is its output matrix."""

    def __init__(self, layers: int, width: int = 1024, heads: int = 16, rows: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50304, width), nn.Embedding(rows, width)
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = x @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), wanted.view(-1))


class Vit(nn.Module):
    """The sizes of ViT-B/16."""

    def __init__(self, layers: int, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor, wanted: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x[:, 0])
        return F.cross_entropy(self.head(x), wanted)


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        narrow = width // 4
        self.reduce, self.mix = (
            nn.Conv2d(width, narrow, 1, bias=False),
            nn.Conv2d(narrow, narrow, 3, 1, 1, bias=False),
        )
        self.expand = nn.Conv2d(narrow, width, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (
            nn.BatchNorm2d(narrow),
            nn.BatchNorm2d(narrow),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.reduce(x)))
        y = F.relu(self.norm2(self.mix(y)))
        return F.relu(x + self.norm3(self.expand(y)))


class ResNet(nn.Module):
    """The stages of ResNet-50, with `layers` blocks in each."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 256, 7, 2, 3, bias=False), nn.BatchNorm2d(256)
        stages: list[nn.Module] = []
        for width in (256, 512, 1024):
            stages += [Bottleneck(width) for _ in range(layers)]
            stages.append(nn.Conv2d(width, 2 * width, 1, 2))
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(2048, 1000)

    def forward(self, images: Tensor, wanted: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, 2, 1)
        x = self.stages(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), wanted)


class Unet(nn.Module):
    """Convolutions with group norm and SiLU, down and up again."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 128, 3, 1, 1), nn.Conv2d(128, 3, 3, 1, 1)
        self.down, self.up = nn.Conv2d(128, 256, 3, 2, 1), nn.ConvTranspose2d(256, 128, 2, 2)
        self.convs = nn.ModuleList(nn.Conv2d(256, 256, 3, 1, 1) for _ in range(layers))
        self.norms = nn.ModuleList(nn.GroupNorm(32, 256) for _ in range(layers))

    def forward(self, images: Tensor, wanted: Tensor) -> Tensor:
        kept = self.first(images)
        x = self.down(F.silu(kept))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.silu(norm(conv(x)))
        x = F.silu(self.up(x) + kept)
        return F.mse_loss(self.last(x), images)


class Ranking(nn.Module):
    """Embedding tables, their pairwise products, and two MLPs, as recommenders have them."""

    def __init__(self, layers: int, tables: int = 16, width: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(200_000, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, width))
        pairs = (tables + 1) * tables // 2
        hidden = [layer for _ in range(layers) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        self.top = nn.Sequential(nn.Linear(pairs + width, 1024), nn.ReLU(), *hidden, nn.Linear(1024, 1))
        self.register_buffer("chosen", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        low = self.bottom(dense)
        found = torch.stack([low, *(table(rows[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = found @ found.transpose(1, 2)
        flat = products[:, self.chosen[0], self.chosen[1]]
        score = self.top(torch.cat([flat, low], dim=1))
        return F.binary_cross_entropy_with_logits(score.squeeze(1).float(), (dense[:, 0] > 0).float())


def images(batch: int, size: int) -> tuple[Tensor, Tensor]:
    data = torch.randn(batch, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
    return data, torch.randint(0, 1000, (batch,), device="cuda")


def tokens(batch: int, rows: int) -> tuple[Tensor, Tensor]:
    data = torch.randint(0, 50257, (batch, rows + 1), device="cuda")
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


def features(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 64, device="cuda"), torch.randint(0, 200_000, (batch, 16), device="cuda")


MODELS: dict[str, tuple[Callable[[int], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "gpt": (Gpt, lambda: tokens(16, 1024)),
    "vit": (Vit, lambda: images(128, 224)),
    "resnet": (ResNet, lambda: images(128, 224)),
    "unet": (Unet, lambda: images(32, 128)),
    "ranking": (Ranking, lambda: features(16384)),
}


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(*data)
    loss.backward()
    optimizer.step()


def made(name: str, layers: int) -> Callable[[], None]:
    make, inputs = MODELS[name]
    model = make(layers).cuda()
    if name in ("resnet", "unet", "vit"):
        model = model.to(memory_format=torch.channels_last)
    kind: Any = torch.optim.SGD if name == "ranking" else torch.optim.AdamW
    return partial(training_step, model, kind(model.parameters(), lr=1e-4, fused=True), inputs())


def models(_: bool = False) -> list[Any]:
    """Pairs of the accuracy study: one layer each, for ratios do not change with more."""
    from roofline_pairs import Pair

    return [Pair("model", name, "1 layer", "bfloat16", partial(made, name, 1)) for name in MODELS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--counters", action="store_true", help="only the last step is for ncu")
    args = parser.parse_args()
    step = made(args.model, args.layers)
    for number in range(args.steps):
        if args.counters and number == args.steps - 1:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
        step()
    torch.cuda.synchronize()
    if args.counters:
        torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
