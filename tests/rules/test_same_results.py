# SPDX-License-Identifier: Apache-2.0
"""Methods without arguments that launch the same in each step, or at several lines of one function"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.pure_lines import is_pure
from profiling_lab.rules.recompute import RULE

FILE, STEPS = "/app/train.py", 6
MAIN, CALLS, KEPT, BODY = (
    f"{FILE}:5 main > ",
    f"{FILE}:11 Data.sample > ",
    f"{FILE}:21 Data.scale > ",
    f"{FILE}:31 Data.statistics",
)
Work = Callable[[TraceBuilder, int], object]


def sums(builder: TraceBuilder, step: int) -> object:
    builder.launch("elementwise", 1_000, stack=(MAIN + CALLS + KEPT).removesuffix(" > "))
    return builder.launch("reduce_kernel", 20_000, stack=MAIN + CALLS + KEPT + BODY)


def program(
    work: Work = sums,
    outer: str = "x = (x - self.scale) / 2",
    inner: str = "return self.statistics()",
    steps: int = STEPS,
) -> TraceBuilder:
    """Each step normalises with what a method of a property says."""
    builder = TraceBuilder()
    builder.source(FILE, 5, "batch = data.sample(rows)").source(FILE, 11, outer).source(FILE, 21, inner)
    for step in range(steps):
        begin = builder.now_ns
        work(builder, step)
        builder.launch("gemm", 20_000, stack=f"{FILE}:6 main", peek=step + 1)
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def test_fires_on_a_method_whose_result_is_the_same_in_each_step(judge: Judge) -> None:
    (finding,) = judge(RULE, program())
    assert finding.cost_ns == STEPS * 21_000 and "51.2 % of the GPU time" in finding.what
    assert "Data.statistics has no arguments" in finding.what and finding.severity_at_most == "medium"
    assert finding.place is not None and finding.place.line == 21, "the innermost method that has most of it"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("x = (x - self.scale(rows)) / 2", "return self.statistics(rows)"),
        ("x = x + self.scaled", "return self.others(rows)"),
        ("for x in self.scale:", "with self.statistics():"),
        ("x = self.scale(", "self.statistics()"),
    ],
    ids=["arguments", "other names", "entered", "not used"],
)
def test_silent_about_calls_with_arguments_or_for_what_they_change(
    judge: Judge, outer: str, inner: str
) -> None:
    assert judge(RULE, program(outer=outer, inner=inner)) == _nothing(judge)


def with_copy(kind: str) -> Work:
    def work(builder: TraceBuilder, step: int) -> object:
        sums(builder, step)
        return builder.copy(kind, 1_000, size_bytes=8, stack=MAIN + CALLS + KEPT + BODY)

    return work


def named(kernel: str, times: Callable[[int], int] = lambda step: 1) -> Work:
    def work(builder: TraceBuilder, step: int) -> None:
        for _ in range(times(step)):
            builder.launch(kernel, 20_000, stack=MAIN + CALLS + KEPT + BODY)

    return work


@pytest.mark.parametrize(
    "work",
    [with_copy("HtoD"), named("distribution_elementwise"), named("reduce_kernel", lambda step: 1 + step % 2)],
    ids=["from the host", "random", "not the same"],
)
def test_silent_where_the_result_differs(judge: Judge, work: Work) -> None:
    assert judge(RULE, program(work)) == _nothing(judge)


def test_a_value_that_the_host_reads_changes_where_something_is_trained(judge: Judge) -> None:
    assert len(judge(RULE, program(with_copy("DtoH")))) == 1
    builder = program(with_copy("DtoH"))
    builder.launch("gemm", 1_000, thread=2, node=0, node_name="MmBackward0", peek=9)
    assert judge(RULE, builder) == ()


@pytest.mark.parametrize(
    ("library", "findings"),
    [("utils/_contextlib.py:9 decorate_context", 1), ("pool.py:9 f", 0), ("nn/modules/module.py:9 f", 0)],
)
def test_what_a_library_calls_may_get_arguments(judge: Judge, library: str, findings: int) -> None:
    stack = f"{MAIN}{CALLS}/v/site-packages/torch/{library} > {BODY}"
    builder = program(
        lambda made, step: made.launch("reduce_kernel", 20_000, stack=stack), "x = run(self.statistics, rows)"
    )
    verdict = judge(RULE, builder)
    assert verdict == _nothing(judge) if not findings else len(verdict) == findings


def test_a_line_that_reads_only_its_object_is_the_same(judge: Judge) -> None:
    text = "x = F.normalize(self.encode(self.prompts.flatten(0, 1)), dim=-1)"
    (finding,) = judge(RULE, program(outer="x = scale(rows)", inner=text))
    assert (
        finding.place is not None
        and finding.place.line == 21
        and "reads nothing but its object" in finding.what
    )
    assert finding.cost_ns == STEPS * 21_000


@pytest.mark.parametrize(
    "changes", ["self.prompts.copy_(rows)", "planner.prompts[:, 0] = rows", "self.prompts = new(rows)"]
)
def test_silent_where_another_line_changes_what_is_read(judge: Judge, changes: str) -> None:
    builder = program(outer="x = scale(rows)", inner="return self.encode(self.prompts)").source(
        FILE, 6, changes
    )
    assert judge(RULE, builder) == _nothing(judge)
    method = program(inner="return self.statistics()").source(FILE, 31, "mean = self.prompts.mean()")
    assert judge(RULE, method.source(FILE, 6, changes)) == _nothing(judge), "the method reads it"
    assert len(judge(RULE, method.source(FILE, 6, "self.other = new(rows)"))) == 1
    deeper = program(
        lambda made, step: made.launch("gemm", 20_000, stack=f"{MAIN}{CALLS}{KEPT}{BODY} > {FILE}:41 f")
    )
    deeper.source(FILE, 31, "mean = f(self.prompts)").source(FILE, 41, "return x.mean()")
    assert judge(RULE, deeper.source(FILE, 6, changes)) == _nothing(judge), "a function within gets it"


@pytest.mark.parametrize(
    ("text", "pure"),
    [
        ("return self.a.mean(dim=0), self.b", True),
        ("y = F.softmax(self.table / SCALE, dim=-1)", True),
        ("self.kept = encode(self.prompts)", True),
        ("y = torch.stack([self.f(each) for each in self.parts])", True),
        ("y = max(self.parts, key=lambda part: part.score)", True),
        ("y = self.head(x)", False),
        ("return", False),
        ("return torch.zeros(8)", False),
        ("self.hidden = self.cell(self.hidden)", False),
        ("self.table[0] = self.table.mean()", False),
        ("y = self.table.mul_(2)", False),
        ("self.encode(self.prompts)", False),
        ("y = self.encode(", False),
        ("if self.ready: return self.table", False),
        ("a = self.a; b = self.b", False),
    ],
)
def test_what_a_line_reads(text: str, pure: bool) -> None:
    assert is_pure(text) is pure


def test_too_few_steps_tell_nothing(judge: Judge) -> None:
    assert judge(RULE, program(steps=3)) == _nothing(judge)


def trained(lines: tuple[int, ...], text: str, kernels: tuple[str, ...]) -> TraceBuilder:
    """A function that asks for all vectors at several lines, and trains through each."""
    builder, node = TraceBuilder(), 0
    for step in range(4):
        begin, nodes = builder.now_ns, []
        for line, kernel in zip(lines, kernels, strict=True):
            builder.source(FILE, line, text)
            stack = f"{FILE}:5 main > {FILE}:{line} Net.loss > {FILE}:31 Net.vectors"
            builder.launch(kernel, 10_000, stack=stack, peek=node + 1)
            nodes.append(node)
            node += 1
        for each in reversed(nodes):
            builder.launch("gemm_back", 20_000, thread=2, node=each, node_name="MmBackward0", peek=node)
        builder.launch("adam", 10_000, stack=f"{FILE}:7 main")
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def test_a_property_at_three_lines_is_computed_twice_too_often(judge: Judge) -> None:
    (finding,) = judge(RULE, trained((11, 12, 13), "a = self.vectors[0]", ("gemm",) * 3))
    assert finding.cost_ns == 4 * 2 * 30_000, "forward and backward of two of them"
    assert "at 3 lines" in finding.what and finding.place is not None and finding.place.line in (11, 12, 13)


def test_silent_about_several_lines_that_do_other_work_or_give_arguments(judge: Judge) -> None:
    assert judge(RULE, trained((11, 12), "a = self.vectors[0]", ("gemm", "other"))) == ()
    assert judge(RULE, trained((11, 12), "x = self.vectors(x)", ("gemm", "gemm"))) == ()
    assert judge(RULE, trained((11,), "a = self.vectors[0]", ("gemm",))) == ()


def _nothing(judge: Judge) -> object:
    """What the rule says of a program without any of it, and without backward."""
    return judge(RULE, program(named("reduce_kernel", lambda step: 0)))


SOLVER = f"{MAIN}{FILE}:31 Solver.step"


def solves(
    text: str, changes: str = "", factorise: str = "getrf_pivot<float>", calls: int = 1
) -> TraceBuilder:
    """Each step solves with a matrix: a factorisation, and what it is used for."""

    def work(builder: TraceBuilder, step: int) -> None:
        for _ in range(calls):
            for name, ns in (("copy_kernel", 2_000), (factorise, 8_000), ("gemm", 9_000), (factorise, 8_000)):
                builder.launch(name, ns, stack=SOLVER)
            builder.launch("trsm_left", 5_000, stack=SOLVER).launch("gemm", 4_000, stack=SOLVER)
            builder.call("cudaStreamSynchronize_v3020", call_ns=60_000, stack=SOLVER).gap(60_000)

    builder = program(work).source(FILE, 31, text)
    return builder.source(FILE, 6, changes) if changes else builder


@pytest.mark.parametrize("calls", [1, 3])
def test_a_matrix_that_stays_is_factorised_once(judge: Judge, calls: int) -> None:
    (finding,) = judge(RULE, solves("return torch.linalg.solve(self.after, right)", calls=calls))
    assert finding.cost_ns == STEPS * calls * 27_000, "all until its last kernel; what solves stays"
    assert finding.place is not None and finding.place.line == 31 and "lu_factor" in finding.remedy
    assert finding.saving is not None and len(finding.saving.operations) == STEPS * calls * 4


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("return torch.linalg.solve(matrix, right)", {}),
        ("return torch.linalg.solve(self.after, right)", {"changes": "self.after = same - dt * matrix"}),
        ("return torch.linalg.lu_solve(*self.factors, right)", {}),
        ("return torch.linalg.solve(self.after, right)", {"factorise": "trsm_right"}),
    ],
    ids=["of no attribute", "that changes", "kept already", "none seen"],
)
def test_silent_about_factorisations_of_what_may_change(judge: Judge, text: str, how: dict[str, str]) -> None:
    assert judge(RULE, solves(text, **how)) == _nothing(judge)
