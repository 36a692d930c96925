# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges from the nsys schema."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import Ranges, dense
from profiling_lab.trace.nsys.nvtx import NvtxRows
from profiling_lab.trace.process_ids import Registry, process_part

# The autograd engine's range around the evaluation of a node (Evaluates.ENGINE).
_EVALUATE = "autograd::engine::evaluate_function: "


def read_ranges(nvtx: NvtxRows, processes: Registry, threads: Registry) -> Ranges:
    rows = nvtx.ranges
    tid, start_ns = rows["globalTid"], rows["start"]
    name, used = dense(rows["text"])
    names = [nvtx.texts[i] for i in used.tolist()]
    evaluates = np.array([name.startswith(_EVALUATE) for name in names] or [False], dtype=np.uint8)
    return Ranges(
        start_ns=start_ns,
        end_ns=np.maximum(start_ns, rows["end"]),
        process=processes.number(process_part(tid)),
        thread=threads.number(tid),
        name=name,
        names=tuple(names),
        sequence=rows["sequence"],
        evaluates=evaluates[name],
        domain=rows["domain"],
        domains=nvtx.domains,
        stack=np.zeros(len(start_ns), dtype=np.int32),
    )
