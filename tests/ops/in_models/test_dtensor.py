# SPDX-License-Identifier: Apache-2.0
"""flash_attention on DTensors, in two processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built")
def test_batches_and_heads_are_sharded(python_warm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_warm(Path(__file__).with_name("dtensor_workers.py"))
    assert done.returncode == 0, done.stderr
    what = ("batch", "heads", "whole", "rows, gathered", "one key head for all")
    expected = [f"{one} {sink}" for sink in (False, True) for one in what] + ["packed"]
    lines = done.stdout.splitlines()
    proven = [line.removeprefix("proven ") for line in lines if line.startswith("proven ")]
    assert proven == expected


def test_its_import_waits_for_a_dtensor(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    program = """
import sys, torch
from profiling_lab.ops import flash_attention
q = torch.zeros(1, 2, 1, 8)
flash_attention(q, q, q)
with torch.autocast("cpu"):
    flash_attention(q, q, q)
print("torch.distributed.tensor.experimental" in sys.modules)
"""
    assert python(program).stdout.strip() == "False"
