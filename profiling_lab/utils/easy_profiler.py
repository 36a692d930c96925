# SPDX-License-Identifier: Apache-2.0
"""Decorators and context managers for a first look, under one name.

@auto_profile(warmup=3, iterations=10)
def forward(model, batch):
    return model(batch)

with GPUMonitor() as monitor:
    forward(model, batch)
result, summary = forward.last_result, monitor.get_summary()  # to print
"""

from __future__ import annotations

from profiling_lab.utils.benchmark import quick_benchmark
from profiling_lab.utils.decorator import auto_profile
from profiling_lab.utils.gpu_monitor import GPUMonitor
from profiling_lab.utils.memory import memory_summary
from profiling_lab.utils.result import ProfilingResult
from profiling_lab.utils.training import TrainingProfiler, profile_training

__all__ = [
    "GPUMonitor",
    "ProfilingResult",
    "TrainingProfiler",
    "auto_profile",
    "memory_summary",
    "profile_training",
    "quick_benchmark",
]
