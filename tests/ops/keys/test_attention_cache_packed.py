# SPDX-License-Identifier: Apache-2.0
"""flash_attention_with_cache with cu_seqlens_q: parts of prompts and single rows in one call."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiling_lab.ops import flash_attention, flash_attention_with_cache  # noqa: E402
from profiling_lab.ops._attention_cache import in_torch  # noqa: E402

CPU, CUDA = pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)
OPTIONS = [
    pytest.param({}, id="causal"),
    pytest.param({"causal": False}, id="full"),
    pytest.param({"window": (70, 0)}, id="window"),
    pytest.param({"softcap": 5.0, "scale": -0.3}, id="softcap"),
]
# lengths before the call, rows of each sequence, page size (0: no pages), heads, kv_heads, head_dim. From
# 17 rows on a sequence takes the kernels of flash_attention; pages of 128 are whole tiles of theirs (64 at
# head_dim 256).
SHAPES = [
    pytest.param(((0, 40, 500, 7), (30, 1, 200, 16), 16, 4, 2, 64), id="mixed-pages-of-16"),
    pytest.param(((3, 300, 129, 0), (129, 17, 1, 1), 1, 8, 2, 128), id="mixed-pages-of-one-key"),
    pytest.param(((260, 0, 1000), (140, 0, 2), 128, 4, 4, 128), id="pages-are-tiles-and-an-empty-sequence"),
    pytest.param(((511, 90), (65, 64), 256, 2, 1, 256), id="prompts-alone-head-dim-256"),
    pytest.param(((200, 31), (130, 1), 0, 6, 2, 96), id="no-pages"),
    pytest.param(((200, 31), (33, 250), 7, 2, 2, 40), id="pages-of-seven"),
    pytest.param(((64, 3, 90), (1, 1, 3), 48, 8, 1, 64), id="few-rows-alone"),
    pytest.param(tuple([(5,) * 70, (1,) * 69 + (20,), 16, 2, 1, 64]), id="more-sequences-than-lanes"),
]


class Case:
    """A cache that is NaN where nothing is kept, and the keys of each sequence as they should be seen."""

    def __init__(self, device: str, dtype: Any, shape: tuple[Any, ...], adds: bool = True) -> None:
        lengths, rows, page, heads, kv_heads, dim = shape
        generator = torch.Generator().manual_seed(1)

        def normal(*size: int) -> Any:
            return torch.randn(*size, generator=generator).to(device=device, dtype=dtype)

        self.adds, self.page, batch = adds, page, len(lengths)
        self.behind = 3  # rows that no sequence owns
        self.offsets = torch.tensor([0, *rows]).cumsum(0).int().to(device)
        self.q = normal(sum(rows) + self.behind, heads, dim)
        totals = [n + (r if adds else 0) for n, r in zip(lengths, rows, strict=True)]
        self.keys = [[normal(n, kv_heads, dim) for n in totals] for _ in "kv"]
        self.new = None
        if adds:
            spare = normal(self.behind, kv_heads, dim)
            self.new = [
                torch.cat([x[n:] for x, n in zip(side, lengths, strict=True)] + [spare]) for side in self.keys
            ]
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        room = max(totals) + 2
        pages = -(-room // page) if page else 1
        self.table = None
        if page:
            order = torch.randperm(batch * pages + 2, generator=generator)[: batch * pages]
            self.table = order.reshape(batch, pages).to(device=device, dtype=torch.int32)
        size = (batch * pages + 2, page) if page else (batch, room)
        self.cache = [torch.full((*size, kv_heads, dim), math.nan, device=device, dtype=dtype) for _ in "kv"]
        for cached, side in zip(self.cache, self.keys, strict=True):
            for b, n in enumerate(lengths):
                at = self.places(b)[:n]
                cached.flatten(0, 1)[at] = side[b][:n]

    def places(self, b: int) -> Any:
        """Of a sequence's keys among all rows of the cache."""
        if self.table is None:
            room = self.cache[0].shape[1]
            return torch.arange(b * room, (b + 1) * room, device=self.lengths.device)
        pages = self.table[b].long()[:, None] * self.page
        return (pages + torch.arange(self.page, device=pages.device)).flatten()

    def run(self, **options: Any) -> Any:
        return flash_attention_with_cache(
            self.q, *self.cache, *(self.new or (None, None)), cache_seqlens=self.lengths,
            block_table=self.table, cu_seqlens_q=self.offsets, return_lse=True, **options,
        )  # fmt: skip


