# SPDX-License-Identifier: Apache-2.0
"""The ops over NCCL: DTensors, ring_attention, FSDP2 and tensor parallel on two GPUs as on one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROWS = ("layer_norm_gelu", "layer_norm_gelu without bias", "layer_norm_gelu_residual", "heavy_layer")


@pytest.mark.multigpu
def test_every_op_over_nccl(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python(Path(__file__).with_name("gpu_workers.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [f"{op}, dimension {dim}" for op in (*ROWS, "heavy_layer slow") for dim in (0, 1)]
    expected += [f"flash_attention, {what}" for what in ("batch", "heads", "rows, gathered")]
    expected += ["ladder_attention, heads"]
    expected += [f"ring_attention, {what}" for what in ("full", "causal", "softcap")]
    expected += ["FSDP2", "tensor parallel"]
    mark = "proven "
    lines = done.stdout.splitlines()
    assert [line.removeprefix(mark) for line in lines if line.startswith(mark)] == expected
