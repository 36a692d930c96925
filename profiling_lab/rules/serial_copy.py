# SPDX-License-Identifier: Apache-2.0
"""Do copies to the GPU run on the compute stream, so that copies and compute cannot overlap?

non_blocking=True only frees the host: on one stream the GPU still copies first and computes afterwards,
although its copy engine could work concurrently. The rule counts copies from the host on a stream that also
runs kernels, for the time in which nothing else runs on the GPU. Pageable memory must be pinned first: see
`pageable_copy`.

The cost is the time that could be hidden, at most the time of the GPU's other work. If copies take longer
than that, the program is copy-bound (`bound`), and prefetching saves little.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import hidden
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import unique
from profiling_lab.trace.operation_classes import OperationClass

SHARE = Threshold("share", "copies that could be hidden", 0.01, "of the recording, from", "ours")
REMEDY = (
    "prefetch the next batch on a side stream: with torch.cuda.stream(side): batch.to('cuda', "
    "non_blocking=True), then wait_stream and record_stream"
)
OF_TOO_MANY = (
    "copy less (keep data on the GPU, smaller dtypes): there is too little other work to hide the copies, "
    "even on a side stream"
)


def check(view: View) -> RuleResult:
    copies = view.classes == OperationClass.HOST_TO_DEVICE
    if not copies.any():
        return ()
    if not view.kernels.any():
        return Abstain("the trace has copies, but no kernels that they could overlap with", "kernels too")
    operations, findings = view.operations, []
    for process, device, rows in view.devices:
        computing = rows[view.kernels[rows]]
        counts = copies[rows] & np.isin(operations.stream[rows], unique(operations.stream[computing]))
        mine = rows[counts]
        if not len(mine) or not len(computing):
            continue
        # Memsets and copies in other directions use other engines, so they can overlap as well as kernels.
        together, others = view.busy(mine), view.busy(rows[~counts])
        alone_ns = together.total_ns - int(others.busy_within(together.start_ns, together.end_ns).sum())
        exposed = operations.duration_ns[mine]
        exposed = exposed - others.busy_within(operations.start_ns[mine], operations.end_ns[mine])
        # Concurrent copies share their time.
        exposed = (exposed * min(1.0, alone_ns / max(int(exposed.sum()), 1))).astype(np.int64)
        other_ns = others.total_ns - int(together.busy_within(others.start_ns, others.end_ns).sum())
        could = min(1.0, other_ns / max(alone_ns, 1))
        for number, part in grouped(np.arange(len(mine)), view.operation_place[mine]):
            exposed_ns = int(exposed[part].sum())
            cost_ns = int(could * exposed_ns)
            if cost_ns < view[SHARE] * view.span_ns:
                continue
            findings.append(
                view.finding(
                    f"{len(part):,} copies to device {device}{view.of_process(process)} run on a compute "
                    f"stream, and for {ms(exposed_ns)}, {percent(exposed_ns / view.span_ns)} of the "
                    f"recording, nothing else runs"
                    f"{f'; other work could hide {ms(cost_ns)}' if could < 1 else ''}",
                    cost_ns=cost_ns,
                    cost_of="copies that could overlap with other work",
                    place=view.place(number),
                    rows=mine[part],
                    weight=exposed[part],
                    remedy=REMEDY if could == 1 else OF_TOO_MANY,
                    saving=hidden(mine[part]),
                )
            )
    return findings


RULE = Rule(
    "serial_copy",
    "Do copies run on the compute stream?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
