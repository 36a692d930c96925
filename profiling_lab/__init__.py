# SPDX-License-Identifier: Apache-2.0
"""Find the Python line that costs GPU time, forward and backward, and the reason.

Importing this package loads neither torch nor a compiled module. Each is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiling_lab.api import Table, TraceTables, collectives, diff, diff_memory, ranks
    from profiling_lab.api import open as open
    from profiling_lab.integrations.torch_profiler import profile, trace_handler
    from profiling_lab.recording import Schedule, record, step
    from profiling_lab.trace import Trace

# Without `open`: `from profiling_lab import *` must not replace Python's own.
__all__ = [
    "Schedule",
    "Table",
    "Trace",
    "TraceTables",
    "__version__",
    "collectives",
    "diff",
    "diff_memory",
    "profile",
    "ranks",
    "record",
    "step",
    "trace_handler",
]

_LAZY = {
    "Schedule": "profiling_lab.recording",
    "Table": "profiling_lab.api",
    "Trace": "profiling_lab.trace",
    "TraceTables": "profiling_lab.api",
    "collectives": "profiling_lab.api",
    "diff": "profiling_lab.api",
    "diff_memory": "profiling_lab.api",
    "open": "profiling_lab.api",
    "profile": "profiling_lab.integrations.torch_profiler",
    "ranks": "profiling_lab.api",
    "record": "profiling_lab.recording",
    "step": "profiling_lab.recording",
    "trace_handler": "profiling_lab.integrations.torch_profiler",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("profiling-lab")
        except PackageNotFoundError:  # a source tree on PYTHONPATH
            return "unknown (not installed)"
    raise AttributeError(f"module 'profiling_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    helpers = {"Any", "TYPE_CHECKING", "annotations"}
    return sorted({*globals(), *_LAZY, "__version__"} - helpers)
