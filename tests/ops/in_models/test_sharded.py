# SPDX-License-Identifier: Apache-2.0
"""The ops on DTensors, under FSDP2 and tensor parallel, in two and in four processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Python = Callable[..., subprocess.CompletedProcess[str]]
available = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built")

NORMS = ["layer_norm_gelu", "layer_norm_gelu without bias", "layer_norm_gelu_residual"]
ROWS = [*NORMS, "heavy_layer", "heavy_layer slow"]


def proven(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    mark = "proven "
    return [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]


@available
@pytest.mark.parametrize("processes", [2, 4])
def test_every_op(processes: int, python_warm: Python) -> None:
    ways = ["dimension 0", "dimension 1", "columns gathered"]
    models = ["FSDP2", "tensor parallel"]
    if processes == 4:  # two by two
        ways.insert(2, "dimensions 0 and 1")
        models.append("FSDP2 and tensor parallel")
    expected = ["layer_norm_gelu, compiled"]
    expected += [f"{op}, {way}" for op in ROWS for way in ways]
    expected += ["statistics", "ladder_attention, S(0)", "ladder_attention, S(2)"]
    expected += ["heavy_layer, w1 columns, w2 rows", "heavy_layer, w3 columns", *models]
    done = python_warm(Path(__file__).with_name("sharded_workers.py"), str(processes))
    assert proven(done) == expected
