# SPDX-License-Identifier: Apache-2.0
"""What shapes alone tell, such as masks and positions, made again in each step"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.recompute import RULE

FILE, NS = "/app/model.py", 10_000
MASK = "mask = torch.ones(length, x.shape[1], device=x.device, dtype=torch.bool).tril()"


def layers(
    *texts: str,
    kernels: tuple[str, ...] = ("fill", "triu_tril_kernel"),
    growing: bool = False,
    trained: bool = False,
) -> TraceBuilder:
    """Steps of two layers; their lines, from line 30 on, launch these kernels each."""
    builder = TraceBuilder()
    for number, text in enumerate(texts, 30):
        builder.source(FILE, number, text)
    builder.source(FILE, 40, "y = attend(q, k, v, mask)")
    node = 0
    for step in range(5):
        for _ in range(2):
            for number in range(30, 30 + len(texts)):
                for kernel in kernels:
                    blocks, forward = 100 + step * growing, {"peek": node + 1} if trained else {}
                    stack = f"{FILE}:9 main > {FILE}:{number} Layer.forward"
                    builder.launch(kernel, NS, stack=stack, blocks=blocks, **forward)
                    node += 1
            builder.launch("flash_fwd", 4 * NS, stack=f"{FILE}:9 main > {FILE}:40 Layer.forward")
        builder.launch("softmax", NS, stack=f"{FILE}:10 main")
        if trained:
            builder.launch("sum", NS, thread=2, node=node - 1, node_name="MulBackward0", peek=node)
    builder.launch("gemm", NS, stack=f"{FILE}:11 main", peek=9001)  # something is trained, too
    return builder.launch("gemm", NS, thread=2, node=9000, node_name="MmBackward0", peek=9001)


@pytest.mark.parametrize(
    "texts",
    [
        (MASK,),
        ("places = torch.arange(length)", "angles = torch.outer(places, self.rates)", "cos = angles.cos()"),
        ("return torch.full((n, n), float('-inf'), device=device).triu(1 + self.shift)",),
        ("bias = -(torch.arange(n)[:, None] - torch.arange(n)[None, :m]).abs() * self.slope",),
        ("keep = torch.ones_like(x[0]).cumsum(0) <= x.size(1)",),
        (
            "bias = torch.arange(n) * self.slope",
            "bias = bias.masked_fill(bias > 0, 0.0)",
            "return bias[None]",
        ),
        ("grid = torch.linspace(-1, 1, w).expand(h, w).to(x.dtype)",),
    ],
)
def test_fires_on_what_depends_on_shapes(judge: Judge, texts: tuple[str, ...]) -> None:
    (finding,) = judge(RULE, layers(*texts))
    assert finding.cost_ns == 5 * 2 * 2 * len(texts) * NS and finding.severity_at_most == "medium"
    assert "what shapes alone tell" in finding.what and set(finding.saving.left) == {0.0}


@pytest.mark.parametrize(
    "texts",
    [
        ("mask = torch.ones(n, n).tril() * x",),
        ("mask = torch.arange(n) < lengths[:, None]",),
        ("time = torch.full((rows,), moment).float().cos()",),
        ("places = torch.arange(at, at + n).float()",),
        ("x = x + y", "return x * x.shape[0]"),
        ("x = x * 2", "return x * x.shape[0]"),
        ("mask = torch.ones(n, n).tril()", "mask = mask & seen", "y = mask.float()")[1:],
        ("row = made(torch.arange(n))",),
        ("rows = [torch.arange(n) + x for x in parts]",),
        ("self.mask = torch.ones(n, n).tril()",),
        ("total = torch.zeros(n, width, device=x.device)",),
    ],
)
def test_silent_where_something_else_is_read(judge: Judge, texts: tuple[str, ...]) -> None:
    assert judge(RULE, layers(*texts)) == ()


def test_lines_that_read_what_is_changed_are_left_out(judge: Judge) -> None:
    texts = ("mask = torch.ones(n, n).tril()", "mask = mask & seen", "y = mask.float() * 2")
    (finding,) = judge(RULE, layers(*texts))
    assert finding.place is not None and finding.place.line == 30
    assert finding.cost_ns == 5 * 2 * 2 * NS


def test_silent_where_it_is_changed_in_place(judge: Judge) -> None:
    assert judge(RULE, layers("mask = torch.ones(n, n).tril()", "mask[:, 0] = seen")) == ()
    assert judge(RULE, layers("mask = torch.ones(n, n).tril()", "mask.masked_fill_(padding, 0)")) == ()


def test_silent_where_it_differs(judge: Judge) -> None:
    assert judge(RULE, layers(MASK, growing=True)) == ()
    assert judge(RULE, layers(MASK, kernels=("fill", "distribution_uniform"))) == ()
    assert judge(RULE, layers(MASK, trained=True)) == ()
