# SPDX-License-Identifier: Apache-2.0
"""The rules of `check`: one rule per file. A finding has evidence, a cost, a source line and a remedy.

RULES look at the trace alone, COUNTER_RULES (folder counters) at a report of Nsight Compute with it.

To add a rule: `<name>.py` with a RULE of that name, one line in RULES, and `tests/rules/test_<name>.py` with
a trace where it fires, one where it stays silent and one where it abstains. A file of your own for
`profiling-lab check --rules-from` looks the same and ends with the tuple RULES:

    from profiling_lab.rules import Rule

    def check(view):                                       # profiling_lab.rules.view.View
        rows = view.copies.nonzero()[0]                    # rows of view.operations
        if not len(rows):
            return ()                                      # looked, and found nothing
        took_ns = view.operations.duration_ns[rows]
        return [view.finding("copies", cost_ns=int(took_ns.sum()), cost_of="copy time",
                             place=view.hottest_line(rows, took_ns), rows=rows, weight=took_ns,
                             remedy="copy less")]

    RULES = (Rule("my_copies", "Are there copies?", (), check),)
"""

from __future__ import annotations

from profiling_lab.rules import (
    allocation_churn,
    blocked_copy,
    blocking_launches,
    bound,
    communication,
    data_parallel,
    dataloader,
    ddp_backend,
    dominant_kernel,
    dominant_line,
    double_precision,
    dtype_casts,
    exposed_allreduce,
    few_blocks,
    foreach_optimizer,
    frozen_network,
    gap_cause,
    gpu_gaps,
    graph_capture,
    growing_work,
    implicit_sync,
    joined_products,
    kernel_variability,
    layout_copies,
    low_utilisation,
    masked_attention,
    memory_bound,
    memory_fragmented,
    memory_full,
    memory_gradients,
    memory_growth,
    memory_workspace,
    mirrored_spectrum,
    one_hot,
    pageable_copy,
    picked_late,
    profiler_overhead,
    python_modes,
    queue_full,
    recompute,
    recomputed_prefix,
    repeated_backward,
    serial_copy,
    short_runs,
    slow_convolution,
    slow_fourier,
    slow_scatter,
    slow_steps,
    sorted_whole,
    stream_chain,
    summed_gradients,
    sync_calls,
    sync_copy,
    sync_memset,
    tensor_cores,
    tiny_kernels,
    unfolded_norms,
    unfused_attention,
    unused_gradients,
    unused_layers,
    unused_products,
    unused_results,
    zeroed_gradients,
)
from profiling_lab.rules.counters import COUNTER_RULES
from profiling_lab.rules.finding import Abstain, Event, Finding, Threshold
from profiling_lab.rules.load import load_rules
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.run import Checked, run, select
from profiling_lab.rules.settings import parse_fail_on, parse_settings

RULES: tuple[Rule, ...] = (
    bound.RULE,
    low_utilisation.RULE,
    blocking_launches.RULE,
    gpu_gaps.RULE,
    gap_cause.RULE,
    python_modes.RULE,
    graph_capture.RULE,
    slow_steps.RULE,
    dataloader.RULE,
    sync_calls.RULE,
    implicit_sync.RULE,
    pageable_copy.RULE,
    blocked_copy.RULE,
    sync_copy.RULE,
    sync_memset.RULE,
    serial_copy.RULE,
    dominant_kernel.RULE,
    dominant_line.RULE,
    tensor_cores.RULE,
    double_precision.RULE,
    slow_convolution.RULE,
    slow_fourier.RULE,
    mirrored_spectrum.RULE,
    slow_scatter.RULE,
    sorted_whole.RULE,
    one_hot.RULE,
    unused_products.RULE,
    picked_late.RULE,
    few_blocks.RULE,
    growing_work.RULE,
    foreach_optimizer.RULE,
    unfolded_norms.RULE,
    memory_bound.RULE,
    unfused_attention.RULE,
    masked_attention.RULE,
    joined_products.RULE,
    layout_copies.RULE,
    dtype_casts.RULE,
    tiny_kernels.RULE,
    short_runs.RULE,
    kernel_variability.RULE,
    recompute.RULE,
    recomputed_prefix.RULE,
    repeated_backward.RULE,
    summed_gradients.RULE,
    unused_gradients.RULE,
    zeroed_gradients.RULE,
    unused_results.RULE,
    unused_layers.RULE,
    frozen_network.RULE,
    stream_chain.RULE,
    queue_full.RULE,
    communication.RULE,
    exposed_allreduce.RULE,
    data_parallel.RULE,
    ddp_backend.RULE,
    allocation_churn.RULE,
    memory_full.RULE,
    memory_growth.RULE,
    memory_fragmented.RULE,
    memory_gradients.RULE,
    memory_workspace.RULE,
    profiler_overhead.RULE,
)

__all__ = [
    "COUNTER_RULES",
    "RULES",
    "Abstain",
    "Checked",
    "Event",
    "Finding",
    "Rule",
    "Threshold",
    "load_rules",
    "parse_fail_on",
    "parse_settings",
    "run",
    "select",
]
