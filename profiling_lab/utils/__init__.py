# SPDX-License-Identifier: Apache-2.0
"""Small utilities for a program: time a function, watch the GPU, name ranges, read the allocator.

They work with and without a GPU: what cannot be known is None, never 0. The parts that go deeper are
`profiling_lab.record` and the commands; the timing is that of profiling_lab.measure.
"""

from __future__ import annotations

from profiling_lab.utils import nvtx
from profiling_lab.utils.benchmark import benchmark_fn, quick_benchmark
from profiling_lab.utils.decorator import auto_profile
from profiling_lab.utils.gpu_monitor import GPUMonitor
from profiling_lab.utils.intensity import Intensity, estimate_arithmetic_intensity
from profiling_lab.utils.memory import MemoryUse, memory_summary, profile_memory
from profiling_lab.utils.result import ProfilingResult
from profiling_lab.utils.session import full_profiling_session
from profiling_lab.utils.training import TrainingProfiler, profile_training

__all__ = [
    "GPUMonitor",
    "Intensity",
    "MemoryUse",
    "ProfilingResult",
    "TrainingProfiler",
    "auto_profile",
    "benchmark_fn",
    "estimate_arithmetic_intensity",
    "full_profiling_session",
    "memory_summary",
    "nvtx",
    "profile_memory",
    "profile_training",
    "quick_benchmark",
]
