# SPDX-License-Identifier: Apache-2.0
"""flash_attention_with_cache checks a call once: in Python, or in the op where there is a kernel."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from profiling_lab.ops import _attention_cache, flash_attention_with_cache


def arguments() -> dict[str, Any]:
    q, k = torch.zeros(2, 1, 4, 16), torch.zeros(2, 1, 2, 16)
    cache = torch.zeros(2, 9, 2, 16)
    return {"q": q, "k_cache": cache, "v_cache": cache.clone(), "k": k, "v": k}


@pytest.mark.parametrize("has_kernel", [True, False])
def test_once(has_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Any] = []
    monkeypatch.setattr(_attention_cache, "has_hopper_kernels", lambda q: has_kernel)
    monkeypatch.setattr(_attention_cache, "_check", lambda *args: checks.append(args))
    lengths = torch.zeros(2, dtype=torch.int32)
    if has_kernel:  # which this machine has not, so the op itself refuses, after Python has checked nothing
        with pytest.raises((RuntimeError, ValueError)):
            flash_attention_with_cache(**arguments(), cache_seqlens=lengths)
    else:
        flash_attention_with_cache(**arguments(), cache_seqlens=lengths)
    assert len(checks) == (not has_kernel)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "k", "v"])
@pytest.mark.parametrize("has_kernel", [True, False])
def test_gradients_are_refused_on_every_path(
    name: str, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The op would not give any, without an error."""
    monkeypatch.setattr(_attention_cache, "has_hopper_kernels", lambda q: has_kernel)
    tensors = arguments()
    tensors[name].requires_grad_()
    with pytest.raises(ValueError, match="has no gradients, but a tensor requires one"):
        flash_attention_with_cache(**tensors, cache_seqlens=torch.zeros(2, dtype=torch.int32))


def test_the_op_without_data_checks_too() -> None:
    """In a compiled graph nothing else does before it runs."""
    op = torch.ops.profiling_lab.cached_attention
    options = (0.25, -1, 0, 0.0)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        a = arguments()
        lengths = torch.zeros(2, dtype=torch.int32)
        out, lse = op(a["q"], a["k_cache"], a["v_cache"], lengths, None, a["k"], a["v"], None, None, *options)
        assert out.shape == (2, 1, 4, 16) and lse.shape == (2, 4, 1)
        with pytest.raises(ValueError, match="k and v are given together or not at all"):
            op(a["q"], a["k_cache"], a["v_cache"], lengths, None, a["k"], None, None, None, *options)


def test_what_is_said(python_warm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    program = """
import torch
from profiling_lab.ops import flash_attention_with_cache
q = torch.zeros(1, 1, 1, 8)
for _ in range(2):
    flash_attention_with_cache(q, q, q, cache_seqlens=torch.zeros(1, dtype=torch.int32))
"""
    done = python_warm(program, PROFILING_LAB_EXPLAIN="1")
    assert done.stderr.splitlines() == [
        "profiling_lab: flash_attention_with_cache: plain torch, with memory for all scores, float32 on cpu"
    ]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built")
def test_dtensors_are_refused(python_warm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A cache that is gathered first would be written to in a copy."""
    program = """
import torch
from torch import distributed
from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
from profiling_lab.ops import flash_attention_with_cache
distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh('cpu', (1,))
q = distribute_tensor(torch.zeros(1, 1, 1, 8), mesh, [Replicate()])
try:
    flash_attention_with_cache(q, q, q, cache_seqlens=torch.zeros(1, dtype=torch.int32))
except ValueError as error:
    print(error)
distributed.destroy_process_group()
"""
    assert python_warm(program).stdout.strip() == (
        "flash_attention_with_cache: q is a DTensor, expected each rank's own part, x.to_local()"
    )
