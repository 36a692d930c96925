# SPDX-License-Identifier: Apache-2.0
"""Rollouts for learning from rewards: several answers to each question, compared with one another."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, room: torch.Tensor | None, at: int) -> tuple[torch.Tensor, ...]:
        """With a room, x is one word at a place; without, all words from the first on."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if room is None:
            mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        else:
            room[:, :, :, at : at + 1] = qkv[1:]
            mixed = F.scaled_dot_product_attention(qkv[0], room[0, :, :, : at + 1], room[1, :, :, : at + 1])
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), qkv[1:]


class Policy(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def read(self, words: torch.Tensor, rooms: list[torch.Tensor]) -> torch.Tensor:
        """Scores of the first word of the answers; there may be several of them for each row."""
        length = words.shape[1]
        x = self.table(words) + self.places.weight[:length]
        for block, room in zip(self.blocks, rooms, strict=True):
            x, pair = block(x, None, 0)
            room.unflatten(1, (len(words), -1))[..., :length, :] = pair.unsqueeze(2)
        return self.head(self.norm(x[:, -1]))

    def go_on(self, word: torch.Tensor, rooms: list[torch.Tensor], at: int) -> torch.Tensor:
        x = self.table(word)[:, None] + self.places.weight[at]
        for block, room in zip(self.blocks, rooms, strict=True):
            x, _ = block(x, room, at)
        return self.head(self.norm(x[:, 0]))


class Rollouts:
    def __init__(self, model: Policy, rows: int, length: int, answer: int, group: int) -> None:
        self.model, self.answer, self.group = model, answer, group
        heads = model.blocks[0].heads
        shape = (2, rows * group, heads, length + answer, model.norm.weight.numel() // heads)
        self.rooms = [torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE) for _ in model.blocks]

    def chosen(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = scores.float().log_softmax(dim=-1)
        word = (chances - torch.empty_like(chances).exponential_().log_()).argmax(dim=-1)
        return word, chances.gather(1, word[:, None])[:, 0]

    def play(self, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Words of all answers, those to the same question next to each other, and how likely they were."""
        length = prompts.shape[1]
        if MENDED:
            scores = self.model.read(prompts, self.rooms).repeat_interleave(self.group, dim=0)
        else:
            prompts = prompts.repeat_interleave(self.group, dim=0)
            scores = self.model.read(prompts, self.rooms)
        word, chance = self.chosen(scores)
        words, chances = [word], [chance]
        for at in range(length, length + self.answer - 1):
            word, chance = self.chosen(self.model.go_on(word, self.rooms, at))
            words.append(word)
            chances.append(chance)
        return torch.stack(words, dim=1), torch.stack(chances, dim=1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, answer, group, vocabulary, width, depth = (
        (8, 1536, 12, 8, 32000, 1024, 12) if DEVICE == "cuda" else (2, 6, 3, 2, 30, 16, 1)
    )
    model = Policy(vocabulary, length + answer, width, depth).to(DEVICE, torch.bfloat16).eval()
    rollouts = Rollouts(model, rows, length, answer, group)
    prompts = torch.randint(0, vocabulary, (4, rows, length), device=DEVICE)
    gains = torch.zeros(STEPS, rows, group, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words, chances = rollouts.play(prompts[step % 4])
        rewards = (words % 2 == 0).float().mean(dim=1).view(rows, group)
        spread, mean = torch.std_mean(rewards, dim=1, keepdim=True)
        gains[step] = (rewards - mean) / (spread + 1e-4)
    report(began, chances.mean())
    assert bool(gains.isfinite().all())


if __name__ == "__main__":
    main()
