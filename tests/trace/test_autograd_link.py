# SPDX-License-Identifier: Apache-2.0
"""Backward launches find the forward launch they belong to, with the right certainty."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiling_lab import _analysis
from profiling_lab.trace.attribution import BLEED_NS, Match, Phase
from profiling_lab.trace.columns import NO_SEQUENCE, Trait

MAIN, ENGINE = 1, 2


@dataclass
class Program:
    """Launches as the recorder sees them, in time order. `counter` counts the nodes each thread has made."""

    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    counter: dict[int, int] = field(default_factory=dict)

    def makes(self, nodes: int, thread: int = MAIN) -> None:
        self.counter[thread] = self.counter.get(thread, 0) + nodes

    def launch(
        self, thread: int = MAIN, node: int = NO_SEQUENCE, node_thread: int = MAIN, traits: int = 0
    ) -> int:
        peek = self.counter.get(thread, 0)
        self.rows.append((len(self.rows) * 10, thread, peek, node, node_thread, traits))
        return len(self.rows) - 1

    def link(self) -> tuple[list[Phase], list[Match], list[int]]:
        columns = list(zip(*self.rows, strict=True))
        kinds = (np.int64, np.int32, np.int64, np.int64, np.int32, np.uint8)
        arrays = [np.array(c, dtype=k) for c, k in zip(columns, kinds, strict=True)]
        phase, match, row = _analysis.link_by_counter(*arrays)
        return [Phase(p) for p in phase], [Match(m) for m in match], row.tolist()


def test_a_backward_launch_finds_the_launch_of_its_node() -> None:
    program = Program()
    program.launch()
    program.makes(1)
    gemm = program.launch()
    program.makes(1)
    relu = program.launch()
    backward = [program.launch(ENGINE, node=1), program.launch(ENGINE, node=0)]
    phase, match, row = program.link()
    assert [row[b] for b in backward] == [relu, gemm]
    assert [match[b] for b in backward] == [Match.EXACT, Match.EXACT]
    assert phase == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 2
    assert row[:3] == [0, 1, 2], "forward answers for itself"


def test_nodes_without_a_kernel_are_charged_to_the_next_launch() -> None:
    program = Program()
    program.launch()
    program.makes(2)  # a transpose, then the GEMM that launches
    gemm = program.launch()
    backward = program.launch(ENGINE, node=0)
    _, match, row = program.link()
    assert (row[backward], match[backward]) == (gemm, Match.INFERRED)


def test_a_node_made_after_the_last_launch_goes_to_that_launch() -> None:
    program = Program()
    program.launch()
    program.makes(1)
    last = program.launch()
    program.makes(1)  # x[0] at the end of the loss
    program.launch(traits=Trait.STARTS_BACKWARD)  # the first gradient: no node of its own
    backward = program.launch(ENGINE, node=1)
    later = program.launch()  # the next step claims nothing that was needed before
    _, match, row = program.link()
    assert (row[backward], match[backward]) == (last, Match.NEAREST)
    assert row[later] == later


def test_the_first_launch_cannot_know_whether_the_last_node_is_its_own() -> None:
    program = Program(counter={MAIN: 500})
    first = program.launch()
    same, older = program.launch(ENGINE, node=499), program.launch(ENGINE, node=498)
    _, match, row = program.link()
    assert (row[same], match[same]) == (first, Match.INFERRED)
    assert (row[older], match[older]) == (-1, Match.UNKNOWN), "made before the recording began"


def test_a_gradient_is_added_up_for_the_node_before() -> None:
    program = Program()
    program.launch()
    program.makes(1)
    gemm = program.launch()
    program.launch(ENGINE, node=0)
    accumulate, hook = program.launch(ENGINE, node=-1), program.launch(ENGINE, node=-1)
    elsewhere = program.launch(5, node=-1)
    phase, match, row = program.link()
    assert [row[i] for i in (accumulate, hook, elsewhere)] == [gemm, gemm, -1]
    assert {match[i] for i in (accumulate, hook, elsewhere)} == {Match.NO_NUMBER}
    assert {phase[i] for i in (accumulate, hook, elsewhere)} == {Phase.BACKWARD}


def test_a_gradient_without_an_earlier_launch_of_its_backward_is_unattributed() -> None:
    program = Program()
    program.launch()
    program.makes(1)
    program.launch()
    program.launch(ENGINE, node=0)
    program.launch(traits=Trait.STARTS_BACKWARD)  # of the next loss, whose nodes launch nothing
    accumulate = program.launch(ENGINE, node=-1)
    program.launch(ENGINE, node=900)  # older than the recording: known to be of backward, and no more
    after_unknown = program.launch(ENGINE, node=-1)
    _, match, row = program.link()
    assert (row[accumulate], match[accumulate]) == (-1, Match.NO_NUMBER)
    assert (row[after_unknown], match[after_unknown]) == (row[accumulate + 1], Match.NO_NUMBER)


def test_a_hook_that_runs_python_has_its_own_line() -> None:
    program = Program()
    program.launch()
    program.makes(1)
    program.launch()
    program.launch(ENGINE, node=0)
    hook = program.launch(ENGINE, node=-1, traits=Trait.FRAMES_INSIDE_NODE)
    _, match, row = program.link()
    assert (row[hook], match[hook]) == (-1, Match.NO_NUMBER)


def test_other_threads_may_go_on_with_forward_meanwhile() -> None:
    program = Program()
    program.launch()
    program.makes(1)
    gemm = program.launch()
    program.launch(ENGINE, node=0)
    program.launch(7)
    accumulate = program.launch(ENGINE, node=-1)
    _, _, row = program.link()
    assert row[accumulate] == gemm


def test_all_launches_inside_a_custom_function_share_its_node_and_the_first_answers() -> None:
    program = Program()
    program.launch()
    program.makes(1)  # the node exists before forward() runs, and nothing inside makes one
    first = program.launch()
    program.launch()
    backward = program.launch(ENGINE, node=0)
    _, match, row = program.link()
    assert (row[backward], match[backward]) == (first, Match.EXACT)


def test_two_forward_threads_count_on_their_own() -> None:
    program = Program()
    for thread in (MAIN, 7):
        program.launch(thread)
    program.makes(1, MAIN)
    on_main = program.launch(MAIN)
    program.makes(1, 7)
    on_other = program.launch(7)
    a = program.launch(ENGINE, node=0, node_thread=MAIN)
    b = program.launch(ENGINE, node=0, node_thread=7)
    _, _, row = program.link()
    assert (row[a], row[b]) == (on_main, on_other)


def test_double_backward_leads_to_the_first_forward_line() -> None:
    program = Program()
    program.launch()
    program.launch(ENGINE)
    program.makes(1)
    forward = program.launch()
    program.makes(1, ENGINE)  # create_graph: backward makes a node on the engine's thread
    first = program.launch(ENGINE, node=0)
    second = program.launch(ENGINE, node=0, node_thread=ENGINE)
    _, match, row = program.link()
    assert row[first] == forward and row[second] == forward
    assert match[second] == Match.EXACT


def test_in_place_on_a_view_makes_its_node_after_the_kernel() -> None:
    program = Program()
    program.launch()
    written = program.launch()  # y[:, 0].add_(1): the kernel, then CopySlices
    program.makes(1)
    program.launch()
    backward = program.launch(ENGINE, node=0, traits=Trait.NODE_MADE_LATE)
    _, match, row = program.link()
    assert (row[backward], match[backward]) == (written, Match.INFERRED)


def test_recomputed_forward_answers_for_itself_and_its_nodes_lead_to_it() -> None:
    program = Program()
    program.launch()
    program.launch(ENGINE)
    program.makes(1)
    program.launch()
    program.makes(1, ENGINE)
    again = program.launch(ENGINE, node=0, traits=Trait.OWN_STACK_ANSWERS)
    backward = program.launch(ENGINE, node=0, node_thread=ENGINE)
    phase, match, row = program.link()
    assert (phase[again], row[again], match[again]) == (Phase.BACKWARD, again, Match.OWN)
    assert row[backward] == again


def test_a_thread_number_that_starts_over_forgets_the_old_thread() -> None:
    program = Program(counter={MAIN: 40})
    program.launch()
    program.makes(1)
    program.launch()
    program.counter[MAIN] = 0
    program.launch()
    program.makes(1)
    new = program.launch()
    found, gone = program.launch(ENGINE, node=0), program.launch(ENGINE, node=40)
    _, match, row = program.link()
    assert (row[found], match[found]) == (new, Match.EXACT)
    assert match[gone] == Match.NEAREST


operators = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=15
)


@given(operators, st.integers(0, 1))
def test_a_whole_training_step_replays_as_it_was_run(ops: list[tuple[int, int, int]], start: int) -> None:
    """Each operator makes `views` nodes without a kernel, then its own, launches on one of two threads."""
    program = Program(counter={0: start, 1: start})
    program.launch(0)
    program.launch(1)
    latest = {0: 0, 1: 1}
    waiting: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    truth: dict[tuple[int, int], tuple[int, Match]] = {}
    if start:
        truth |= {(0, 0): (0, Match.INFERRED), (1, 0): (1, Match.INFERRED)}
    for views, launches, thread in ops:
        first = program.counter[thread]
        program.makes(views + 1, thread)
        waiting[thread] += [(thread, n) for n in range(first, first + views + 1)]
        for _ in range(launches):
            row = program.launch(thread)
            for node in waiting[thread]:
                own = node == waiting[thread][-1]
                truth[node] = (row, Match.EXACT if own else Match.INFERRED)
            waiting[thread].clear()
            latest[thread] = row
    for thread, nodes in waiting.items():
        truth |= {node: (latest[thread], Match.NEAREST) for node in nodes}
    backward = {node: program.launch(9, node=node[1], node_thread=node[0]) for node in reversed(truth)}
    _, match, row = program.link()
    assert {node: (row[b], match[b]) for node, b in backward.items()} == truth


# The same from the ranges of emit_nvtx

Range = tuple[int, int, int, int, int]  # start, end, thread, sequence, is the engine's


def link_ranges(
    ranges: list[Range], launches: list[tuple[int, int, int]]
) -> tuple[list[Phase], list[Match], list[int], list[int]]:
    r = list(zip(*ranges, strict=True))
    n = list(zip(*launches, strict=True))
    (phase, match, row), _, forward_range, dropped = _analysis.link_by_ranges(
        np.array(r[0], dtype=np.int64),
        np.array(r[1], dtype=np.int64),
        np.array(r[2], dtype=np.int32),
        np.array(r[3], dtype=np.int64),
        np.array(r[4], dtype=np.uint8),
        np.zeros(len(ranges), dtype=np.int32),
        np.array(n[0], dtype=np.int64),
        np.array(n[1], dtype=np.int32),
        np.array(n[2], dtype=np.uint8),
        np.zeros(len(launches), dtype=np.uint8),
        BLEED_NS,
    )
    assert dropped == 0
    return [Phase(p) for p in phase], [Match(m) for m in match], row.tolist(), forward_range.tolist()


MATMUL: list[Range] = [
    (0, 50_000, MAIN, 4, 0),  # aten::matmul, seq = 4
    (10_000, 40_000, MAIN, 4, 0),  # aten::mm, seq = 4
    (100_000, 160_000, ENGINE, NO_SEQUENCE, 1),  # evaluate_function: MmBackward0
    (110_000, 140_000, ENGINE, 4, 0),  # MmBackward0, seq = 4
    (115_000, 130_000, ENGINE, NO_SEQUENCE, 0),  # aten::mm
]


def test_ranges_lead_to_the_innermost_operator_with_the_number() -> None:
    phase, match, row, forward_range = link_ranges(MATMUL, [(20_000, MAIN, 1), (120_000, ENGINE, 0)])
    assert phase == [Phase.FORWARD, Phase.BACKWARD]
    assert row == [0, 0] and match == [Match.OWN, Match.EXACT]
    assert forward_range == [1, 1]


def test_of_the_launches_in_an_operator_one_with_a_stack_answers() -> None:
    launches = [(15_000, MAIN, 0), (20_000, MAIN, 1), (120_000, ENGINE, 0)]
    _, _, row, _ = link_ranges(MATMUL, launches)
    assert row[2] == 1


def test_an_operator_that_launches_nothing_is_answered_for_by_the_one_around_it() -> None:
    _, _, row, _ = link_ranges(MATMUL, [(5_000, MAIN, 1), (120_000, ENGINE, 0)])
    assert row == [0, 0]


def test_gradients_added_up_in_the_engines_range_belong_to_its_node() -> None:
    phase, match, row, _ = link_ranges(MATMUL, [(20_000, MAIN, 1), (150_000, ENGINE, 0)])
    assert (phase[1], match[1], row[1]) == (Phase.BACKWARD, Match.EXACT, 0)


def test_an_evaluation_without_a_number_is_named() -> None:
    accumulate: list[Range] = [(100, 900, ENGINE, NO_SEQUENCE, 1), (200, 800, ENGINE, NO_SEQUENCE, 0)]
    phase, match, row, _ = link_ranges(accumulate, [(500, ENGINE, 0)])
    assert (phase, match, row) == ([Phase.BACKWARD], [Match.NO_NUMBER], [-1])


def test_ranges_of_gradients_follow_the_node_before() -> None:
    accumulate: list[Range] = [(200_000, 240_000, ENGINE, NO_SEQUENCE, 1)]
    launches = [(20_000, MAIN, 1), (120_000, ENGINE, 0), (220_000, ENGINE, 0)]
    phase, match, row, forward_range = link_ranges([*MATMUL, *accumulate], launches)
    assert (phase[2], match[2], row[2], forward_range[2]) == (Phase.BACKWARD, Match.NO_NUMBER, 0, -1)
    launches.insert(2, (180_000, MAIN, 1))  # forward again: that backward is over
    _, match, row, _ = link_ranges([*MATMUL, *accumulate], launches)
    assert (match[3], row[3]) == (Match.NO_NUMBER, -1)


def test_the_same_number_on_two_threads_leaves_a_doubt() -> None:
    other: Range = (60_000, 70_000, 3, 4, 0)
    _, match, row, _ = link_ranges(
        [*MATMUL, other], [(20_000, MAIN, 1), (65_000, 3, 1), (120_000, ENGINE, 0)]
    )
    assert (row[2], match[2]) == (1, Match.INFERRED), "the latest, and not for sure"


def test_a_number_that_is_made_later_is_another_steps() -> None:
    later: Range = (500_000, 510_000, MAIN, 4, 0)
    launches = [(20_000, MAIN, 1), (120_000, ENGINE, 0), (505_000, MAIN, 1)]
    _, _, row, _ = link_ranges([*MATMUL, later], launches)
    assert row == [0, 0, 2]


def test_double_backward_over_ranges() -> None:
    ranges: list[Range] = [
        (0, 9_000, MAIN, 0, 0),
        (20_000, 60_000, ENGINE, NO_SEQUENCE, 1),
        (21_000, 59_000, ENGINE, 0, 0),  # MulBackward0, seq = 0
        (30_000, 40_000, ENGINE, 7, 0),  # aten::mul, seq = 7: create_graph makes a node here
        (80_000, 99_000, ENGINE, NO_SEQUENCE, 1),
        (81_000, 98_000, ENGINE, 7, 0),  # MulBackward0, seq = 7
    ]
    phase, match, row, _ = link_ranges(ranges, [(5_000, MAIN, 1), (35_000, ENGINE, 0), (90_000, ENGINE, 0)])
    assert phase == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]
    assert row == [0, 0, 0] and match[2] == Match.EXACT
