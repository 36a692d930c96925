# SPDX-License-Identifier: Apache-2.0
"""The model of serving_loop.py: a decoder like Llama, and how its attention and its cache are done.

The model sees tokens one behind the other, whatever sequences they belong to. A Cache says how they lie, and
attends. Everything that a step reads or writes keeps its place, so that a CUDA graph can hold the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from profiling_lab.ops import flash_attention, flash_attention_with_cache


@dataclass(frozen=True, slots=True)
class Config:
    d_model: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 14336
    layers: int = 8
    vocabulary: int = 32000

    @staticmethod
    def tiny() -> Config:
        return Config(d_model=32, heads=4, kv_heads=2, head_dim=8, hidden=48, layers=2, vocabulary=61)


class Weights:
    """Drawn at random, such that activations keep their size."""

    def __init__(self, config: Config, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator(device).manual_seed(0)

        def draw(rows: int, columns: int) -> Tensor:
            made = torch.empty(rows, columns, device=device, dtype=dtype)
            return made.normal_(std=columns**-0.5, generator=generator)

        self.config = config
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.embedding = draw(config.vocabulary, config.d_model) * config.d_model**0.5
        self.head = draw(config.vocabulary, config.d_model)
        self.layers = [
            {
                "qkv": draw(width, config.d_model),
                "out": draw(config.d_model, config.heads * config.head_dim),
                "up": draw(2 * config.hidden, config.d_model),
                "down": draw(config.d_model, config.hidden),
            }
            for _ in range(config.layers)
        ]
        powers = torch.arange(0, config.head_dim, 2, device=device) / config.head_dim
        self.rates = 10000.0**-powers

    def logits(self, tokens: Tensor, positions: Tensor, last: Tensor | None, attend: Any) -> Tensor:
        """Of all tokens, or of those at `last`. attend(layer, q, k, v) attends with (tokens, heads, dim)."""
        config, x = self.config, self.embedding[tokens]
        angles = positions[:, None, None] * self.rates
        turn = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, layer in enumerate(self.layers):
            mixed = F.linear(_norm(x), layer["qkv"]).unflatten(-1, (-1, config.head_dim))
            q, k, v = mixed.split((config.heads, config.kv_heads, config.kv_heads), 1)
            out = attend(number, _turned(q, *turn), _turned(k, *turn), v)
            x = x + F.linear(out.flatten(1), layer["out"])
            gate, up = F.linear(_norm(x), layer["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return F.linear(_norm(x if last is None else x[last]), self.head).float()


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of (tokens, heads, dim)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


class Cache(ABC):
    """Keys and values of all layers, and the attention to them."""

    lengths: Tensor
    """int32 (sequences): keys that each one has, before the step."""

    def __init__(self, config: Config, prompts: list[Tensor], steps: int, page_size: int) -> None:
        self.config, self.device = config, prompts[0].device
        self.prompt_lengths = [len(p) for p in prompts]
        self.lengths = torch.tensor(self.prompt_lengths, dtype=torch.int32, device=self.device)
        self.start = self.lengths.clone()
        self.room = max(self.prompt_lengths) + steps
        self.make(len(prompts), page_size)

    @abstractmethod
    def make(self, sequences: int, page_size: int) -> None:
        """Reserves the memory."""

    @abstractmethod
    def laid_out(self, prompts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The prompts' tokens one behind the other, their positions, and where the last ones are."""

    @abstractmethod
    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    @abstractmethod
    def step(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def empty(self, dtype: torch.dtype, *shape: int) -> list[list[Tensor]]:
        """Of k and v, for each layer."""
        layers = range(self.config.layers)
        return [[torch.zeros(shape, device=self.device, dtype=dtype) for _ in "kv"] for _ in layers]


class Paged(Cache):
    """Packed prompts, a cache in pages that all sequences share: flash_attention's."""

    def make(self, sequences: int, page_size: int) -> None:
        self.page = page_size
        each = [-(-(n + self.room - max(self.prompt_lengths)) // page_size) for n in self.prompt_lengths]
        # Pages in any order, and no more than a sequence needs.
        order = torch.randperm(sum(each), generator=torch.Generator().manual_seed(2)).int().split(each)
        table = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True)
        self.table, self.pages = table.to(self.device), sum(each)
        self.cache: list[list[Tensor]] = []
        lengths = torch.tensor([0, *self.prompt_lengths])
        self.offsets = lengths.cumsum(0).int().to(self.device)
        positions = torch.cat([torch.arange(n) for n in self.prompt_lengths]).to(self.device)
        sequence = torch.repeat_interleave(lengths[1:]).to(self.device)
        self.positions, self.slot = positions, positions % page_size
        self.at_page = self.table[sequence, positions // page_size].long()

    def laid_out(self, prompts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return torch.cat(prompts), self.positions, self.offsets[1:].long() - 1

    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.cache:
            self.cache = self.empty(k.dtype, self.pages, self.page, *k.shape[1:])
        for cached, new in zip(self.cache[layer], (k, v), strict=True):
            cached[self.at_page, self.slot] = new
        return self.attend_prompts(q, k, v)

    def attend_prompts(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        offsets = {"cu_seqlens_q": self.offsets, "cu_seqlens_k": self.offsets}
        out: Tensor = flash_attention(q, k, v, causal=True, **offsets)
        return out

    def step(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = flash_attention_with_cache(
            q[:, None], *self.cache[layer], k[:, None], v[:, None],
            cache_seqlens=self.lengths, block_table=self.table,
        )  # fmt: skip
        return out[:, 0]


class FlashAttn(Paged):
    """The same with the functions of flash_attn."""

    def make(self, sequences: int, page_size: int) -> None:
        del page_size
        self.theirs: Any = import_module("flash_attn")
        super().make(sequences, 256)

    def attend_prompts(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        most = max(self.prompt_lengths)
        out: Tensor = self.theirs.flash_attn_varlen_func(
            q, k, v, self.offsets, self.offsets, most, most, causal=True
        )
        return out

    def step(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.theirs.flash_attn_with_kvcache(
            q[:, None], *self.cache[layer], k[:, None], v[:, None],
            cache_seqlens=self.lengths, block_table=self.table, causal=True,
        )  # fmt: skip
        return out[:, 0]


class Padded(Cache):
    """Padded prompts, a cache with room for the longest sequence, a mask: PyTorch's."""

    def make(self, sequences: int, page_size: int) -> None:
        del page_size
        self.cache: list[list[Tensor]] = []
        self.sequence = torch.arange(sequences, device=self.device)
        self.key = torch.arange(self.room, device=self.device)
        self.longest = max(self.prompt_lengths)
        self.gqa = self.config.heads != self.config.kv_heads

    def laid_out(self, prompts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        positions = self.key[: self.longest].expand(len(prompts), -1).flatten()
        return tokens.flatten(), positions, self.sequence * self.longest + self.start.long() - 1

    def prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.unflatten(0, (-1, self.longest)).transpose(1, 2) for x in (q, k, v))
        if not self.cache:
            self.cache = self.empty(k.dtype, k.shape[0], k.shape[1], self.room, k.shape[3])
        for cached, new in zip(self.cache[layer], (k, v), strict=True):
            cached[:, :, : self.longest] = new
        # What is behind a prompt is seen by no token of it.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.gqa)
        return out.transpose(1, 2).flatten(0, 1)

    def step(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for cached, new in zip(self.cache[layer], (k, v), strict=True):
            cached[self.sequence, :, self.lengths.long()] = new
        seen = (self.key <= self.lengths[:, None])[:, None, None]
        out = F.scaled_dot_product_attention(
            q[:, :, None], *self.cache[layer], attn_mask=seen, enable_gqa=self.gqa
        )
        return out[:, :, 0]


class Server:
    """Answers prompts greedily, `new` tokens each."""

    def __init__(self, weights: Weights, cache: Cache, prompts: list[Tensor], new: int) -> None:
        self.weights, self.cache, self.new = weights, cache, new
        self.tokens, self.positions, self.last = cache.laid_out(prompts)
        device = self.tokens.device
        self.token = torch.zeros(len(prompts), dtype=torch.int64, device=device)
        self.answers = torch.zeros(len(prompts), new, dtype=torch.int64, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(len(prompts), weights.config.vocabulary, device=device)
        self.graph: Any = None

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompts and answers the first token."""
        self.cache.lengths.copy_(self.cache.start)
        self.count.zero_()
        self._answer(self.weights.logits(self.tokens, self.positions, self.last, self.cache.prefill))

    @torch.no_grad()
    def step(self) -> None:
        """One more token of every sequence; nothing of it waits for the GPU."""
        self._answer(self.weights.logits(self.token, self.cache.lengths, None, self.cache.step))
        self.cache.lengths.add_(1)

    def _answer(self, logits: Tensor) -> None:
        self.logits.copy_(logits)
        self.token.copy_(logits.argmax(-1))
        self.answers.index_copy_(1, self.count, self.token[:, None])
        self.count.add_(1)

    def capture(self) -> None:
        """Puts a step into a CUDA graph. Its first runs and the capture write behind the prompts alone."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._rewind()
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self._rewind()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def _rewind(self) -> None:
        """To where the prompts end. The token before stays: times do not depend on it."""
        self.cache.lengths.copy_(self.cache.start)
        self.count.fill_(1)

    def decode(self) -> None:
        """The tokens behind the first one."""
        self._rewind()
        self.token.copy_(self.answers[:, 0])
        for _ in range(self.new - 1):
            self.graph.replay() if self.graph is not None else self.step()

    def generate(self) -> Tensor:
        """All answers, (prompts, new)."""
        self.prefill()
        self.decode()
        return self.answers.clone()
