# SPDX-License-Identifier: Apache-2.0
"""Many tiny kernels of one line"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.tiny_kernels import RULE

LINE = "/app/model.py:14 Net.forward"


def launches(count: int, gpu_ns: int, stack: str = LINE) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(count):
        builder.launch("add", gpu_ns, stack=stack, call_ns=4_000)
    return builder


def test_fires_on_a_loop_of_tiny_kernels(judge: Judge) -> None:
    (finding,) = judge(RULE, launches(100, 2_000))
    assert finding.events == 100 and finding.place.line == 14
    assert finding.cost_ns == 100 * 2_000 + 99 * 3_000, "they ran, and the GPU waited for the next of them"
    assert "0.297 ms before them" in finding.what


@pytest.mark.parametrize(
    ("kernel", "own"), [("LSTM_elementWise_fp(int)", True), ("lstm_cell_forward", False)]
)
def test_a_recurrent_layer_of_cudnn_is_in_healthy_programs(judge: Judge, kernel: str, own: bool) -> None:
    builder = TraceBuilder()
    for _ in range(100):
        builder.launch("gemm", 3_000, stack=LINE).launch(kernel, 2_000, stack=LINE)
    (finding,) = judge(RULE, builder)
    assert finding.events == 200 and finding.severity_at_most == ("medium" if own else "high")
    assert ("cuDNN" in finding.remedy) is own


def test_short_copies_and_memsets_between_the_kernels_are_saved_with_them(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(100):
        builder.launch("add", 2_000, stack=LINE).memset(1_000, stack=LINE)
        builder.memset(1_000, stack="/app/other.py:3 f").memset(50_000, stack=LINE)
    (finding,) = judge(RULE, builder)
    assert finding.saving is not None and finding.events == 100
    assert len(finding.saving.operations) == 2 * 100, "not the long ones, nor those of other lines"


def test_silent_below_either_threshold(judge: Judge) -> None:
    assert judge(RULE, launches(99, 2_000)) == ()
    assert judge(RULE, launches(100, 10_000)) == ()


def test_abstains_without_lines(judge: Judge) -> None:
    verdict = judge(RULE, launches(100, 2_000, stack=""))
    assert isinstance(verdict, Abstain) and "0.0 % of the GPU time has a line" in verdict.reason


def test_a_graph_is_one_launch(judge: Judge) -> None:
    builder = TraceBuilder()
    for graph in range(20):
        for kernel in range(40):
            how = {"correlation": 5_000 + graph, "recorded": not kernel}
            builder.launch("add", 2_000, stack=LINE, call_ns=90_000, **how)
    assert judge(RULE, builder) == (), "800 kernels in 20 launches are replayed already"


def test_launches_that_load_code_are_no_cost_of_launching(judge: Judge) -> None:
    """808 ms were claimed for six launches that loaded modules."""
    builder = TraceBuilder()
    for i in range(200):
        builder.launch("add", 2_000, stack=LINE, call_ns=4_000 if i % 40 else 130_000_000)
        builder.gap(0 if i % 40 else 130_000_000)
    assert judge(RULE, builder) == ()
    (finding,) = judge(RULE, launches(200, 2_000).launch("gemm", 9_000, stack=LINE, call_ns=130_000_000))
    assert "0.797 ms to launch them" in finding.what and "backward" not in finding.what


def test_lines_of_one_function_are_one_finding(judge: Judge) -> None:
    """An optimizer written out is five lines of tiny kernels: together more than the model's one line."""
    builder = TraceBuilder()
    for _ in range(150):
        for line in (3, 4, 5):
            builder.launch("mul", 2_000, stack=f"/app/train.py:9 main > /app/adam.py:{line} Adam.update")
        builder.launch("add", 2_000, stack="/app/adam.py:4 Adam.update")
        builder.launch("gelu", 3_000, stack="/app/train.py:9 main > /app/model.py:7 Net.forward")
    one, other = sorted(judge(RULE, builder), key=lambda finding: -finding.cost_ns)
    assert (one.place.file, one.place.line, one.events) == ("/app/adam.py", 4, 600), "most launches are here"
    assert "at 3 lines of one function" in one.what and one.cost_ns > 2 * other.cost_ns
    assert other.place.line == 7 and "lines" not in other.what


