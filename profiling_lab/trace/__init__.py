# SPDX-License-Identifier: Apache-2.0
"""Reading traces: columns, Python stacks, and which line answers for which GPU time."""

from __future__ import annotations

from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

__all__ = ["Frame", "Trace"]
