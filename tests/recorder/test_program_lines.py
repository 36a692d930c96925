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

RECORD = """
import torch
from programs import {name}
step = {name}.build("cpu"{options})
step()
with profiling_lab.record(OUT), launch_per_operator(fake, views=False):
    step()
    step()
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", ""),
        ("vit", ""),
        ("checkpointing", ", use_reentrant=False"),
        ("checkpointing", ", use_reentrant=True"),
        ("custom_function", ""),
        ("double_backward", ""),
    ],
)
def test_every_operator_is_on_its_line(run: Any, tmp_path: Path, name: str, options: str) -> None:
    run(RECORD.format(name=name, options=options))
    path = tmp_path / "out.sqlite"
    hide_the_driver(path)
    result = lines_of(path, name)
    print(share(result.coverage))
    assert recorded(result, name) == marked(name)
    assert result.coverage.attributed_frac > 0.9, result.coverage.unattributed
