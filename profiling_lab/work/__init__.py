# SPDX-License-Identifier: Apache-2.0
"""The work of a program: floating-point operations and bytes of each operator call, from its tensors.

with WorkCounter() as counter:
    train_step()
flops = sum(call.work.flops or 0 for call in counter.calls)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiling_lab.work.model import Work, work_of

if TYPE_CHECKING:
    from profiling_lab.work.counter import OperatorCall, WorkCounter

__all__ = ["OperatorCall", "Work", "WorkCounter", "work_of"]


def __getattr__(name: str) -> Any:
    if name in ("OperatorCall", "WorkCounter"):  # it needs torch
        from profiling_lab.work import counter

        return getattr(counter, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
