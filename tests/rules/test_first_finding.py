# SPDX-License-Identifier: Apache-2.0
"""The first finding of whole programs with one defect: a wait after each layer, a count read per expert, a
product with a one-hot matrix. The same defect costs nothing where the host is the slower one anyway: then
the small kernels come first, and the wait claims no more than it lasted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.rules import RULES, Finding, run
from profiling_lab.trace import Trace

STEPS, LAYERS, US = 12, 16, 1_000
FILE = "/app/train.py"


def until_idle(builder: TraceBuilder, call: str, stack: str) -> None:
    """The host waits until the GPU has done everything."""
    waited_ns = max(max(builder.gpu_free_ns.values()) - builder.now_ns, 0) + 2 * US
    builder.call(call, call_ns=waited_ns, stack=stack).gap(waited_ns)


def layer(builder: TraceBuilder, kernels: int, gpu_ns: int) -> None:
    for number in range(kernels):
        builder.launch(f"kernel_{number}", gpu_ns, stack=f"{FILE}:20 Layer.forward")


def timed_layers(kernels: int, gpu_ns: int, stack: str, call: str) -> TraceBuilder:
    """A layer, and a wait: the host cannot prepare the next layer meanwhile."""
    builder = TraceBuilder()
    for step in range(STEPS):
        begin = builder.now_ns
        for _ in range(LAYERS):
            layer(builder, kernels, gpu_ns)
            builder.gap(15 * US)
            until_idle(builder, call, stack)
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def experts(kernels: int, gpu_ns: int) -> TraceBuilder:
    """The rows of each expert are counted on the host before it can be launched."""
    builder = TraceBuilder()
    for step in range(STEPS):
        begin = builder.now_ns
        for _ in range(LAYERS):
            builder.launch("nonzero_kernel", 3 * US, stack=f"{FILE}:31 Experts.forward")
            builder.copy("DtoH", 1 * US, size_bytes=8, stack=f"{FILE}:31 Experts.forward")
            until_idle(builder, "cudaStreamSynchronize_v3020", f"{FILE}:31 Experts.forward")
            builder.gap(15 * US)
            layer(builder, kernels, gpu_ns)
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def one_hot_product() -> TraceBuilder:
    """A table is looked up by a product with a matrix of zeros and ones."""
    builder = TraceBuilder()
    for step in range(STEPS):
        begin = builder.now_ns
        builder.launch("vectorized_elementwise_kernel", 100 * US, stack=f"{FILE}:60 Model.forward")
        builder.launch("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NNT", 700 * US, stack=f"{FILE}:61 Model.forward")
        layer(builder, 4, 20 * US)
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def deep_copy(pause_ns: int) -> TraceBuilder:
    """Small layers whose launches the GPU waits for, and a copy of all weights, one after the other."""
    builder, call = TraceBuilder(), "/site-packages/torch/nn/modules/module.py:1790 Module._call_impl"
    for step in range(STEPS):
        begin = builder.now_ns
        for _ in range(LAYERS):
            for number in range(12):
                builder.launch(f"kernel_{number}", 6 * US, stack=f"{call} > {FILE}:20 Layer.forward").gap(
                    13 * US
                )
        for _ in range(30):
            builder.gap(pause_ns)
            builder.copy("DtoD", 2 * US, stack=f"{FILE}:70 main > /app/old.py:54 keep")
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def findings(builder: TraceBuilder, folder: Path) -> list[Finding]:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return list(run(trace, RULES).findings)


SYNC_IN_MODEL, SYNC_IN_HELPER = f"{FILE}:40 Timed.forward", f"{FILE}:50 main > /app/clock.py:9 stop"
DEVICE, EVENT = "cudaDeviceSynchronize_v3020", "cudaEventSynchronize_v3020"


@pytest.mark.parametrize(
    ("program", "rule", "line"),
    [
        (lambda: timed_layers(2, 20 * US, SYNC_IN_MODEL, DEVICE), "sync_calls", f"{FILE}:40"),
        (lambda: timed_layers(2, 20 * US, SYNC_IN_HELPER, EVENT), "sync_calls", "/app/clock.py:9"),
        (lambda: experts(2, 20 * US), "implicit_sync", f"{FILE}:31"),
        (one_hot_product, "dominant_line", f"{FILE}:61"),
    ],
    ids=["device-wait", "event-wait", "count-per-expert", "one-hot-product"],
)
def test_the_defect_comes_first_at_its_line(
    tmp_path: Path, program: Callable[[], TraceBuilder], rule: str, line: str
) -> None:
    first, *_ = findings(program(), tmp_path)
    assert first.place is not None
    assert (first.rule, f"{first.place.file}:{first.place.line}") == (rule, line), first.what


@pytest.mark.parametrize(
    ("program", "rule", "line"),
    [
        (lambda: timed_layers(12, 2 * US, SYNC_IN_MODEL, DEVICE), "sync_calls", 40),
        (lambda: experts(12, 2 * US), "implicit_sync", 31),
    ],
    ids=["device-wait", "count-per-expert"],
)
def test_where_the_host_is_slower_the_launches_come_first(
    tmp_path: Path, program: Callable[[], TraceBuilder], rule: str, line: int
) -> None:
    """Without the wait the GPU would still wait for the launches: the wait is named, with what it costs."""
    first, *others = findings(program(), tmp_path)
    assert first.rule == "tiny_kernels" and first.place is not None and first.place.line == 20
    (wait,) = (finding for finding in others if finding.rule == rule)
    assert wait.place is not None and wait.place.line == line
    assert 0 < wait.cost_ns < first.cost_ns / 5


@pytest.mark.parametrize(("pause_us", "lines"), [(60, [54, 20]), (45, [20, 54])])
def test_copies_one_by_one_come_before_launches_that_may_cost_as_much(
    tmp_path: Path, pause_us: int, lines: list[int]
) -> None:
    """The launches cost 3.5 ms per step, of which fewer of them save 2.4: within a factor of 1.5 of 1.9."""
    found = findings(deep_copy(pause_us * US), tmp_path)[:2]
    assert [finding.place.line for finding in found if finding.place] == lines, [f.what for f in found]
    gains_ns = {finding.cause: finding.gain_per_step_ns for finding in found}
    assert gains_ns["tiny_kernels"] == pytest.approx(0.7 * LAYERS * 12 * 18 * US, rel=0.02)
    assert gains_ns["host_work"] == pytest.approx(30 * (pause_us + 3) * US, rel=0.02)
