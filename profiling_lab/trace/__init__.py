# SPDX-License-Identifier: Apache-2.0
"""Read traces: columns, Python stacks, and the attribution of GPU time to lines."""

from __future__ import annotations

from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

__all__ = ["Frame", "Trace"]
