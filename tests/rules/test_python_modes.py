# SPDX-License-Identifier: Apache-2.0
"""Operators that go through the Python of a mode"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.python_modes import RULE

LINE, TORCH = "/app/model.py:21 Net.forward", "/v/site-packages/torch"
MODE = f"{TORCH}/utils/flop_counter.py:920 _FlopCounterMode.__torch_dispatch__"
PAUSE_NS, LAUNCHES = 100_000, 10


def launches(through: str, pause_ns: int = PAUSE_NS) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(LAUNCHES):
        builder.launch("gemm", 5_000, stack=f"{LINE} > {through}" if through else LINE).gap(pause_ns)
    return builder


def test_fires_on_idle_time_between_launches_through_a_mode(judge: Judge) -> None:
    (finding,) = judge(RULE, launches(MODE))
    assert finding.cause == "host_work" and "_FlopCounterMode.__torch_dispatch__" in finding.what
    other = launches(MODE).gap(1_000_000).launch("gemm", 5_000, stack=LINE)
    assert judge(RULE, other)[0].cost_ns == finding.cost_ns, "what comes before a launch outside of the mode"
    idle_ns = (LAUNCHES - 1) * PAUSE_NS
    assert 0.9 * idle_ns < finding.cost_ns < idle_ns, "without what the GPU did meanwhile"
    assert finding.place is not None and finding.place.line == 21


@pytest.mark.parametrize(
    ("through", "findings"),
    [
        ("/app/checks.py:5 NoNan.__torch_dispatch__", 1),
        (f"{TORCH}/utils/some.py:5 SomeMode.__torch_function__", 1),
        (f"{TORCH}/distributed/tensor/_api.py:5 DTensor.__torch_dispatch__", 0),
        ("/v/site-packages/torchao/t.py:5 Quantized.__torch_dispatch__", 0),
        (f"{TORCH}/nn/modules/linear.py:5 Linear.forward", 0),
    ],
)
def test_silent_about_tensors_of_libraries(judge: Judge, through: str, findings: int) -> None:
    assert len(judge(RULE, launches(through))) == findings


def test_silent_without_a_mode_and_about_other_host_code(judge: Judge) -> None:
    assert judge(RULE, launches("")) == []
    assert judge(RULE, launches(MODE, pause_ns=0)) == [], "the GPU hardly waits for the host"
    assert judge(RULE, launches(MODE, pause_ns=3_000_000)) == [], "so long is other work than the mode's"


def test_abstains_without_stacks(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch("k", 1000)), Abstain)