def test_idle_time_that_a_wait_costs_is_not_claimed(judge: Judge) -> None:
    """Without the wait the host would be 500 µs ahead: no pause between the short kernels would remain."""

    def rounds(api: str) -> TraceBuilder:
        builder = TraceBuilder()
        for _ in range(20):
            builder.launch("long", 500_000).call(api, call_ns=500_000, stack="/app/train.py:9 main")
            builder.gap(500_000)
            for _ in range(10):
                builder.launch("add", 1_000, stack=LINE, call_ns=4_000)
        return builder

    (waiting,) = judge(RULE, rounds("cudaDeviceSynchronize_v3020"))
    (computing,) = judge(RULE, rounds("cudaGetDevice_v3020"))
    assert waiting.cost_ns == 200 * 1_000, "what they run"
    assert computing.cost_ns > 200 * 1_000 + 20 * 9 * 3_000


def test_waits_after_every_few_launches_are_the_line_to_look_at(judge: Judge) -> None:
    """A timer around every layer: no graph and no fused kernel reaches over its waits."""

    def layers(kernels: int) -> TraceBuilder:
        builder = TraceBuilder()
        for _ in range(200):
            for _ in range(kernels):
                builder.launch("add", 2_000, stack=LINE, call_ns=4_000)
            builder.call("cudaEventSynchronize_v3020", call_ns=4_000, stack="/app/timer.py:44 after")
        return builder

    (cut,) = judge(RULE, layers(2))
    assert (cut.place.file, cut.place.line) == ("/app/timer.py", 44)
    assert "the host waits after every 2.0 of them, mostly at this line" in cut.what
    (whole,) = judge(RULE, layers(4))
    assert whole.place.line == 14 and "waits" not in whole.what


def passes(waits: bool) -> TraceBuilder:
    """A loop that drops boxes: a helper computes, and the line that calls it reads how many are left."""
    builder, line = TraceBuilder(), "/app/boxes.py:78 kept"
    for _ in range(120):
        for _ in range(4):
            builder.launch("max", 2_000, stack=f"{line} > /app/boxes.py:60 overlap", call_ns=4_000)
        builder.launch("index", 2_000, stack=line, call_ns=4_000)
        if waits:
            builder.call("cudaStreamSynchronize_v3020", call_ns=4_000, stack=line)
    return builder


def test_what_a_loop_with_waits_calls_is_part_of_the_loop(judge: Judge) -> None:
    (loop,) = judge(RULE, passes(waits=True))
    assert (
        loop.place.line == 78 and loop.events == 600 and "at 2 lines of a loop and what it calls" in loop.what
    )
    one, other = sorted(judge(RULE, passes(waits=False)), key=lambda finding: finding.place.line)
    assert (one.place.line, one.events, other.place.line, other.events) == (60, 480, 78, 120)
    apart = passes(waits=False)  # the line waits as often, but not in between
    for _ in range(120):
        apart.call("cudaStreamSynchronize_v3020", call_ns=4_000, stack="/app/boxes.py:78 kept")
    assert len(judge(RULE, apart)) == 2
    helper_alone = TraceBuilder()
    for _ in range(120):
        helper_alone.launch("max", 2_000, stack="/app/train.py:9 main > /app/boxes.py:60 overlap")
        helper_alone.call("cudaStreamSynchronize_v3020", call_ns=4_000, stack="/app/train.py:9 main")
    (alone,) = judge(RULE, helper_alone)
    assert "one function" not in alone.what and "loop" not in alone.what, "the line launches nothing itself"


@pytest.mark.parametrize("of_one", [True, False])
def test_a_statement_over_several_lines_is_one_line_of_a_loop(judge: Judge, of_one: bool) -> None:
    """Its first line calls the helper, its second one selects by a mask, which waits."""
    builder = TraceBuilder()
    for _ in range(120):
        for _ in range(4):
            stack = "/app/boxes.py:78 kept > /app/boxes.py:60 overlap"
            builder.launch("max", 2_000, stack=stack, call_ns=4_000)
        builder.launch("index", 2_000, stack="/app/boxes.py:79 kept", call_ns=4_000)
        builder.call("cudaStreamSynchronize_v3020", call_ns=4_000, stack="/app/boxes.py:79 kept")
    texts = ["left = overlap(boxes[mask], best)"] * 2 if of_one else ["left = overlap(", "boxes[mask], best)"]
    for line, text in zip((78, 79), texts, strict=True):
        builder.source("/app/boxes.py", line, text)
    events = sorted(finding.events for finding in judge(RULE, builder))
    assert events == ([600] if of_one else [120, 480])