def near(device: str) -> dict[str, float]:
    return {"rtol": 1e-9, "atol": 1e-9} if device == "cpu" else {"rtol": 2e-2, "atol": 8e-3}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("adds", [True, False], ids=["appends", "reads"])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_each_sequence_is_attended_alone(
    device: str, adds: bool, shape: tuple[Any, ...], options: dict[str, Any]
) -> None:
    case = Case(device, torch.float64 if device == "cpu" else torch.bfloat16, shape, adds)
    sink = torch.linspace(-2, 3, case.q.shape[1], device=device) if adds else None
    out, lse = case.run(sink=sink, **options)
    cu = case.offsets.tolist()
    for b, (first, last) in enumerate(pairwise(cu)):
        k, v = (side[b][None].double().cpu() for side in case.keys)
        exact, exact_lse = flash_attention(
            case.q[None, first:last].double().cpu(), k, v, sink=None if sink is None else sink.cpu(),
            return_lse=True, **{"causal": True} | options,
        )  # fmt: skip
        torch.testing.assert_close(out[first:last].double().cpu(), exact[0], **near(device))
        torch.testing.assert_close(lse[:, first:last].double().cpu(), exact_lse[0], rtol=1e-4, atol=1e-4)
        for cached, side in zip(case.cache, case.keys, strict=True):
            rows = cached.flatten(0, 1)[case.places(b)]
            assert torch.equal(rows[: len(side[b])], side[b]), "the new keys are in the cache"
            assert bool(rows[len(side[b]) :].isnan().all()), "and nothing behind them"
    assert bool((out[cu[-1] :] == 0).all()) and bool((lse[:, cu[-1] :] == -math.inf).all())


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("page", [0, 1, 16, 128])
def test_long_rows_without_offsets(device: str, page: int) -> None:
    """The same number of rows for each sequence: (batch, rows, heads, head_dim)."""
    shape = ((70, 0, 130), (100, 100, 100), page, 4, 2, 64)
    packed, plain = (Case(device, torch.float64 if device == "cpu" else torch.bfloat16, shape) for _ in "ab")
    expected, expected_lse = packed.run()
    out, lse = flash_attention_with_cache(
        plain.q[:300].unflatten(0, (3, 100)), *plain.cache, *(x[:300].unflatten(0, (3, 100)) for x in
        plain.new), cache_seqlens=plain.lengths, block_table=plain.table, return_lse=True,
    )  # fmt: skip
    torch.testing.assert_close(out.flatten(0, 1), expected[:300], **near(device))
    torch.testing.assert_close(lse.transpose(0, 1).flatten(1), expected_lse[:, :300])
    for ours, theirs in zip(plain.cache, packed.cache, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_rows_beyond_the_room_are_not_kept(device: str) -> None:
    case = Case(device, torch.float32 if device == "cpu" else torch.bfloat16, ((4, 9), (1, 2), 0, 2, 2, 8))
    for cached in case.cache:
        cached.fill_(0.5)
    case.lengths.copy_(torch.tensor([1000, -5]))
    out, _ = case.run()
    assert bool(torch.isfinite(out).all())
    assert torch.equal(case.cache[0][0, -1], case.new[0][0]) and torch.equal(
        case.cache[0][1, :2], case.new[0][1:3]
    )
    assert bool((case.cache[0][0, :-1] == 0.5).all()) and bool((case.cache[0][1, 2:] == 0.5).all())


@pytest.mark.gpu
def test_a_graph_is_replayed_with_other_rows_and_lengths() -> None:
    case = Case("cuda", torch.bfloat16, ((130, 5, 300), (90, 1, 40), 16, 8, 2, 128))
    for cached in case.cache:
        cached.normal_()
    case.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = case.run()
    for rows in ((1, 1, 129), (60, 70, 1), (131, 0, 0)):
        case.lengths.sub_(1)
        case.offsets.copy_(torch.tensor([0, *rows]).cumsum(0).int())
        graph.replay()
        expected = in_torch(
            case.q, *(x.clone() for x in case.cache), case.lengths, case.table, *case.new, case.offsets, None,
            128**-0.5, -1, 0, 0.0,
        )  # fmt: skip
        torch.testing.assert_close(out, expected[0], rtol=2e-2, atol=8e-3)
        torch.testing.assert_close(lse, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_compiled_in_one_graph(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    ours, same = (Case(device, dtype, ((20, 3), (30, 1), 16, 4, 2, 64)) for _ in range(2))

    def step(q: Any, k: Any, v: Any, new_k: Any, new_v: Any, lengths: Any, table: Any, cu: Any) -> Any:
        return flash_attention_with_cache(
            q, k, v, new_k, new_v, cache_seqlens=lengths, block_table=table, cu_seqlens_q=cu
        ) + 1  # fmt: skip

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    a, b = (
        call(case.q, *case.cache, *case.new, case.lengths, case.table, case.offsets)
        for call, case in ((compiled, ours), (step, same))
    )
    torch.testing.assert_close(a, b)
    for x, y in zip(ours.cache, same.cache, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"q": (2, 1, 4, 16)},
            r"q has shape \[2, 1, 4, 16\], expected \(rows, heads, head_dim\) with cu_seqlens_q",
        ),
        (
            {"offsets": torch.zeros(3)},
            r"cu_seqlens_q is float32 of shape \[3\], expected int32 of shape \(batch",
        ),
        (
            {"lengths": torch.zeros(3).int()},
            r"cache_seqlens is int32 of shape \[3\], expected int32 of shape \(2\)",
        ),
        (
            {"k": (4, 2, 16), "v": (4, 2, 16)},
            r"k has shape \[4, 2, 16\] and v \[4, 2, 16\], expected \(5, 2, 16\)",
        ),
    ],
)
def test_bad_input_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    shapes = {
        "q": (5, 4, 16),
        "k": (5, 2, 16),
        "v": (5, 2, 16),
        "k_cache": (2, 9, 2, 16),
        "v_cache": (2, 9, 2, 16),
    }
    tensors = {name: torch.zeros(change.get(name, shape)) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=f"^flash_attention_with_cache: {sentence}"):
        flash_attention_with_cache(
            **tensors,
            cache_seqlens=change.get("lengths", torch.zeros(2).int()),
            cu_seqlens_q=change.get("offsets", torch.tensor([0, 4, 5]).int()),
        )


@pytest.mark.gpu
def test_opcheck() -> None:
    case = Case("cuda", torch.bfloat16, ((20, 3), (30, 1), 16, 4, 2, 64))
    for cached in case.cache:
        cached.normal_()
    torch.library.opcheck(
        torch.ops.profiling_lab.cached_attention.default,
        (
            case.q, *case.cache, case.lengths, case.table, *case.new, case.offsets, None, 0.125, -1, 0, 0.0,
        ),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
