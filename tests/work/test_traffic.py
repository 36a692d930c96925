# SPDX-License-Identifier: Apache-2.0
"""Bytes that operators must move, each case against a number that was worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from profiling_lab.work import WorkCounter  # noqa: E402
from profiling_lab.work.traffic import distinct_bytes  # noqa: E402

N = 1024
KB4 = 4 * N


def x(*shape: int, **options: Any) -> Any:
    return torch.zeros(*(shape or (N,)), **options)


def moved(call: Callable[..., Any], *inputs: Any) -> tuple[int, int]:
    with WorkCounter() as counter:
        call(*inputs)
    assert not counter.failures
    works = [one.work for one in counter.calls]
    return sum(work.read_bytes for work in works), sum(work.written_bytes for work in works)


def in_training(a: Any) -> Any:
    return torch.native_batch_norm(a, None, None, None, None, True, 0.1, 1e-5)


def in_inference(a: Any, m: Any) -> Any:
    return torch.native_batch_norm(a, None, None, m, m, False, 0.1, 1e-5)


ROW, TEN, ZEROS = 256, torch.arange(10), torch.zeros(N, dtype=torch.long)
PICK: Any = lambda a, i: a.index_select(0, i)  # noqa: E731
ADD: Any = lambda a, i, b: a.index_add_(0, i, b)  # noqa: E731
PUT: Any = lambda a, i, b: a.index_put_((i,), b)  # noqa: E731
CASES: dict[str, tuple[Callable[..., Any], list[Any], tuple[int, int]]] = {
    "reads its input, writes its output": (torch.exp, [x()], (KB4, KB4)),
    "two inputs": (torch.add, [x(), x()], (2 * KB4, KB4)),
    "one input given twice": (lambda a: a * a, [x()], (KB4, KB4)),
    "a broadcast input counts once": (torch.add, [x(N, N), x(N)], (N * KB4 + KB4, N * KB4)),
    "an expanded input counts once": (lambda a: a.expand(N, N).clone(), [x(N)], (KB4, N * KB4)),
    "in place": (lambda a, b: a.add_(b), [x(), x()], (2 * KB4, KB4)),
    "overwritten in place": (lambda a: a.zero_(), [x()], (0, KB4)),
    "copy_ does not read its target": (lambda a, b: a.copy_(b), [x(), x()], (KB4, KB4)),
    "out= is not read": (lambda a, b: torch.exp(a, out=b), [x(), x()], (KB4, KB4)),
    "a view is free": (lambda a: a.view(32, 32).t()[3:], [x()], (0, 0)),
    "empty memory is free": (lambda a: torch.empty_like(a), [x()], (0, 0)),
    "zeros_like reads nothing": (torch.zeros_like, [x()], (0, KB4)),
    "a cast": (lambda a: a.to(torch.bfloat16), [x()], (KB4, KB4 // 2)),
    "cat": (lambda a, b: torch.cat([a, b]), [x(), x()], (2 * KB4, 2 * KB4)),
    "a reduction": (torch.sum, [x()], (KB4, 4)),
    "comparison": (torch.eq, [x(), x()], (2 * KB4, N)),
    "picked rows": (PICK, [x(N, 64), TEN], (10 * ROW + 80, 10 * ROW)),
    "never more than there is": (lambda a, i: a[i], [x(4, 64), ZEROS], (4 * ROW + 8 * N, N * ROW)),
    "added at an index": (ADD, [x(N, 64), TEN, x(10, 64)], (20 * ROW + 80, 10 * ROW)),
    "put at an index": (PUT, [x(N, 64), TEN, x(10, 64)], (10 * ROW + 80, 10 * ROW)),
    "one class of each row": (F.nll_loss, [x(N, 1000), ZEROS], (N * 64 + 8 * N, 8)),
    "batch norm reads twice": (in_training, [x(4, 2, 8, 8)], (2 * 2048, 2048 + 2 * 2 * 4)),
    "and once in inference": (in_inference, [x(4, 2, 8, 8), x(2)], (2048 + 8, 2048)),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes(name: str) -> None:
    call, inputs, expected = CASES[name]
    assert moved(call, *inputs) == expected


def test_an_embedding_reads_each_row_once() -> None:
    """Of N draws from N rows 63 % are different."""
    read, written = moved(lambda w, i: F.embedding(i, w), x(N, 64), torch.zeros(N, dtype=torch.long))
    assert written == N * 256
    assert read - 8 * N == pytest.approx(N * 256 * 0.632, rel=0.01)


def test_a_convolutions_gradients_are_passes_of_their_own() -> None:
    a, w = x(2, 4, 8, 8, requires_grad=True), x(6, 4, 3, 3, requires_grad=True)
    out = F.conv2d(a, w, padding=1)
    read, written = moved(lambda: torch.autograd.grad(out, [a, w], torch.ones_like(out)))
    given, weight, gradient = (4 * t.numel() for t in (a, w, out))
    assert (read, written) == (2 * gradient + weight + given, given + weight + gradient)


def test_a_fused_optimizer_leaves_its_gradients() -> None:
    parameter = torch.nn.Parameter(x())
    parameter.grad = x()
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()
    with WorkCounter() as counter:
        optimizer.step()
    (fused,) = (one.work for one in counter.calls if "fused" in one.name)
    assert (fused.read_bytes, fused.written_bytes) == (4 * KB4 + 4, 3 * KB4)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (x(64, 64), 64 * 64 * 4),
        (x(64, 64).t(), 64 * 64 * 4),
        (x(64, 64)[:, ::2], 64 * 64 * 4),  # every second float: everything
        (x(64, 64)[:, ::32], 64 * 2 * 64),  # one piece each
        (x(64, 64)[:, :3], 64 * 64),  # 12 bytes of each row: a piece
        (x(64, 64)[::2], 32 * 64 * 4),
        (x(1, 64).expand(64, 64), 64 * 4),
        (x(64, 64)[:, :1].expand(64, 64), 64 * 64),
        (x(0), 0),
        (torch.zeros(()), 4),
    ],
)
def test_distinct_bytes(tensor: Any, expected: int) -> None:
    assert distinct_bytes(tensor) == expected
