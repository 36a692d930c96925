# SPDX-License-Identifier: Apache-2.0
"""From pieces of DNA a network learns which species they come from; a thread makes the next batch ready."""

import itertools
import queue
import sys
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCHES, WARM = (30, 8) if DEVICE == "cuda" else (3, 1)
READS, LENGTH, K, SPECIES = (384, 772, 6, 40) if DEVICE == "cuda" else (4, 25, 3, 3)
KMERS = {"".join(letters): number for number, letters in enumerate(itertools.product("ACGT", repeat=K))}
DIGIT = np.zeros(256, np.int64)
DIGIT[[*b"ACGT"]] = range(4)


class ReadFeeder(threading.Thread):
    """Cuts reads into words of K letters, some batches ahead of the training."""

    def __init__(self, ahead=4):
        super().__init__(daemon=True)
        rng = np.random.default_rng(7)
        self.genomes = [
            "".join(rng.choice(list("ACGT"), 50 * LENGTH, p=rng.dirichlet([9] * 4))) for _ in range(SPECIES)
        ]
        self.rng = rng
        self.ready = queue.Queue(maxsize=ahead)

    def sample(self):
        species = self.rng.integers(0, SPECIES, READS)
        starts = self.rng.integers(0, 49 * LENGTH, READS)
        return [self.genomes[s][at : at + LENGTH] for s, at in zip(species, starts, strict=True)], species

    def tokens(self, reads):
        if MENDED:
            letters = DIGIT[np.frombuffer("".join(reads).encode(), np.uint8)].reshape(READS, LENGTH)
            words = np.lib.stride_tricks.sliding_window_view(letters, K, axis=1)[:, ::2]
            return words @ (4 ** np.arange(K)[::-1])
        rows = []
        for read in reads:
            rows.append([KMERS[read[i : i + K]] for i in range(0, LENGTH - K + 1, 2)])
        return np.array(rows)

    def run(self):
        for _ in range(BATCHES):
            reads, species = self.sample()
            pair = torch.from_numpy(self.tokens(reads)), torch.from_numpy(species)
            self.ready.put([x.pin_memory() for x in pair] if DEVICE == "cuda" else pair)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class SpeciesNet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed, self.join = nn.Embedding(4**K, width), nn.Linear(4 * width, width)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.head = nn.Linear(width, SPECIES)

    def forward(self, tokens):
        x = self.join(self.embed(tokens).unflatten(1, (-1, 4)).flatten(2))
        return self.head(self.layers(x).mean(dim=1))


if __name__ == "__main__":
    torch.manual_seed(0)
    net = SpeciesNet(*((192, 12) if DEVICE == "cuda" else (8, 1))).to(DEVICE)
    adam = torch.optim.AdamW(net.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    feeder = ReadFeeder()
    feeder.start()
    for batch in range(BATCHES):
        if batch == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        tokens, species = (x.to(DEVICE, non_blocking=True) for x in feeder.ready.get())
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(tokens).float(), species)
        adam.zero_grad()
        loss.backward()
        adam.step()
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - start) / (BATCHES - WARM):.3f} loss {last:.6f}")
