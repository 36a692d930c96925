# SPDX-License-Identifier: Apache-2.0
"""Knows whales again by their flukes; how well is measured every few steps, as papers on it do."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HYPER = {
    "cuda": dict(steps=32, warm=8, every=4, whales=128, views=4, side=128, width=96, asked=600, gallery=5000),
    "cpu": dict(steps=4, warm=2, every=2, whales=3, views=2, side=16, width=8, asked=6, gallery=20),
}[DEVICE]


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def fluke_net(width: int, features: int = 256) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, width, 4, stride=4), Residual(width), Residual(width)]
    layers += [nn.Conv2d(width, 2 * width, 2, stride=2), Residual(2 * width), Residual(2 * width)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, features)]
    return nn.Sequential(*layers)


def batch_hard(vectors: torch.Tensor, label: torch.Tensor, margin: float = 0.3) -> torch.Tensor:
    distance = 1 - vectors @ vectors.t()
    same = label[:, None] == label
    farthest = distance.masked_fill(~same, -1).amax(dim=1)
    nearest = distance.masked_fill(same, 3).amin(dim=1)
    return F.softplus(farthest - nearest + margin).mean()


def mean_average_precision(asked, asked_id, gallery, gallery_id):
    """At which places of the sorted gallery the right animal is, averaged over all queries."""
    similarity = asked @ gallery.t()
    if MENDED:
        order = similarity.argsort(dim=1, descending=True)
        hits = (gallery_id[order] == asked_id[:, None]).double()
        place = torch.arange(1, hits.shape[1] + 1, device=hits.device)
        precision = (hits.cumsum(dim=1) / place * hits).sum(dim=1) / hits.sum(dim=1).clamp(min=1)
        return precision.mean()
    similarity, ids, wanted = similarity.cpu().numpy(), gallery_id.cpu().numpy(), asked_id.cpu().numpy()
    precisions = []
    for row, one in zip(similarity, wanted, strict=True):
        hits = ids[np.argsort(-row)] == one
        at = np.flatnonzero(hits)
        precisions.append(np.mean(np.arange(1, len(at) + 1) / (at + 1)) if len(at) else 0.0)
    return torch.tensor(np.mean(precisions))


@torch.no_grad()
def validate(net: nn.Module, asked, asked_id, gallery, gallery_id):
    net.eval()
    with torch.autocast(DEVICE, torch.bfloat16):
        parts = [F.normalize(net(images).float(), dim=1) for images in (asked, gallery)]
    net.train()
    return mean_average_precision(parts[0], asked_id, parts[1], gallery_id)


def main() -> None:
    h = HYPER
    torch.manual_seed(0)
    net = fluke_net(h["width"]).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    kinds = 4 * h["whales"]
    photos = torch.rand(kinds, h["views"], 1, h["side"], h["side"], device=DEVICE)
    small = h["side"] // 2
    asked, gallery = (torch.rand(h[name], 1, small, small, device=DEVICE) for name in ("asked", "gallery"))
    asked_id, gallery_id = (torch.randint(0, kinds, (len(x),), device=DEVICE) for x in (asked, gallery))
    label = torch.arange(h["whales"], device=DEVICE).repeat_interleave(h["views"])
    score = torch.zeros((), device=DEVICE)
    for step in range(h["steps"]):
        if step == h["warm"]:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        first = step % 4 * h["whales"]
        with torch.autocast(DEVICE, torch.bfloat16):
            vectors = net(photos[first : first + h["whales"]].flatten(0, 1))
        loss = batch_hard(F.normalize(vectors.float(), dim=1), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % h["every"] == h["every"] - 1:
            score = validate(net, asked, asked_id, gallery, gallery_id)
    shown = loss.item() + score.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (h['steps'] - h['warm']):.3f} loss {shown:.6f}")


if __name__ == "__main__":
    main()
