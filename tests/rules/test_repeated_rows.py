# SPDX-License-Identifier: Apache-2.0
"""Networks that get copies of rows, until something random"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.recompute import RULE

FILE, NS = "/app/rollouts.py", 10_000
MODULE = "/v/site-packages/torch/nn/modules/module.py:9 Module._call_impl"
INSIDE = f"{FILE}:8 main > {FILE}:22 play > {MODULE} > {FILE}:31 Net.forward"
COPIES, CALL = "prompts = prompts.repeat_interleave(self.group, dim=0)", "scores = self.net(prompts)"
NETWORK = ("gemm", "gelu", "gemm", "fused_dropout_kernel", "gemm")


def rollouts(
    copies: str = COPIES,
    call: str = CALL,
    between: str = "",
    network: tuple[str, ...] = NETWORK,
    copying: str = "direct_copy_kernel",
) -> TraceBuilder:
    builder = TraceBuilder()
    for line, text in ((20, copies), (21, between), (22, call)):
        if text:
            builder.source(FILE, line, text)
    for _ in range(3):
        builder.launch(copying, NS, stack=f"{FILE}:8 main > {FILE}:20 play")
        if between:
            builder.launch("add", NS, stack=f"{FILE}:8 main > {FILE}:21 play")
        for kernel in network:
            builder.launch(kernel, NS, stack=INSIDE)
        builder.launch("softmax", NS, stack=f"{FILE}:8 main")
    builder.launch("gemm", NS, stack=f"{FILE}:9 main", peek=901)  # something is trained, too
    return builder.launch("gemm", NS, thread=2, node=900, node_name="MmBackward0", peek=901)


def test_fires_on_what_copies_of_a_row_give(judge: Judge) -> None:
    (finding,) = judge(RULE, rollouts())
    assert finding.cost_ns == 3 * 3 * NS, "what is launched from the first random kernel on is not counted"
    assert finding.place is not None and finding.place.line == 22
    assert "gets copies of rows" in finding.what and "repeat what it makes" in finding.remedy
    assert set(finding.saving.left) == {0.25} and finding.severity_at_most == "medium"
    assert set(finding.saving.launches_left) == {1.0} and finding.wins_frac == 0.75


@pytest.mark.parametrize(
    ("copies", "call", "left"),
    [
        ("rows = torch.repeat_interleave(x, 8, dim=0)", "y = self.net(rows)", 1 / 8),
        ("rows = x.repeat(16, 1, 1)", "y = self.net(rows, self.cache, causal=True)", 1 / 16),
        ("rows = x.float().repeat_interleave(n, 0)", "y = self.net(x=rows)", 1 / 4),
        ("y = 1", "y = self.net(x.repeat_interleave(2, dim=0))", 1 / 2),
        ("y = 1", "y = self.net(x.repeat(n, 1), mask.repeat(n, 1))", 1 / 4),
    ],
)
def test_other_copies(judge: Judge, copies: str, call: str, left: float) -> None:
    (finding,) = judge(RULE, rollouts(copies, call))
    assert set(finding.saving.left) == {left}


@pytest.mark.parametrize(
    ("copies", "call"),
    [
        ("rows = x.repeat_interleave(8, dim=1)", "y = self.net(rows)"),
        ("rows = x.repeat(1, 8)", "y = self.net(rows)"),
        ("rows = x.repeat(8)", "y = self.net(rows)"),
        ("rows = x.repeat_interleave(1, dim=0)", "y = self.net(rows)"),
        (COPIES, "y = self.net(prompts, noise)"),
        (COPIES, "y = self.net(prompts + noise)"),
        ("y = 1", "y = self.net(x.repeat(8, 1), y.repeat_interleave(8, dim=0))"),
        ("prompts += x.repeat(8, 1)", CALL),
        ("other = x.repeat(8, 1)", CALL),
    ],
)
def test_silent_where_rows_may_differ(judge: Judge, copies: str, call: str) -> None:
    assert judge(RULE, rollouts(copies, call)) == ()


def test_silent_where_the_copies_have_changed(judge: Judge) -> None:
    assert judge(RULE, rollouts(between="prompts = augmented(prompts)")) == ()
    assert judge(RULE, rollouts(between="prompts[:, 0] = starts")) == ()
    assert judge(RULE, rollouts(between="prompts.add_(noise)")) == ()
    assert len(judge(RULE, rollouts(between="other = augmented(prompts)"))) == 1


def test_silent_about_counts_of_each_row(judge: Judge) -> None:
    assert judge(RULE, rollouts(copying="void compute_cuda_kernel<long>(long const*)")) == ()


def test_silent_about_what_multiplies_nothing_or_is_random_at_once(judge: Judge) -> None:
    assert judge(RULE, rollouts(network=("gelu", "add", "dropout", "gemm"))) == ()
    assert judge(RULE, rollouts(network=("bernoulli", "gemm", "gemm"))) == ()
