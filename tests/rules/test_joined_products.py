# SPDX-License-Identifier: Apache-2.0
"""Copies of vectors that are joined for a product"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.joined_products import RULE

FILE, US = "/app/pairs.py", 1_000
JOIN = "return self.joint(torch.cat((x.expand(-1, n, -1), y), dim=-1))"
CAT = "void at::native::CatArrayBatchedCopy<float>()"


def pairs(
    *texts: str, multiplies: int = 1, kernels: tuple[str, ...] = ("nvjet_gemm",), spread: int = 0
) -> TraceBuilder:
    """The line that multiplies, and those before it; `spread`: copies that backward sums up."""
    builder = TraceBuilder()
    for number, text in enumerate(texts, 1):
        builder.source(FILE, number, text)
    last = max(len(texts), 1)
    for node in range(4):
        for number in range(1, last + 1):
            builder.launch(CAT, 50 * US, stack=f"{FILE}:{number} f", peek=node + 1)
        for kernel in kernels * multiplies:
            builder.launch(kernel, 40 * US, stack=f"{FILE}:{last} f", peek=node + 1)
        builder.launch("softmax", 10 * US, stack=f"{FILE}:20 main", peek=node + 1)
        if spread:
            how = {"thread": 2, "peek": node + 1, "node": node, "stack": f"{FILE}:{last} f"}
            builder.launch("nvjet_gemm", 80 * US, node_name="AddmmBackward0", **how)
            for number in range(spread):
                how["node"] = node + 100 * (number + 1)
                builder.launch("reduce_kernel", 10 * US, node_name="ExpandBackward0", **how)
    return builder


def test_fires_on_a_copy_of_each_vector(judge: Judge) -> None:
    (finding,) = judge(RULE, pairs(JOIN))
    assert "1 of 2 parts" in finding.what and "weight.chunk(2, dim=1)" in finding.remedy
    assert finding.cost_ns == 4 * 90 * US and finding.place is not None and finding.place.line == 1
    assert sorted(set(finding.saving.left)) == [0.0, 0.5]
    assert sorted(set(finding.saving.launches_left)) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (("y = F.relu(self.up(torch.cat([a.repeat(1, n, 1), b.expand_as(c)], -1)))",), 0.1),
        (("h = h.unsqueeze(1).repeat(1, n, 1)", "e = self.attn(torch.cat((h, seen), dim=2)).tanh()"), 0.5),
        (("z = torch.cat((h.expand(n, -1), a, b), 1)", "y = self.mlp(z)"), 2 / 3),  # of two dimensions
        (("y = torch.cat((a.repeat(1, n, 1), b.expand(-1, n, -1)), dim=-1) @ self.weight",), 0.1),
    ],
)
def test_other_ways_to_join(judge: Judge, texts: tuple[str, ...], left: float) -> None:
    (finding,) = judge(RULE, pairs(*texts))
    assert max(finding.saving.left) == pytest.approx(left)


def test_backward_tells_of_copies_that_the_text_does_not(judge: Judge) -> None:
    text = "return self.joint(torch.cat((first, second), dim=-1))"
    assert judge(RULE, pairs(text)) == []
    (finding,) = judge(RULE, pairs(text, spread=2))
    assert "2 of 2 parts" in finding.what and finding.cost_ns == 4 * (50 + 40 + 80) * US
    (finding,) = judge(RULE, pairs(text, spread=1))
    assert "1 of 2 parts" in finding.what


def test_of_several_layers_only_the_first_product_counts(judge: Judge) -> None:
    (finding,) = judge(RULE, pairs(JOIN, multiplies=3))
    assert finding.cost_ns == 4 * 90 * US


@pytest.mark.parametrize(
    "texts",
    [
        ("return self.joint(torch.cat((x, y), dim=-1))",),
        ("return self.joint(torch.cat((x.expand(n, -1), y), dim=0))",),
        ("return self.joint(torch.cat((x.expand(n, -1), y)))",),
        ("return self.joint(torch.cat(parts, dim=-1))",),
        ("words = torch.cat((self.cls.expand(n, -1, -1), x), dim=1)", "y = self.encoder(words)"),
        ("k = torch.cat((past.expand(n, -1, -1, -1), k), dim=2)", "scores = q @ k.mT"),
        ("y = self.encoder(torch.cat((self.cls.expand_as(x), x), dim=1))",),
        ("return self.joint(torch.stack((x.expand(n, -1), y), dim=-1))",),
        ("h = h.repeat(1, n, 1)", "h = h + y", "y = self.attn(torch.cat((h, seen), dim=2))"),
        ("z = torch.cat((h.expand(n, -1), a), 1)", "z = z * 2", "y = self.mlp(z)"),
        ("rows.append(torch.cat((h.expand(n, -1), a), 1))",),
    ],
)
def test_silent_where_nothing_is_copied_for_a_product(judge: Judge, texts: tuple[str, ...]) -> None:
    assert judge(RULE, pairs(*texts)) == []


def test_silent_without_products(judge: Judge) -> None:
    assert not judge(RULE, pairs(JOIN, kernels=("gelu",)))
    assert not judge(RULE, pairs(JOIN, kernels=("cudnn_conv2d_fprop_gemm",)))


def test_abstains_without_text(judge: Judge) -> None:
    assert isinstance(judge(RULE, pairs()), Abstain)
