# SPDX-License-Identifier: Apache-2.0
"""What an op says about itself, so that tests, benchmarks and rooflines need no knowledge of any one op."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Shape = tuple[int, ...]


def drawing(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Callable[..., torch.Tensor]:
    """draw(*shape, scale=1, mean=0): normal numbers, before rounding the same for every dtype and device."""

    def draw(*shape: int, scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64) * scale + mean
        return values.to(device=device, dtype=dtype)

    return draw


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute the op: a choice of implementation, or of a mathematical option."""

    name: str
    call: Callable[..., torch.Tensor]
    """The public function with the option bound: takes what `make_inputs` returns."""
    reference: Callable[..., torch.Tensor]
    """The same in plain torch: in float64 it is the truth, in the tested dtype the yardstick."""
    custom: bool = True
    """False where the variant is itself plain torch (a teaching baseline) and calls no op of ours."""


@dataclass(frozen=True, slots=True)
class TestShape:
    """A shape and why it is tested."""

    __test__ = False  # not a test class, whatever its name says to pytest
    reason: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class OpCase:
    """One op. `shape` is always the shape of the first input; everything else follows from it."""

    slug: str
    variants: tuple[Variant, ...]
    make_inputs: Callable[[Shape, torch.dtype, torch.device, torch.Generator], tuple[torch.Tensor, ...]]
    """All differentiable inputs, random, well scaled, without requires_grad. A CPU generator."""
    dispatcher_calls: Callable[[tuple[torch.Tensor, ...]], tuple[tuple[str, tuple[Any, ...]], ...]]
    """Every dispatcher op of this slug: its name without namespace, and arguments made from the inputs."""
    flops: Callable[[Shape], int]
    """Of the forward; by the useful arithmetic, whatever an implementation really does."""
    bytes: Callable[[Shape, torch.dtype], int]
    """Of the forward: each input and output moved once."""
    test_shapes: tuple[TestShape, ...]
    bench_shapes: tuple[Shape, ...]
    module: Callable[..., torch.nn.Module]
    """The nn.Module: module(shape[-1], device=..., dtype=...) applies to a tensor of that last dimension."""
    cpu_dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    cuda_dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    function: str = ""
    """The public function's name as error texts give it, where it is not the slug."""

    @property
    def name(self) -> str:
        """What error texts call the op."""
        return self.function or self.slug

    @property
    def small_shape(self) -> Shape:
        """The smallest tested shape without a dimension of 1, so that every index matters."""
        shapes = [s.shape for s in self.test_shapes if len(s.shape) > 1 and min(s.shape) > 1]
        return min(shapes, key=math.prod)

    def dtypes(self, device: torch.device) -> tuple[str, ...]:
        """The names of the dtypes that the op has on the device; the first is its usual one there."""
        return self.cuda_dtypes if device.type == "cuda" else self.cpu_dtypes
