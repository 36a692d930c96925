# SPDX-License-Identifier: Apache-2.0
"""PROFILING_LAB_EXPLAIN=1 says which path calls take; without it nothing of it is called."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import torch

Python = Callable[..., subprocess.CompletedProcess[str]]

PLAIN = """
import torch
from profiling_lab.ops import flash_attention, flash_attention_for_sdpa, layer_norm_gelu
from torch.nn.functional import scaled_dot_product_attention as sdpa
q = torch.zeros(1, 4, 2, 8, requires_grad=True)
w = torch.ones(8)
for _ in range(3):
    flash_attention(q, q, q)
"""


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    mark = "profiling_lab: "
    return [line.removeprefix(mark) for line in done.stderr.splitlines() if line.startswith(mark)]


def test_each_path_once(python_warm: Python) -> None:
    program = (
        PLAIN
        + """
with torch.autocast("cpu"):
    flash_attention(q, q, q)
with torch.device("meta"):
    m = torch.zeros(1, 4, 2, 8)
flash_attention(m, m, m)
layer_norm_gelu(q, w, w)
torch.vmap(lambda x: flash_attention(x, x, x))(q[None])
for _ in range(2):
    with flash_attention_for_sdpa():
        sdpa(q, q, q)
        sdpa(q, q, q, attn_mask=torch.zeros(2, 2))
        sdpa(q, q, q, dropout_p=0.5)
        sdpa(q, q[:, :, :1], q[:, :, :1], is_causal=True)
"""
    )
    assert said(python_warm(program, PROFILING_LAB_EXPLAIN="1")) == [
        "flash_attention: ours, CPU kernels, float32; called plainly",
        "flash_attention: ours, CPU kernels, float32; through torch's dispatcher: autocast",
        "flash_attention: ours, shapes only, float32; through torch's dispatcher: meta tensors",
        "layer_norm_gelu: ours, CPU kernels, float32; called plainly",
        "flash_attention: ours, CPU kernels, float32; through torch's dispatcher: a transform of torch.func",
        "scaled_dot_product_attention: left to torch: a mask",
        "scaled_dot_product_attention: left to torch: dropout",
        "scaled_dot_product_attention: left to torch: causal with unequal lengths, which torch aligns at the"
        " first key",
    ]


@pytest.mark.parametrize("value", ["", "0"])
def test_off(python_warm: Python, value: str) -> None:
    """An op's way is then the same function as ever: nothing is wrapped, so nothing costs."""
    program = f"""{PLAIN}
import sys
import profiling_lab.ops.attention
print(sys.modules["profiling_lab.ops.attention"]._OP.way.__qualname__)
"""
    done = python_warm(program, PROFILING_LAB_EXPLAIN=value)
    assert said(done) == [] and done.stdout.strip() == "choice.<locals>.way"


@pytest.mark.parametrize("stderr", ["None", "open('/dev/full', 'w')"])
def test_stderr_that_takes_nothing(python: Python, stderr: str) -> None:
    done = python(f"import sys; sys.stderr = {stderr}\n{PLAIN}\nprint('done')", PROFILING_LAB_EXPLAIN="1")
    assert "done" in done.stdout


def test_compiled(python_warm: Python) -> None:
    """Once, when the call is traced, and without a graph break."""
    program = (
        PLAIN
        + """
f = torch.compile(lambda q: flash_attention(q, q, q) * 2, fullgraph=True, backend="eager")
f(q), f(q)

@torch.compile(fullgraph=True, backend="eager")
def g(q):
    return sdpa(q, q, q, attn_mask=torch.zeros(2, 2))
with flash_attention_for_sdpa():
    g(q)
"""
    )
    assert said(python_warm(program, PROFILING_LAB_EXPLAIN="1")) == [
        "flash_attention: ours, CPU kernels, float32; called plainly",
        "flash_attention: ours, CPU kernels, float32; through torch's dispatcher: torch.compile or"
        " torch.export",
        "scaled_dot_product_attention: left to torch: a mask",
    ]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built")
def test_dtensors(python_warm: Python) -> None:
    program = """
import torch
from torch import distributed
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from profiling_lab.ops import heavy_layer
distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh('cpu', (1,))
x, *whole = [distribute_tensor(t, mesh, [Replicate()]) for t in (torch.ones(2, 4), *torch.ones(3, 4, 4))]
b = distribute_tensor(torch.ones(4), mesh, [Replicate()])
heavy_layer(x, *whole, b)
heavy_layer(x, whole[0].redistribute(placements=[Shard(1)]), *whole[1:], b)
distributed.destroy_process_group()
"""
    assert said(python_warm(program, PROFILING_LAB_EXPLAIN="1")) == [
        "heavy_layer: ours, CPU kernels, float32; through torch's dispatcher: tensors of class DTensor",
        "heavy_layer: plain torch, as its weights are sharded",
    ]


@pytest.mark.parametrize(
    ("capability", "architectures", "path", "expected"),
    [
        ((9, 0), "80 90a-real", "", "sm90 kernels"),
        ((9, 0), "80 90a-real", "sm80", "sm80 kernels (PROFILING_LAB_ATTENTION_PATH=sm80)"),
        ((9, 0), "80-real", "", "sm80 kernels (this build has none for sm_90a)"),
        ((8, 6), "80 90a-real", "", "sm80 kernels (the GPU has compute capability 8.6)"),
        ((10, 0), "90a-real 80", "", "sm80 kernels (the GPU has compute capability 10.0)"),
    ],
)
def test_which_cuda_path(
    capability: tuple[int, int],
    architectures: str,
    path: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from profiling_lab.ops import _load, explain

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(_load, "build_info", lambda: {"cuda": {"architectures": architectures}})
    monkeypatch.setenv("PROFILING_LAB_ATTENTION_PATH", path)
    assert explain._kernels("flash_attention", "cuda", 0) == expected
    assert explain._kernels("layer_norm_gelu", "cuda", 0) == "CUDA kernels"


@pytest.mark.gpu
def test_on_the_gpu(python: Python) -> None:
    program = """
import torch
from profiling_lab.ops import flash_attention
q = torch.zeros(1, 4, 2, 64, device="cuda", dtype=torch.bfloat16)
flash_attention(q, q, q)
"""
    (line,) = said(python(program, PROFILING_LAB_EXPLAIN="1"))
    assert line.startswith(("flash_attention: ours, sm90 kernels", "flash_attention: ours, sm80 kernels"))
