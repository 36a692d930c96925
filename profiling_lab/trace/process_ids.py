# SPDX-License-Identifier: Apache-2.0
"""Global thread ids: hardware, virtual machine, process and thread packed into one 64-bit number.

The number is unsigned but stored as a signed integer, so it may be negative; masks see the bits,
comparisons would not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from profiling_lab.trace.columns import I32, I64, dense

_TID_BITS = 24
_PROCESS_MASK = np.int64(~((1 << _TID_BITS) - 1))


def pid_of(global_id: int) -> int:
    return (global_id >> _TID_BITS) & 0xFFFFFF


def tid_of(global_id: int) -> int:
    return global_id & 0xFFFFFF


@dataclass(slots=True)
class Registry:
    """Dense numbers for global ids, given in order of first appearance over all tables."""

    numbers: dict[int, int] = field(default_factory=dict)

    def number(self, ids: I64) -> I32:
        local, distinct = dense(ids)
        mapped = [self.numbers.setdefault(int(value), len(self.numbers)) for value in distinct]
        return np.asarray(mapped, dtype=np.int32)[local] if mapped else local

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.numbers)


def process_part(global_tids: I64) -> I64:
    return global_tids & _PROCESS_MASK
