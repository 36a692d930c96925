# SPDX-License-Identifier: Apache-2.0
"""What one call of an operator must do, from its arguments alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiling_lab.work.call import Call
from profiling_lab.work.flops import flops_of
from profiling_lab.work.kinds import CONVOLUTION, kind_of
from profiling_lab.work.traffic import bytes_of


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call."""

    flops: int | None
    """None: not counted, which is so for all but products, convolutions and attention"""
    read_bytes: int
    written_bytes: int
    kind: str
    """one of kinds.KINDS"""
    math: str
    """what the FLOPs are done in: a dtype, or tf32; '' without FLOPs"""
    shapes: str
    """of the tensors given: `[64, 512] [512, 512]`"""

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Work | None:
    """The work of a call of the OpOverload `func` that returned `result`. None: it is a view, or only reads
    or makes metadata.
    """
    call = Call.of(func, args, kwargs, result)
    read, written = bytes_of(call)
    if not written:
        return None
    flops = flops_of(call)
    kind = kind_of(call.name)
    given = [t for argument in call.arguments if not argument.is_out for t in argument.tensors]
    shapes = " ".join(str(list(t.shape)) for t in given[:_MOST_SHAPES])
    more = f" and {len(given) - _MOST_SHAPES} more" if len(given) > _MOST_SHAPES else ""
    math = "" if flops is None or not given else _math(given[0].dtype, kind)
    return Work(flops, read, written, kind, math, shapes + more)


_MOST_SHAPES = 4


def _math(dtype: Any, kind: str) -> str:
    name = str(dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    return "tf32" if name == "float32" and _allows_tf32(kind) else name


def _allows_tf32(kind: str) -> bool:
    import torch

    convolves = kind.startswith(CONVOLUTION)
    backend: Any = torch.backends.cudnn.conv if convolves else torch.backends.cuda.matmul
    try:
        return bool(backend.fp32_precision == "tf32")
    except (AttributeError, RuntimeError):  # before torch 2.9
        old = torch.backends.cudnn if convolves else torch.backends.cuda.matmul
        return bool(old.allow_tf32)
