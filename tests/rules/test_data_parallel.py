# SPDX-License-Identifier: Apache-2.0
"""torch.nn.DataParallel over several GPUs"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.data_parallel import RULE

FILE = "/site-packages/torch/nn/parallel/data_parallel.py"


def parallel(stack: str, devices: int = 2) -> TraceBuilder:
    builder = TraceBuilder()
    for device in range(devices):
        builder.copy("DtoD", 2_000, device=device, stack=stack)
        builder.launch("gemm", 10_000, device=device, stack=stack)
    return builder


def test_fires_for_its_file_in_the_stacks(judge: Judge) -> None:
    stack = f"/app/train.py:9 main > {FILE}:191 DataParallel.forward"
    (finding,) = judge(RULE, parallel(stack).launch("gemm", 10_000, stack="/app/train.py:10 main"))
    assert finding.cost_ns == 4_000 and finding.events == 4 and finding.place.line == 9
    assert "drives 2 GPUs; 0.004 ms of its 0.024 ms" in finding.what


def test_fires_for_its_operator(judge: Judge) -> None:
    builder = parallel("")
    builder.range("aten::mm", 0, 1).range("DataParallel.forward", 0, builder.now_ns)
    (finding,) = judge(RULE, builder)
    assert finding.events == 4 and finding.place is None


def test_silent_on_one_gpu_and_without_it(judge: Judge) -> None:
    stack = f"/app/train.py:9 main > {FILE}:191 DataParallel.forward"
    assert judge(RULE, parallel(stack, devices=1)) == ()
    assert judge(RULE, parallel("/app/train.py:9 main")) == []


def test_abstains_where_nothing_tells_who_launched(judge: Judge) -> None:
    verdict = judge(RULE, parallel(""))
    assert isinstance(verdict, Abstain) and "profiling-lab record" in verdict.to_record
