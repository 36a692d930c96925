# SPDX-License-Identifier: Apache-2.0
"""The function of E35 that must become faster."""

from __future__ import annotations

from profiling_lab.exercises.attention_task import Attention

ATTENTION = Attention(
    queries=1,
    small=((3, 320), (2, 1088), (1, 64)),
    full=(32, 65536),
    work=lambda rows, count: rows * (count + 8192),
    has_statistics=True,
)
TASKS = (ATTENTION.task(faster=25.0),)
