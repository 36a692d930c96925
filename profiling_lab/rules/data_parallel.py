# SPDX-License-Identifier: Apache-2.0
"""Does one process drive several GPUs through torch.nn.DataParallel? DistributedDataParallel is faster.

DataParallel copies the model to every GPU in each step, from one Python process whose threads share the
GIL, and gathers all outputs on the first GPU. It is recognised by its file in the Python stacks or by its
operator. The cost is the GPU time of the peer-to-peer copies that its calls make.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View

DEVICES = Threshold("devices", "GPUs of one process", 2, "at least", "TensorBoard's profiler plugin")
FILE = "torch/nn/parallel/data_parallel.py"
MOVES = ("memcpy PtoP", "memcpy DtoD", "memcpy DtoH", "memcpy HtoD")
REMEDY = "use DistributedDataParallel with one process per GPU: torchrun --nproc-per-node"


def check(view: View) -> RuleResult:
    devices = Counter(process for process, _, _ in view.devices)
    several = [process for process, number in devices.items() if number >= view[DEVICES]]
    if not several:
        return ()
    if not view.knows_python:
        return Abstain(
            "one process drives several GPUs, and the trace has no stacks that show which code does", STACKS
        )
    inside = np.append(view.calls_inside(FILE, r"(^|[. ])DataParallel\.forward"), False)
    launched = inside[view.attribution.call]
    findings = []
    for process in several:
        rows = np.flatnonzero(launched & (view.operations.process == process))
        if not len(rows):
            continue
        duration = view.operations.duration_ns[rows]
        moves = np.where(view.named(*MOVES)[rows], duration, 0)
        findings.append(
            view.finding(
                f"torch.nn.DataParallel drives {devices[process]} GPUs{view.of_process(process)}; "
                f"{ms(int(moves.sum()))} of its {ms(int(duration.sum()))} GPU time are copies",
                cost_ns=view.busy(rows[moves > 0]).total_ns,
                cost_of="GPU time of copies inside DataParallel",
                place=view.hottest_line(rows, duration),
                rows=rows,
                weight=duration,
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule("data_parallel", "Does DataParallel drive several GPUs?", (DEVICES,), check, __doc__ or "")
