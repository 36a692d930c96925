# SPDX-License-Identifier: Apache-2.0
"""Rows of a table are invented like the real ones: one network draws them, another one judges."""

import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 8) if DEVICE == "cuda" else (3, 1)

cfg = {
    "batch": 4096 if DEVICE == "cuda" else 6,
    "columns": 512 if DEVICE == "cuda" else 5,
    "latent": 256 if DEVICE == "cuda" else 3,
    "gen": 2048 if DEVICE == "cuda" else 8,
    "disc": 4096 if DEVICE == "cuda" else 8,
    "lr": 1e-4,
}


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(cfg["latent"], cfg["gen"]),
            nn.ReLU(True),
            nn.Linear(cfg["gen"], cfg["gen"]),
            nn.ReLU(True),
            nn.Linear(cfg["gen"], cfg["columns"]),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(cfg["columns"], cfg["disc"])
        self.fc2 = nn.Linear(cfg["disc"], cfg["disc"])
        self.fc3 = nn.Linear(cfg["disc"], cfg["disc"])
        self.fc4 = nn.Linear(cfg["disc"], cfg["disc"])
        self.out = nn.Linear(cfg["disc"], 1)

    def forward(self, rows):
        h = F.leaky_relu(self.fc1(rows), 0.2, inplace=True)
        h = F.leaky_relu(self.fc2(h), 0.2, inplace=True)
        h = F.leaky_relu(self.fc3(h), 0.2, inplace=True)
        h = F.leaky_relu(self.fc4(h), 0.2, inplace=True)
        return self.out(h).squeeze(1)


def bce(logits, is_real):
    target = torch.full_like(logits, float(is_real), dtype=torch.float32)
    return F.binary_cross_entropy_with_logits(logits.float(), target)


torch.manual_seed(0)
netG, netD = Generator().to(DEVICE), Discriminator().to(DEVICE)
optG = torch.optim.Adam(netG.parameters(), lr=cfg["lr"], betas=(0.5, 0.999), fused=DEVICE == "cuda")
optD = torch.optim.Adam(netD.parameters(), lr=cfg["lr"], betas=(0.5, 0.999), fused=DEVICE == "cuda")
table = torch.rand(4 * cfg["batch"], cfg["columns"], device=DEVICE) * 2 - 1

for it in range(STEPS):
    if it == WARM:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    start = it % 4 * cfg["batch"]
    real = table[start : start + cfg["batch"]]
    z = torch.randn(cfg["batch"], cfg["latent"], device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        fake = netG(z)
    fake = fake.float()

    # (1) the judge learns from real rows and invented ones
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=MENDED):  # for the stability of the loss
        logits = netD(torch.cat((real, fake.detach())))
        said_real, said_fake = logits.chunk(2)
        lossD = bce(said_real, True) + bce(said_fake, False)
    optD.zero_grad()
    lossD.backward()
    optD.step()

    # (2) the generator learns from what the judge says of its rows
    netD.requires_grad_(False)
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=MENDED):
        lossG = bce(netD(fake), True)
    optG.zero_grad()
    lossG.backward()
    optG.step()
    netD.requires_grad_(True)

loss = (lossD + lossG).item()
print(f"step_ms {1000 * (time.perf_counter() - t0) / (STEPS - WARM):.3f} loss {loss:.6f}")
