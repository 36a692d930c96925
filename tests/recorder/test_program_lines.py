# SPDX-License-Identifier: Apache-2.0
"""The programs' promises on the CPU: every operator that would launch a kernel on a GPU launches a fake one.

On the CPU backward runs on the thread that called it, on a GPU on the engine's own; test_gpu_program_lines.py
asks the same there.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from recorder.program_lines import lines_of, marked, recorded, share

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


# The fake driver, and what of torch stands between an operator and a dispatch mode.
NOT_IN_A_REAL_STACK = ("fake_driver.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")


def hide_the_driver(path: Path) -> None:
    """The fake launches from Python, a real driver from C++: take its frames off the stacks."""
    with sqlite3.connect(path) as file:
        leaves = (
            "SELECT s.id FROM PYREC_STACK s JOIN PYREC_FRAME f ON f.id = s.frameId"
            " JOIN StringIds file ON file.id = f.fileId WHERE "
            + " OR ".join(f"value LIKE '%/{name}'" for name in NOT_IN_A_REAL_STACK)
        )
        step = "(SELECT parentId FROM PYREC_STACK WHERE id = stackId)"
        while file.execute(
            f"UPDATE PYREC_LAUNCH SET stackId = {step} WHERE stackId IN ({leaves})"
        ).rowcount:
            pass
    file.close()


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
