# SPDX-License-Identifier: Apache-2.0
"""flash_attention_with_cache: the attention to what a cache holds, and what it holds afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiling_lab.ops import flash_attention, flash_attention_with_cache  # noqa: E402
from profiling_lab.ops._attention_cache import in_torch  # noqa: E402

CPU, CUDA = pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)
OPTIONS = [
    pytest.param({}, id="causal"),
    pytest.param({"causal": False}, id="full"),
    pytest.param({"window": (30, 0)}, id="window"),
    pytest.param({"softcap": 5.0, "scale": 0.3}, id="softcap"),
]
# lengths before the call, new rows, queries, page size (0: no pages), heads, kv_heads, head_dim
SHAPES = [
    pytest.param(((0, 5, 40), 1, 1, 0, 4, 4, 64), id="one-row-each"),
    pytest.param(((63, 64, 65, 1), 1, 1, 64, 8, 2, 128), id="around-a-page"),
    pytest.param(((17, 3), 4, 4, 1, 8, 1, 40), id="pages-of-one-key"),
    pytest.param(((30, 0), 50, 50, 7, 6, 2, 64), id="a-prompt-in-pages-of-seven"),
    pytest.param(((90, 12), 0, 2, 16, 4, 2, 256), id="nothing-new"),
    pytest.param(((1000, 4090), 6, 1, 256, 8, 8, 128), id="queries-fewer-than-new-keys"),
]


class Case:
    """A cache that is NaN where nothing is kept, and the keys of each sequence as they should be seen."""

    def __init__(self, device: str, dtype: Any, shape: tuple[Any, ...]) -> None:
        lengths, new, rows, page, heads, kv_heads, dim = shape
        generator = torch.Generator().manual_seed(1)

        def normal(*size: int) -> Any:
            return torch.randn(*size, generator=generator).to(device=device, dtype=dtype)

        batch, self.page = len(lengths), page
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.q = normal(batch, rows, heads, dim)
        self.keys = [[normal(n + new, kv_heads, dim) for n in lengths] for _ in "kv"]
        self.new = [torch.stack([x[n:] for x, n in zip(side, lengths, strict=True)]) for side in self.keys]
        room = max(lengths) + new + 3
        pages = -(-room // page) if page else 1
        self.table = None
        if page:
            order = torch.randperm(batch * pages + 2, generator=generator)[: batch * pages]
            self.table = order.reshape(batch, pages).to(device=device, dtype=torch.int32)
        size = (batch * pages + 2, page) if page else (batch, room)
        self.cache = [torch.full((*size, kv_heads, dim), math.nan, device=device, dtype=dtype) for _ in "kv"]
        for cached, side in zip(self.cache, self.keys, strict=True):
            for b, n in enumerate(lengths):
                self.rows_of(cached, b)[:n] = side[b][:n]
                self.write_back(cached, b)

    def rows_of(self, cached: Any, b: int) -> Any:
        """The rows of a sequence in order: a copy where there are pages."""
        self._rows = cached[b] if self.table is None else cached[self.table[b].long()].flatten(0, 1)
        return self._rows

    def write_back(self, cached: Any, b: int) -> None:
        if self.table is not None:
            cached[self.table[b].long()] = self._rows.unflatten(0, (-1, self.page))

    def run(self, **options: Any) -> Any:
        new = self.new if self.new[0].shape[1] else (None, None)
        return flash_attention_with_cache(
            self.q, *self.cache, *new, cache_seqlens=self.lengths, block_table=self.table,
            return_lse=True, **options,
        )  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_each_sequence_is_attended_alone(
    device: str, shape: tuple[Any, ...], options: dict[str, Any]
) -> None:
    case = Case(device, torch.float64 if device == "cpu" else torch.bfloat16, shape)
    heads = case.q.shape[2]
    for sink in (None, torch.linspace(-2, 3, heads, device=device)):
        out, lse = case.run(sink=sink, **options)
        near = {"rtol": 1e-9, "atol": 1e-9} if device == "cpu" else {"rtol": 2e-2, "atol": 8e-3}
        for b, length in enumerate(case.lengths.tolist()):
            k, v = (side[b][None].double() for side in case.keys)
            exact, exact_lse = flash_attention(
                case.q[b : b + 1].double().cpu(), k.cpu(), v.cpu(), sink=None if sink is None else sink.cpu(),
                return_lse=True, **{"causal": True} | options,
            )  # fmt: skip
            torch.testing.assert_close(out[b].double().cpu(), exact[0], **near)
            torch.testing.assert_close(lse[b].double().cpu(), exact_lse[0], rtol=1e-4, atol=1e-4)
            for cached, side in zip(case.cache, case.keys, strict=True):
                rows = case.rows_of(cached, b)
                assert torch.equal(rows[: len(side[b])], side[b]), "the new keys are in the cache"
                assert bool(rows[len(side[b]) :].isnan().all()), f"and nothing behind them (of {length})"


@pytest.mark.gpu
def test_a_graph_generates_with_other_lengths_and_pages() -> None:
    case = Case("cuda", torch.bfloat16, ((63, 5), 1, 1, 16, 8, 2, 128))
    for cached in case.cache:
        cached.normal_()
    graph = torch.cuda.CUDAGraph()
    case.run()
    with torch.cuda.graph(graph):
        out, lse = case.run()
    for _ in range(3):
        case.lengths.sub_(1)
        case.table.copy_(case.table.flip(1))
        graph.replay()
        expected = in_torch(
            case.q, *(x.clone() for x in case.cache), case.lengths, case.table, *case.new, None, None,
            128**-0.5, -1, 0, 0.0,
        )  # fmt: skip
        torch.testing.assert_close(out, expected[0], rtol=2e-2, atol=8e-3)
        torch.testing.assert_close(lse, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_compiled_in_one_graph(device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    ours, same = (Case(device, dtype, ((20, 3), 1, 1, 16, 4, 2, 64)) for _ in range(2))

    def step(q: Any, k: Any, v: Any, new_k: Any, new_v: Any, lengths: Any, table: Any) -> Any:
        return flash_attention_with_cache(
            q, k, v, new_k, new_v, cache_seqlens=lengths, block_table=table
        ) + 1  # fmt: skip

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    a, b = (
        call(case.q, *case.cache, *case.new, case.lengths, case.table)
        for call, case in ((compiled, ours), (step, same))
    )
    torch.testing.assert_close(a, b)
    for x, y in zip(ours.cache, same.cache, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)


def test_a_length_beyond_the_room_counts_as_the_largest() -> None:
    case = Case("cpu", torch.float32, ((4, 9), 1, 1, 0, 2, 2, 8))
    case.lengths[1] = 1000
    case.cache[0].fill_(0.5), case.cache[1].fill_(0.25)
    out, _ = case.run()
    assert bool(torch.isfinite(out).all())
    assert torch.equal(case.cache[0][1, -1], case.new[0][1, 0])


GOOD = {
    "q": (2, 1, 4, 16),
    "k_cache": (2, 9, 2, 16),
    "v_cache": (2, 9, 2, 16),
    "k": (2, 1, 2, 16),
    "v": (2, 1, 2, 16),
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": (2, 0, 4, 16)}, "q has no rows"),
        ({"q": (2, 4, 16)}, r"q has shape \[2, 4, 16\], expected four dimensions"),
        ({"q": (2, 1, 3, 16)}, "q has 3 heads, not a multiple of the 2 heads of k_cache"),
        (
            {"v_cache": (2, 8, 2, 16)},
            r"k_cache has shape \[2, 9, 2, 16\] and v_cache \[2, 8, 2, 16\], expected",
        ),
        ({"k_cache": (3, 9, 2, 16), "v_cache": (3, 9, 2, 16)}, "k_cache has batch 3 but q has 2"),
        ({"k": (2, 10, 2, 16), "v": (2, 10, 2, 16)}, "k has 10 rows, a sequence has room for 9 keys"),
        ({"k": (2, 1, 4, 16)}, r"k has shape \[2, 1, 4, 16\] and v"),
        ({"v": None}, "k and v are given together or not at all"),
        (
            {"lengths": torch.zeros(2)},
            r"cache_seqlens is float32 of shape \[2\], expected int32 of shape \(2\)",
        ),
        (
            {"table": torch.zeros(3, 1).int()},
            r"block_table is int32 of shape \[3, 1\], expected int32 of shape",
        ),
        ({"softcap": -1.0}, "softcap is -1, expected 0"),
        ({"sink": torch.zeros(3)}, r"sink has shape \[3\] but q has 4 heads"),
    ],
)
def test_bad_input_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    shapes = GOOD | {name: value for name, value in change.items() if name in GOOD}
    tensors = {name: None if shape is None else torch.zeros(shape) for name, shape in shapes.items()}
    options = {name: change[name] for name in ("softcap", "sink") if name in change}
    with pytest.raises(ValueError, match=f"^flash_attention_with_cache: {sentence}"):
        flash_attention_with_cache(
            **tensors,
            cache_seqlens=change.get("lengths", torch.zeros(2).int()),
            block_table=change.get("table"),
            **options,
        )


def test_gradients_are_refused() -> None:
    case = Case("cpu", torch.float32, ((4,), 1, 1, 0, 2, 2, 8))
    case.q.requires_grad_()
    with pytest.raises(ValueError, match="has no gradients"):
        case.run()
    with torch.no_grad():
        case.run()


@pytest.mark.gpu
def test_flops_are_those_of_the_keys_that_are_there() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    case = Case("cuda", torch.bfloat16, ((20, 3), 2, 2, 16, 4, 2, 64))
    with FlopCounterMode(display=False) as counted:
        case.run()
    assert counted.get_total_flops() == 2 * 2 * 2 * (20 + 2 + 3 + 2) * 4 * 64


@pytest.mark.gpu
def test_opcheck() -> None:
    case = Case("cuda", torch.bfloat16, ((20, 3), 2, 2, 16, 4, 2, 64))
    for cached in case.cache:
        cached.normal_()
    torch.library.opcheck(
        torch.ops.profiling_lab.cached_attention.default,
        (case.q, *case.cache, case.lengths, case.table, *case.new, None, None, 0.125, -1, 0, 0.0),
        test_utils=("test_schema", "test_faketensor"),
    )
