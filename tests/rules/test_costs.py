# SPDX-License-Identifier: Apache-2.0
"""No finding costs more than the time that it speaks of, whatever ran at the same time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from builders import TraceBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.busy import Busy
from profiling_lab.rules import RULES, run
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace

LINES = tuple(f"/app/train.py:{line} step" for line in (3, 5, 8))
KERNELS = (
    "k", "gemm", "volta_sgemm_64x64_nt", "elementwise_kernel<copy_kernel>", "ncclDevKernel_AllReduce",
    "cudnn_convolve", "flash_fwd_kernel", "indexing_backward_kernel", "CUDAFunctor_add<double>",
    "multi_bluestein_fft", "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x64_tn_align1",
)  # fmt: skip
WAITS = ("cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020", "cudaMalloc_v3020", "cudaFree_v3020")
COPY_APIS = ("cudaMemcpyAsync_v3020", "cudaMemcpy_v3020")
lengths = st.sampled_from((500, 4_000, 80_000, 700_000, 9_000_000))
lines = st.sampled_from(LINES)
where = st.tuples(st.integers(0, 1), st.integers(7, 9), st.integers(1, 2), st.integers(100, 101))
kernels = st.tuples(st.just("kernel"), st.sampled_from(KERNELS), lengths, lengths, lines, where)
graphs = st.tuples(st.just("graph"), st.integers(2, 40), lengths, lengths, lines, where)
copies = st.tuples(
    st.just("copy"), st.sampled_from(("HtoD", "DtoH", "DtoD")), lengths, lengths, lines, where,
    st.sampled_from(COPY_APIS), st.integers(0, 2), st.sampled_from((8, 1 << 20)),
)  # fmt: skip
sets = st.tuples(st.just("set"), st.integers(0, 2), lengths, lengths, lines, where)
waits = st.tuples(st.just("wait"), st.sampled_from(WAITS), lengths, lengths, lines, where)
events = st.lists(st.one_of(kernels, graphs, copies, sets, waits), min_size=1, max_size=12)


def build(loop: list, repeats: int, gap_ns: int, with_steps: bool) -> TraceBuilder:
    """The same events again and again, as a training loop has them."""
    builder, correlation = TraceBuilder(), 10_000
    for step in range(repeats):
        began_ns = builder.now_ns
        for kind, what, gpu_ns, call_ns, line, (device, stream, thread, pid), *more in loop:
            how = {"stack": line, "thread": thread, "pid": pid}
            if kind == "wait":
                builder.call(what, call_ns=call_ns, **how)
                builder.gap(call_ns)
                continue
            how |= {"device": device, "stream": stream}
            if kind == "kernel":
                builder.launch(what, gpu_ns, call_ns=call_ns, **how)
            elif kind == "set":
                builder.memset(gpu_ns, memory=what, call_ns=call_ns, api="cudaMemset_v3020", **how)
            elif kind == "copy":
                api, source, size_bytes = more
                builder.copy(
                    what, gpu_ns, size_bytes=size_bytes, source=source, api=api, call_ns=call_ns, **how
                )
            else:
                correlation += 1
                builder.launch(
                    "k", gpu_ns, correlation=correlation, api="cudaGraphLaunch_v10000", call_ns=call_ns, **how
                )
                for _ in range(what):
                    # The kernels of a graph have one call between them.
                    builder.launch("k", gpu_ns, correlation=correlation, recorded=False, **how)
        builder.gap(gap_ns)
        if with_steps:
            builder.range(f"ProfilerStep#{step}", began_ns, builder.now_ns)
    return builder


def longest_step(view: View) -> int:
    """Work of a step runs after it was launched: until the next one begins, or the recording ends."""
    steps = view.steps
    if steps is None:
        return 0
    longest = 0
    for process in set(steps.process.tolist()):
        mine = steps.process == process
        end_ns = max(int(view.operations.end_ns.max()), int(steps.end_ns[mine].max()))
        longest = max(longest, int(np.diff([*steps.start_ns[mine].tolist(), end_ns]).max()))
    return longest


GPU_TIME = {
    "dominant_kernel", "dominant_line", "tensor_cores", "slow_convolution", "memory_bound", "layout_copies",
    "dtype_casts", "double_precision", "recompute", "kernel_variability", "slow_scatter",
    "slow_fourier", "few_blocks",
}  # fmt: skip
IDLE = {"low_utilisation", "gpu_gaps", "gap_cause", "sync_calls", "implicit_sync", "short_runs", "dataloader"}
IDLE |= {"blocking_launches"}


def of_process(number: int, what: str, name: str, ns: int) -> tuple:
    return what, name, ns, 500 if what == "kernel" else 700_000, "/app/train.py:3 step", (0, 7, 1, number)


TWO_PROCESSES = [
    *[of_process(101, "kernel", "k", 500)] * 8,
    of_process(100, "wait", "cudaStreamSynchronize_v3020", 500),
    of_process(100, "kernel", "k", 500),
    of_process(101, "wait", "cudaStreamSynchronize_v3020", 500),
    of_process(101, "kernel", "k", 700_000),
]
"""of one GPU: each idles while the other runs"""


@settings(max_examples=150)
@example(TWO_PROCESSES, 3, 0, False)
@given(events, st.sampled_from((1, 3, 40)), st.sampled_from((0, 50_000, 4_000_000)), st.booleans())
def test_no_cost_exceeds_what_it_is_charged_to(
    loop: list, repeats: int, gap_ns: int, with_steps: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = build(loop, repeats, gap_ns, with_steps).write(Path(folder) / "run.sqlite")
        with Trace.open(path) as trace:
            if not len(trace.operations):
                return
            view, checked = View(trace), run(trace, RULES, whole=True)
            operations = trace.operations
            span_ns = int(operations.end_ns.max() - operations.start_ns.min())
            # A process' GPUs idle together, a device of it alone.
            device_idle_ns = [
                Busy.of(operations.start_ns[rows], operations.end_ns[rows]).idle_ns
                for _, _, rows in view.devices
            ]
            idle_ns = max([busy.idle_ns for busy in view.processes.values()] + device_idle_ns)
            time_ns = view.time_by_line()
            longest_step_ns = longest_step(view)
            lines_ns = {str(view.place(i)): int(ns) for i, ns in enumerate(time_ns)}
    for finding in checked.findings:
        assert 0 <= finding.cost_ns <= span_ns, finding
        if finding.rule in IDLE:
            assert finding.cost_ns <= idle_ns, finding
        if finding.rule in GPU_TIME:
            assert finding.cost_ns <= int(operations.duration_ns.sum()), finding
        if finding.rule == "dominant_line":
            assert finding.cost_ns <= lines_ns[str(finding.place)], finding
        if finding.per_step_ns is not None:
            assert finding.per_step_ns <= longest_step_ns, finding
        assert 0 <= (finding.gain_ns or 0) <= span_ns, finding
        for per_step_ns in (finding.gain_per_step_ns, finding.at_most_per_step_ns):
            assert 0 <= (per_step_ns or 0) <= longest_step_ns, finding
        assert (finding.gain_per_step_ns or 0) <= (finding.at_most_per_step_ns or 0), finding
