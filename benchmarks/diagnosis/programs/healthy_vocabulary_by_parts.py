# SPDX-License-Identifier: Apache-2.0
"""A language model of many languages: words are too many for all scores at once, so the loss goes by parts.

The forward of the loss computes its gradients, too, and keeps no scores. This looks odd: a loop over parts,
and products that belong to the backward. But each of them is needed, is large, and is computed once.
"""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class LossByParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
        low = weight.to(hidden.dtype)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(low)
        total = torch.zeros((), device=hidden.device)
        for part, wanted, out in zip(
            hidden.split(rows), target.split(rows), grad_hidden.split(rows), strict=True
        ):
            scores = torch.log_softmax(part @ low.t(), dim=1)
            place = wanted[:, None]
            total -= scores.gather(1, place).float().sum()
            scores.exp_().scatter_add_(1, place, scores.new_full(place.shape, -1.0))
            torch.mm(scores, low, out=out)
            grad_weight.addmm_(scores.t(), part)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / len(target)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad_hidden, grad_weight = ctx.saved_tensors
        share = grad / len(grad_hidden)
        return grad_hidden * share.to(grad_hidden.dtype), grad_weight.float().mul_(share), None, None


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.RMSNorm(width, dtype=torch.bfloat16) for _ in "12")
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    def __init__(self, words: int, width: int, depth: int, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 128)) for _ in range(depth))
        self.norm = nn.RMSNorm(width, dtype=torch.bfloat16)
        self.unembed = nn.Parameter(torch.randn(words, width) * width**-0.5)

    def forward(self, text: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            x = self.embed(text[:, :-1]).to(torch.bfloat16)
            for block in self.blocks:
                x = block(x)
            hidden = self.norm(x).flatten(0, 1)
        return LossByParts.apply(hidden, self.unembed, text[:, 1:].flatten(), self.rows)


def main() -> None:
    torch.manual_seed(0)
    if DEVICE == "cuda":
        steps, warm, batch, length, rows = 16, 4, 12, 2048, 4096
        model = LanguageModel(words=98304, width=2048, depth=3, rows=rows)
    else:
        steps, warm, batch, length, rows = 3, 1, 2, 6, 4
        model = LanguageModel(words=20, width=16, depth=1, rows=rows)
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=DEVICE == "cuda")
    texts = torch.randint(0, len(model.unembed), (3, batch, length + 1), device=DEVICE)
    for step in range(steps):
        if step == warm:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        loss = model(texts[step % 3])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    final = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (steps - warm):.3f} loss {final:.6f}")


if __name__ == "__main__":
    main()
