# SPDX-License-Identifier: Apache-2.0
"""The programs' promises on the CPU: every operator that would launch a kernel on a GPU launches a fake one.

On the CPU backward runs on the thread that called it, on a GPU on the engine's own; test_gpu_program_lines.py
asks the same there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorder.program_lines import hide_the_driver, lines_of, marked, recorded, share

pytest.importorskip("torch")

CASES = (
    ("gpt2", {}),
    ("vit", {}),
    ("checkpointing", {"use_reentrant": False}),
    ("checkpointing", {"use_reentrant": True}),
    ("custom_function", {}),
    ("double_backward", {}),
    ("operators", {}),
    ("accumulation", {}),
)
RECORD = """
import importlib, torch
for i, (name, options) in enumerate({cases!r}):
    step = importlib.import_module("programs." + name).build("cpu", **options)
    step()
    with profiling_lab.record(OUT + str(i)), launch_per_operator(fake, views=False):
        step()
"""


def test_every_operator_is_on_its_line(run_warm: Any, tmp_path: Path) -> None:
    run_warm(RECORD.format(cases=CASES), timeout=600)
    for i, (name, options) in enumerate(CASES):
        path = tmp_path / f"out.sqlite{i}"
        hide_the_driver(path)
        result = lines_of(path, name)
        print(name, options, share(result.coverage))
        assert recorded(result, name) == marked(name), (name, options)
        assert result.coverage.attributed_frac >= 0.99, result.coverage.unattributed
