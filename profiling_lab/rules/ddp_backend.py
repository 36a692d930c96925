# SPDX-License-Identifier: Apache-2.0
"""Does DistributedDataParallel use a backend other than NCCL? Other backends copy gradients through the host.

DDP is recognised by its file in the Python stacks or by its operator. If it runs and there is no
communication kernel, the backend is gloo or MPI, which copies every gradient to the host and back. The rule
does not fire if the trace names NCCL as the backend, or if the job has a single process. The cost is the
GPU time of the copies. The time on the host and the network comes on top; a GPU trace does not contain it.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View
from profiling_lab.trace.operation_classes import OperationClass

CALLS = Threshold(
    "calls", "CUDA calls inside DDP", 1, "at least", "TensorBoard's profiler plugin: DDP in use"
)
FILE = "torch/nn/parallel/distributed.py"
REMEDY = "torch.distributed.init_process_group('nccl') or 'cpu:gloo,cuda:nccl'"


def check(view: View) -> RuleResult:
    if (view.classes == OperationClass.COMMUNICATION).any():
        return ()
    backend, size = str(view.trace.job_facts.get("backend", "")), view.trace.job_facts.get("world_size")
    on_the_gpu = re.search(r"nccl|ucc|xccl|hccl", backend) is not None
    if on_the_gpu or str(size) == "1" or any(name.startswith("nccl:") for name in view.trace.ranges.names):
        return ()
    if not view.knows_python:
        return Abstain("the trace does not say which code launched its kernels", STACKS)
    inside = view.calls_inside(FILE, r"(^|[. ])DistributedDataParallel\.forward")
    calls = np.flatnonzero(inside)
    if len(calls) < max(view[CALLS], 1):
        return ()
    copies = np.flatnonzero(view.named("memcpy DtoH", "memcpy HtoD"))
    copies_ns = int(view.operations.duration_ns[copies].sum())
    took_ns = view.calls.end_ns[calls] - view.calls.start_ns[calls]
    return [
        view.finding(
            f"DistributedDataParallel runs{f' with {backend}' if backend else ''}, and there is no "
            "communication kernel: its gradients go through the host; "
            f"copies to the host and back take {ms(copies_ns)}",
            cost_ns=gpu_time(view, copies),
            cost_of="copies between host and GPU",
            place=view.place(int(view.call_place[calls[0]])),
            table="calls",
            rows=calls,
            weight=took_ns,
            remedy=REMEDY,
            confidence="medium",
        )
    ]


RULE = Rule("ddp_backend", "Does DDP work without NCCL?", (CALLS,), check, __doc__ or "")
