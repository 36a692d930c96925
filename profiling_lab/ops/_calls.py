# SPDX-License-Identifier: Apache-2.0
"""The two ways to call an op: through torch's dispatcher, and plainly, which saves 5 to 40 us a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops import _load, explain, sharding

_load.load()

NAMESPACE = "profiling_lab"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

Function = Callable[..., Any]

# Looked up once: each dot costs a thirtieth of a microsecond, which small problems feel. Of all that traces,
# only Dynamo is not a dispatch mode.
_HAS_CUDA_KERNELS = _load.has_cuda_kernels()
_are_plain = frozenset((Tensor, torch.nn.Parameter, type(None))).issuperset
_is_compiling = torch.compiler.is_dynamo_compiling
_is_tracing = torch._C._is_tracing
_has_transforms = torch._C._are_functorch_transforms_active
_has_autocast = torch._C._is_any_autocast_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_gradients = torch.is_grad_enabled
_need_gradients = torch._C._any_requires_grad
_forward_ad = torch.autograd.forward_ad
_has_overrides = torch.overrides.has_torch_function
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


def overload(name: str) -> Any:
    """The op as torch's dispatcher knows it; looked up at import, so that a wrong schema shows there."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


@cache
def kernel(name: str, calls_torch: bool) -> Function:
    """The op's kernel without autograd; a profile shows it by the op's own name.

    The overload "plain" has nothing around it. A kernel that calls torch's ops has a guard around it instead,
    which costs half a microsecond and keeps those ops below autograd too.
    """
    if calls_torch:
        guarded = overload(name)._op

        def below_autograd(*args: Any) -> Any:
            with _BelowAutograd():
                return guarded(*args)

        return below_autograd
    for key in ("AutogradCPU", "AutogradCUDA"):
        LIBRARY.impl(f"{name}.plain", torch.library.fallthrough_kernel, key)
    plain: Function = getattr(getattr(torch.ops, NAMESPACE), name).plain._op  # what its __call__ calls
    return plain


def choice(
    slug: str,
    names: tuple[str, ...],
    required: int,
    dispatched: Any,
    plain: Any,
    with_gradient: Any,
    in_parts: Function | None = None,
) -> Function:
    """A function that is given a call's tensors, `required` of them and others or None, and says how to call:

    `plain` if nothing between Python and the kernel has a say, `with_gradient` if only autograd has. That is,
    tensors of torch's own classes on a device that has kernels, no torch.compile, autocast, functorch
    transform, TorchDispatchMode or forward-mode differentiation. Everything else is checked and `dispatched`.
    None: one of them answers for the public function (torch.overrides), such as a proxy of torch.fx.
    in_parts: called instead where a tensor behind the first is a DTensor of which no rank has all.
    """

    def checked(tensors: tuple[Any, ...]) -> Any:
        if _is_compiling():
            sharding.register()
        elif not _are_plain(map(type, tensors)):
            if _has_overrides(tensors):
                return None
            sharding.register()
        check(slug, names, required, tensors)
        return in_parts if in_parts is not None and sharding.splits(tensors[1:]) else dispatched

    def way(*tensors: Tensor | None) -> Any:
        if (
            _is_compiling()
            or _has_transforms()
            or _has_autocast()
            or _dispatch_modes()
            or _forward_ad._current_level >= 0
            or not _are_plain(map(type, tensors))
        ):
            return checked(tensors)
        first = tensors[0]
        if first is None or not ((first.is_cuda and _HAS_CUDA_KERNELS) or first.is_cpu):
            return checked(tensors)
        if _has_gradients() and _need_gradients(*tensors):
            # torch.jit.trace would note a function of Python's; of the op it compares the lines, too.
            return dispatched._op if _is_tracing() else with_gradient
        return dispatched._op if is_python and _is_tracing() else plain

    is_python = isinstance(plain, FunctionType)
    return explain.told(slug, way, in_parts) if explain.ON else way


def is_plain_call(*tensors: Any) -> bool:
    """Whether these are tensors of torch's own classes outside of torch.func and of forward mode."""
    if any(type(t) is not Tensor and type(t) is not torch.nn.Parameter for t in tensors):
        return False
    return _is_compiling() or not (_has_transforms() or _forward_ad._current_level >= 0)


def is_plain_backward(dy: Any) -> bool:
    """Whether the backward of a plain call, given dy, may call the backward op plainly too.

    With gradients wanted here too, second derivatives are the dispatcher's. Shorter than `choice`: it runs on
    the engine's thread, whose core has slept and knows nothing of our code.
    """
    if _has_gradients() or _is_compiling() or _has_transforms() or _dispatch_modes():
        return False
    if _forward_ad._current_level >= 0:
        return False
    return type(dy) is Tensor and not dy.is_meta


def check(slug: str, names: tuple[str, ...], required: int, tensors: tuple[Any, ...]) -> None:
    """Refuses what torch would answer with a riddle: other things than tensors, devices without kernels."""
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor) and (i < required or tensor is not None):
            raise TypeError(f"{slug} expected tensors, got {type(tensor).__name__}")
    device = tensors[0].device
    for name, tensor in zip(names, tensors, strict=False):
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{slug}: {name} is on {tensor.device} but {names[0]} is on {device}")
    if device.type == "cuda" and not _HAS_CUDA_KERNELS:
        raise RuntimeError(
            f"{slug} got a CUDA tensor, but this profiling_lab was built without CUDA kernels: nvcc was not "
            "found when it was installed; install it again with nvcc on PATH"
        )
    if device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{slug} runs on the CPU and on CUDA, but {names[0]} is on {device.type}")


def raise_as_torch_does(error: Exception) -> None:
    """Raises torch.OutOfMemoryError where that is what happened; torch's stable C functions lose the type."""
    text = str(error)
    if type(error) is RuntimeError and "CUDA" in text and "out of memory" in text:
        raise torch.OutOfMemoryError(text) from error
