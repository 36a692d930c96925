# SPDX-License-Identifier: Apache-2.0
"""A server of text that replays a graph for the batch it has, and reads each word while the next is made."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, kept: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """`kept` has keys and values of the last words, whose oldest makes room for this one."""
        q, *latest = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, 1, -1)).unbind(1)
        k, v = kept.index_copy_(3, slot, torch.stack(latest))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).flatten(1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder:
    def __init__(self, words: int, width: int, heads: int, depth: int, most: int, room: int) -> None:
        kind = {"device": DEVICE, "dtype": torch.bfloat16 if DEVICE == "cuda" else torch.float32}
        self.table, self.head = nn.Embedding(words, width, **kind), nn.Linear(width, words, **kind)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth)).to(**kind)
        self.kept = torch.randn(depth, 2, most, heads, room, width // heads, **kind)
        self.tokens = torch.zeros(most, dtype=torch.long, device=DEVICE)
        self.sure = torch.zeros(most, device=DEVICE)
        self.slot = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.graphs = {rows: self.captured(rows) for rows in (most // 2, most)} if DEVICE == "cuda" else {}

    def word(self, rows: int) -> None:
        """Draws the next word of each row: the largest logit once Gumbel's noise is added."""
        x = self.table(self.tokens[:rows])
        for block, kept in zip(self.blocks, self.kept, strict=True):
            x = block(x, kept[:, :rows], self.slot)
        log_p = F.log_softmax(self.head(x).float(), dim=-1)
        best = (log_p - torch.empty_like(log_p).exponential_().log()).argmax(dim=-1, keepdim=True)
        self.tokens[:rows] = best[:, 0]
        self.sure[:rows] = log_p.gather(1, best)[:, 0]
        self.slot.add_(1).remainder_(self.kept.shape[4])

    def captured(self, rows: int) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.word(rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.word(rows)
        return graph


class Server:
    """Two pinned buffers take turns: the host reads a word when the GPU already makes the one after it."""

    def __init__(self, decoder: Decoder, most: int) -> None:
        self.decoder, self.texts = decoder, [[] for _ in range(most)]
        pinned = {"pin_memory": DEVICE == "cuda", "dtype": torch.long}
        self.buffers = [torch.zeros(most, **pinned) for _ in range(2)]
        self.copied = [torch.cuda.Event() for _ in range(2)] if DEVICE == "cuda" else []
        self.turn, self.unread = 0, 0

    def advance(self, rows: int, count: int) -> torch.Tensor:
        for _ in range(count):
            self.decoder.graphs[rows].replay() if self.copied else self.decoder.word(rows)
            self.buffers[self.turn][:rows].copy_(self.decoder.tokens[:rows], non_blocking=True)
            if self.copied:
                self.copied[self.turn].record()
            self.turn = 1 - self.turn
            self.read()
            self.unread = rows
        return self.decoder.sure[:rows].mean()

    def read(self) -> None:
        if self.unread and self.copied:
            self.copied[self.turn].synchronize()
        for text, word in zip(self.texts, self.buffers[self.turn][: self.unread].tolist(), strict=False):
            text.append(word)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    words, width, heads, depth, most, room, count = (
        (32_000, 2048, 16, 12, 64, 2048, 8) if DEVICE == "cuda" else (40, 16, 2, 2, 4, 8, 3)
    )
    server = Server(Decoder(words, width, heads, depth, most, room), most)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        sure = server.advance(most // 2 if step % 4 == 3 else most, count)
    report(began, -sure)


if __name__ == "__main__":
    main()
