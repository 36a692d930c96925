# SPDX-License-Identifier: Apache-2.0
"""A service that answers with vectors of texts, as lists of numbers in JSON."""

import base64
import json
import sys
import time
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


@dataclass
class Embedding:
    index: int
    embedding: list[float] | str
    object: str = "embedding"


@dataclass
class Answer:
    model: str
    data: list[Embedding] = field(default_factory=list)
    tokens: int = 0

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.norm(self.blocks(self.table(words))).mean(dim=1).float(), dim=-1)


class Service:
    """Takes requests as JSON and gives the answer's bytes."""

    def __init__(self, model: nn.Module, length: int) -> None:
        self.model, self.length, self.sent = model, length, 0

    def words_of(self, request: bytes) -> torch.Tensor:
        asked = json.loads(request)["input"]
        words = torch.zeros(len(asked), self.length, dtype=torch.int64)
        for row, numbers in enumerate(asked):
            words[row, : len(numbers)] = torch.tensor(numbers)
        return words

    def encoded(self, vector: np.ndarray) -> list[float] | str:
        if MENDED:
            return base64.b64encode(vector.tobytes()).decode()
        return vector.tolist()

    def answer(self, request: bytes) -> torch.Tensor:
        words = self.words_of(request)
        vectors = self.model(words.to(DEVICE))
        answer = Answer("texts-1", tokens=words.numel())
        for index, vector in enumerate(vectors.cpu().numpy()):
            answer.data.append(Embedding(index, self.encoded(vector)))
        self.sent += len(answer.body())
        return vectors


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (48, 256, 32000, 1024, 12) if DEVICE == "cuda" else (3, 5, 30, 16, 1)
    )
    model = Encoder(vocabulary, width, max(1, width // 64), depth).to(DEVICE, torch.bfloat16).eval()
    texts = torch.randint(1, vocabulary, (4, rows, length))
    requests = [json.dumps({"model": "texts-1", "input": some.tolist()}).encode() for some in texts]
    service = Service(model, length)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        vectors = service.answer(requests[step % 4])
    report(began, vectors[:, 0].abs().mean())
    assert service.sent > STEPS * vectors.numel()


if __name__ == "__main__":
    main()