@pytest.mark.parametrize(
    ("steps", "words", "layers", "line"),
    [(4, 128, 2, 24), (1, 128, 2, 14), (4, 64, 2, 14), (4, 128, 1, 14)],
)
def test_the_outer_of_two_loops_is_the_line_to_look_at(
    judge: Judge, steps: int, words: int, layers: int, line: int
) -> None:
    """All layers for each word: words can be read at once. Where words are the steps, they are no loop."""
    builder = TraceBuilder()
    for step in range(steps):
        began_ns = builder.now_ns
        for _ in range(words):
            word = "/app/model.py:3 main > /app/model.py:20 answer > /app/model.py:24 read > "
            word += "/app/model.py:8 Net.forward"
            builder.launch("embed", 2_000, stack=word)
            for _ in range(layers):
                layer = word.replace(":8", ":9") + " > /app/model.py:{} Layer.forward"
                builder.launch("add", 3_000, stack=layer.format(14)).launch(
                    "mul", 2_000, stack=layer.format(15)
                )
        builder.launch("loss", 50_000, stack="/app/model.py:3 main > /app/model.py:30 loss")
        if steps > 1:
            builder.range(f"ProfilerStep#{step}", began_ns, builder.now_ns)
    finding = max(judge(RULE, builder), key=lambda found: found.events)
    assert finding.place.line == line
    assert ("this line calls what launches them 128 times a step" in finding.what) is (line == 24)


def test_a_loop_that_makes_few_of_the_launches_is_not_the_line(judge: Judge) -> None:
    """Half of them and more come from other loops, each of fewer passes."""
    builder = TraceBuilder()
    for step in range(4):
        began_ns = builder.now_ns
        for line, words in ((24, 110), (34, 80), (44, 80)):
            for _ in range(words):
                word = f"/app/model.py:3 main > /app/model.py:{line} read > /app/model.py:8 Net.forward"
                builder.launch("embed", 20_000, stack=word)
                for _ in range(2):
                    builder.launch(
                        "add", 3_000, stack=word.replace(":8", ":9") + " > /app/model.py:14 Layer.f"
                    )
        builder.launch("loss", 50_000, stack="/app/model.py:3 main > /app/model.py:50 loss")
        builder.range(f"ProfilerStep#{step}", began_ns, builder.now_ns)
    (finding,) = judge(RULE, builder)
    assert finding.place.line == 14


def test_an_optimizer_parameter_by_parameter_is_a_cause_of_its_own(judge: Judge) -> None:
    """Also next to other launches of its function; but not one that is fused, which launches little more."""
    step = "/app/train.py:30 train > /site-packages/torch/optim/adam.py:400 _single_tensor_adam"
    builder = launches(120, 3_000, "/app/train.py:29 train")
    for _ in range(150):
        builder.launch("add", 2_000, stack=step)
    found = {finding.cause: finding for finding in judge(RULE, builder)}
    assert {cause: (f.place.line, f.events) for cause, f in found.items()} == {
        "": (29, 120),
        "unfused_optimizer": (30, 150),
    }
    assert "fused=True" in found["unfused_optimizer"].remedy and "fused=True" not in found[""].remedy
    for _ in range(160):
        builder.launch("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 2_000, stack=step)
    assert {f.cause: f.events for f in judge(RULE, builder)} == {"": 120 + 160, "unfused_optimizer": 150}


@pytest.mark.parametrize(
    ("at", "elsewhere"), [(f"{LINE[:-11]}:15 Net.forward", False), ("/app/timer.py:44 after", True)]
)
def test_launches_in_the_function_of_the_waits_are_saved_with_them(
    judge: Judge, at: str, elsewhere: bool
) -> None:
    builder = TraceBuilder()
    for _ in range(200):
        builder.launch("add", 2_000, stack=LINE, call_ns=4_000)
        builder.call("cudaEventSynchronize_v3020", call_ns=4_000, stack=at)
    (found,) = judge(RULE, builder)
    assert found.elsewhere is elsewhere and "the host waits after every 1.0 of them" in found.what


def test_a_loop_for_its_waits_is_one_batch_without_them(judge: Judge) -> None:
    """What cuts the launches of other functions into pieces goes with this loop."""
    builder = TraceBuilder()
    for step in range(2):
        begin_ns = builder.now_ns
        for _ in range(120):
            helper = "/app/train.py:9 main > /app/boxes.py:78 kept > /app/boxes.py:60 overlap"
            for _ in range(4):
                builder.launch("max", 2_000, stack=helper, call_ns=4_000)
            builder.launch("index", 2_000, stack="/app/train.py:9 main > /app/boxes.py:78 kept")
            builder.call("cudaStreamSynchronize_v3020", stack="/app/train.py:9 main > /app/boxes.py:78 kept")
        builder.range(f"training_step {step}", begin_ns, builder.now_ns)
    (loop,) = judge(RULE, builder)
    assert "a loop and what it calls" in loop.what and loop.saving is not None
    assert set(loop.saving.launches_left.round(6).tolist()) == {round(0.3 / 480, 6), round(0.3 / 120, 6)}
