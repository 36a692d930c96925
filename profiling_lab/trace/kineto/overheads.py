# SPDX-License-Identifier: Apache-2.0
"""Overheads, from torch.profiler's events of the category overhead."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import I32, OverheadKind, Overheads
from profiling_lab.trace.kineto.events import Table

_NAMES = {
    "buffer flush": OverheadKind.BUFFER_FLUSH,
    "activity buffer request": OverheadKind.BUFFER_FLUSH,
    "instrumentation": OverheadKind.INSTRUMENTATION,
    "resource": OverheadKind.RESOURCE,
    "driver compiler": OverheadKind.JIT_COMPILER,
    "runtime triggered module loading": OverheadKind.MODULE_LOADING,
    "lazy function loading": OverheadKind.LAZY_FUNCTION_LOADING,
    "command buffer full": OverheadKind.COMMAND_BUFFER_FULL,
}


def chrome_overheads(table: Table, texts: tuple[str, ...], process: I32, thread: I32) -> Overheads:
    used, number = np.unique(table["name"], return_inverse=True)
    kinds = np.array(
        [_NAMES.get(texts[i].lower(), OverheadKind.UNKNOWN) for i in used.tolist()], dtype=np.uint8
    )
    return Overheads(table["start_ns"], table["end_ns"], process, thread, kinds[number])
