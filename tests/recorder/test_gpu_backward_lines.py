# SPDX-License-Identifier: Apache-2.0
"""Backward kernels land on the forward lines of their layer.

The oracle is a program in which that layer is alone: there every kernel that autograd launches is its own,
whatever the attribution says. The same kernels, as many of them per layer, must then be found on the
layer's lines in the whole model.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from profiling_lab.demo.training import training_script
from profiling_lab.recording import record
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import OperationKind

pytestmark = pytest.mark.gpu

STEPS = 2
BLOCKS = 2
SIZES = {"vocab_size": 1000, "d_model": 512, "nhead": 8, "num_layers": BLOCKS}
# Where a tensor is used twice (around each residual), autograd adds two gradients; alone, a layer has no
# such fork.
SUMS_PER_LAYER = 2


@pytest.fixture(scope="module")
def model_file() -> Iterator[ModuleType]:
    with training_script():
        yield sys.modules["model"]


def recorded(path: Path, step: Callable[[], None]) -> Trace:
    step()  # the libraries choose their kernels at the first call
    with record(path):
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    return Trace.open(path)


def per_step(names: Counter[str]) -> Counter[str]:
    assert all(count % STEPS == 0 for count in names.values()), "every step launches the same kernels"
    return Counter({name: count // STEPS for name, count in names.items()})


def launched_by_autograd(trace: Trace) -> Counter[str]:
    """Kernels whose launching thread is not the main one, without asking the attribution for lines."""
    operations, calls, call = trace.operations, trace.calls, trace.attribution.call
    assert (call >= 0).all(), "every kernel's launch was recorded"
    on_main = np.array([tid in trace.pids for tid in trace.tids])  # a process's first thread has its number
    chosen = (operations.kind == OperationKind.KERNEL) & ~on_main[calls.thread[call]]
    return per_step(Counter(operations.names[i] for i in operations.name[chosen]))


def backward_on_lines_of(trace: Trace, function: str) -> Counter[str]:
    """Kernels of the backward phase whose answering stack goes through that function of model.py."""
    operations, attribution = trace.operations, trace.attribution
    inside = np.array(
        [
            any(f.function == function and f.file.endswith("model.py") for f in trace.stacks.of(s))
            for s in range(len(trace.stacks))
        ]
    )
    chosen = (
        (operations.kind == OperationKind.KERNEL)
        & (attribution.phase == Phase.BACKWARD)
        & inside[attribution.stack]
    )
    return per_step(Counter(operations.names[i] for i in operations.name[chosen]))


def layer_alone(model: ModuleType, function: str, heavy: str) -> Callable[[], None]:
    """A step of nothing but one layer, on input of the size that the whole model gives it."""
    torch.manual_seed(0)
    x = torch.randn(32, 128, SIZES["d_model"], device="cuda", requires_grad=True)
    gradient = torch.randn_like(x)
    block = model.TransformerBlock(SIZES["d_model"], SIZES["nhead"]).cuda()
    layer = model.HeavyLayer(SIZES["d_model"], implementation=heavy).cuda()

    def step() -> None:
        x.grad = None
        block.zero_grad()
        layer.zero_grad()
        if function == "attention_layer":
            y = model.attention_layer(x, block.qkv, block.out, SIZES["nhead"])
        elif function == "feed_forward_layer":
            y = model.feed_forward_layer(x, block.up, block.down)
        else:
            y = layer(x)
        y.backward(gradient)

    return step


def whole_model(model: ModuleType, heavy: str) -> Callable[[], None]:
    torch.manual_seed(0)
    network = model.TransformerWithHeavyLayer(**SIZES, heavy=heavy).cuda()
    tokens = torch.randint(SIZES["vocab_size"], (32, 128), device="cuda")

    def step() -> None:
        network.zero_grad()
        network(tokens).square().mean().backward()

    return step


@pytest.mark.parametrize(
    ("function", "heavy", "copies"),
    [
        pytest.param("HeavyLayer.forward", "slow", 1, id="one-slow-kernel"),
        pytest.param("HeavyLayer.forward", "loop", 1, id="many-tiny-kernels"),
        pytest.param("HeavyLayer.forward", "fast", 1, id="the-repair"),
        pytest.param("attention_layer", "fast", BLOCKS, id="attention"),
        pytest.param("feed_forward_layer", "fast", BLOCKS, id="feed-forward"),
    ],
)
def test_backward_kernels_land_on_their_layer(
    model_file: ModuleType, tmp_path: Path, function: str, heavy: str, copies: int
) -> None:
    alone = launched_by_autograd(
        recorded(tmp_path / "alone.sqlite", layer_alone(model_file, function, heavy))
    )
    assert alone, "the layer alone must launch backward kernels"
    wanted = Counter({name: count * copies for name, count in alone.items()})
    found = backward_on_lines_of(
        recorded(tmp_path / "whole.sqlite", whole_model(model_file, heavy)), function
    )
    missing, extra = wanted - found, found - wanted
    assert not missing, f"landed elsewhere: {dict(missing)}; instead: {dict(extra)}"
    assert extra.total() <= SUMS_PER_LAYER * copies, f"landed here, but are not this layer's: {dict(extra)}"
