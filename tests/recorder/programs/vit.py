# SPDX-License-Identifier: Apache-2.0
"""A vision transformer as the Hugging Face library lays it out, of torch.nn alone, and its training step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

SIDE, PATCH, WIDTH, HEADS, BLOCKS, CLASSES, BATCH = 64, 8, 192, 3, 2, 100, 16


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, WIDTH))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.projection(images).flatten(2).transpose(1, 2)  # gpu: forward backward
        first = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat((first, patches), dim=1)  # gpu: forward backward
        return tokens + self.positions  # gpu: forward backward


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.split(self.query(x))  # gpu: forward backward
        key = self.split(self.key(x))  # gpu: forward backward
        value = self.split(self.value(x))  # gpu: forward backward
        scores = query @ key.transpose(-1, -2)  # gpu: forward backward
        weights = (scores / 8.0).softmax(dim=-1)  # gpu: forward backward
        mixed = weights @ value  # gpu: forward backward
        return self.output(mixed.transpose(1, 2).flatten(-2))  # gpu: forward backward

    @staticmethod
    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_before, self.norm_after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = SelfAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_before(x))  # gpu: forward backward
        normal = self.norm_after(x)  # gpu: forward backward
        return x + self.mlp(normal)  # gpu: forward backward


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(images)
        for layer in self.layers:
            x = layer(x)
        normal = self.norm(x)  # gpu: forward backward
        return self.classifier(normal[:, 0])  # gpu: forward backward


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Vit().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(BATCH, 3, SIDE, SIDE, device=device)
    labels = torch.randint(CLASSES, (BATCH,), device=device)

    def step() -> None:
        logits = model(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.1)  # gpu: forward backward
        loss.backward()  # gpu: backward
        optimizer.step()  # gpu: optimizer
        optimizer.zero_grad()

    return step
