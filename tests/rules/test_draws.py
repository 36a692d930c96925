# SPDX-License-Identifier: Apache-2.0
"""Comprehensions whose passes compute the same until something random"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.recompute import RULE

FILE, NS, STEPS = "/app/serve.py", 10_000, 3
MODULE = "/v/site-packages/torch/nn/modules/module.py:9 Module._call_impl"
DRAWN = f"{FILE}:8 main > {FILE}:21 scores > {MODULE} > {FILE}:31 Net.forward"
PASS = ("gemm", "gelu", "gemm", "fused_dropout_kernel", "gemm")
TEXT = "return [self.net(x) for _ in range(self.draws)]"
INSIDE = "return self.head(self.drop(self.body(x)))"


def serving(
    text: str = TEXT,
    inside: str = INSIDE,
    passes: tuple[tuple[str, ...], ...] = (PASS,) * 4,
    stack: str = DRAWN,
    other: str = "scores = self.scores(x)",
    times: int = 1,
) -> TraceBuilder:
    """Steps that draw, `times` often, and then do something else."""
    builder = TraceBuilder()
    for line, said in ((8, other), (21, text), (31, inside)):
        builder.source(FILE, line, said)
    for _ in range(STEPS * times):
        for each in passes:
            for kernel in each:
                builder.launch(kernel, NS, stack=stack)
        builder.launch("softmax", NS, stack=f"{FILE}:8 main")
    return of_training(builder)


def of_training(builder: TraceBuilder) -> TraceBuilder:
    """Something is trained, too: without that the rule cannot tell of checkpoints."""
    builder.launch("gemm", NS, stack=f"{FILE}:9 main", peek=901)
    return builder.launch("gemm", NS, thread=2, node=900, node_name="MmBackward0", peek=901)


def test_fires_on_what_each_draw_computes_again(judge: Judge) -> None:
    (finding,) = judge(RULE, serving())
    assert finding.cost_ns == STEPS * 3 * 3 * NS and finding.place is not None and finding.place.line == 21
    assert (
        "calls Net.forward with the same arguments" in finding.what and "before the draws" in finding.remedy
    )
    assert finding.severity_at_most == "medium"


def test_the_first_pass_of_each_comprehension_stays(judge: Judge) -> None:
    (finding,) = judge(RULE, serving(times=2))
    assert finding.cost_ns == 2 * STEPS * 3 * 3 * NS


@pytest.mark.parametrize(
    "text",
    [
        "return torch.stack([self.net(x) for _ in range(8)]).mean(0)",
        "return sum(self.net(x) for _ in range(8))",
        "kept = [self.net(x, y=row) for _ in rows]",
        "kept = {self.net(x) for _ in range(8)}",
    ],
)
def test_other_comprehensions(judge: Judge, text: str) -> None:
    assert len(judge(RULE, serving(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "return [self.net(x) for x in parts]",
        "return [self.net(x, seed) for seed in range(8)]",
        "return [self.net(x[i : i + 1]) for i in range(8)]",
        "scores.append(self.net(x))",
        "return self.net(x) + sum(n for n in numbers)",
        "return [n for n in self.net(x)]",
    ],
)
def test_silent_where_the_arguments_may_differ(judge: Judge, text: str) -> None:
    assert judge(RULE, serving(text)) == ()


@pytest.mark.parametrize(
    "passes",
    [
        (("gemm", "gelu"),) * 4,
        (("dropout", "gemm", "gelu"),) * 4,
        (PASS,) * 2,
        (PASS, PASS, PASS, ("gemm", *PASS)),
    ],
    ids=["nothing random", "random first", "two", "not the same"],
)
def test_silent_about_these_kernels(judge: Judge, passes: tuple[tuple[str, ...], ...]) -> None:
    assert judge(RULE, serving(passes=passes)) == ()


@pytest.mark.parametrize(
    "inside",
    [
        "self.state = self.cell(x, 0)",
        "self.kept[place] = self.body(x)",
        "rows[place] = self.body(x)",
        "x.add_(self.body(x))",
        "return self.body(self.state)",
    ],
)
def test_silent_where_something_changes(judge: Judge, inside: str) -> None:
    assert judge(RULE, serving(inside=inside, other="self.state = self.scores(x)")) == ()


def test_silent_about_copies_and_training(judge: Judge) -> None:
    copying, training = TraceBuilder(), TraceBuilder()
    for builder in (copying, training):
        for line, said in ((21, TEXT), (31, INSIDE)):
            builder.source(FILE, line, said)
        for step in range(STEPS):
            for draw in range(4):
                if builder is copying:
                    builder.copy("HtoD", NS, stack=DRAWN)
                for kernel in PASS:
                    builder.launch(kernel, NS, stack=DRAWN, peek=4 * step + draw + 1)
            builder.launch("softmax", NS, stack=f"{FILE}:8 main")
            if builder is training:
                for draw in range(4):
                    node = {"node": 4 * step + draw, "node_name": "MmBackward0"}
                    builder.launch("gemm", NS, thread=2, peek=100, **node)
    assert judge(RULE, of_training(copying)) == () and judge(RULE, training) == ()


def test_each_thread_draws_by_itself(judge: Judge) -> None:
    def drawn(threads: tuple[int, ...]) -> TraceBuilder:
        builder = of_training(TraceBuilder().source(FILE, 21, TEXT).source(FILE, 31, INSIDE))
        for thread in threads:
            for kernel in PASS * 2:
                builder.launch(kernel, NS, stack=DRAWN, thread=thread)
        return builder

    assert judge(RULE, drawn((3, 4))) == ()
    (finding,) = judge(RULE, drawn((3, 3)))
    assert finding.cost_ns == 3 * 3 * NS
